from __future__ import annotations

from adjoint.loops.teams import (
    BLOCK_THREADS,
    WARP_COLUMNS,
    WARP_ROWS,
    Tile,
    threads_per_block,
    tile_of,
)


def test_teams_larger_than_a_warp_have_a_block_each() -> None:
    small = [threads_per_block(team) for team in (1, 8, 32)]
    assert small == [BLOCK_THREADS] * 3
    assert [threads_per_block(team) for team in (64, 1024)] == [64, 1024]


def test_a_tile_is_as_wide_as_the_columns_about_and_threads_share_it_out() -> None:
    for columns, width in ((16, 32), (36, 64), (64, 64), (128, 128), (512, 128)):
        tile = tile_of(1 << 17, columns, 128)
        assert tile is not None
        assert tile.columns == width
        assert tile.team == 256
        (rows, columns), (high, wide) = tile.per_thread, tile.warps
        whole = (rows * WARP_ROWS * high, columns * WARP_COLUMNS * wide)
        assert whole == (tile.rows, tile.columns)


def test_where_tiles_would_be_few_they_are_small_and_deep() -> None:
    assert tile_of(4096, 128, 128) == Tile(32, 64, (4, 4), 32, False)
    assert tile_of(4096, 20, 128) == Tile(32, 32, (4, 4), 32, False)
    assert tile_of(4096, 128, 20) == Tile(32, 64, (4, 4), 24, False)
    # Too much for small tiles, and too few for large ones.
    assert tile_of(4096, 256, 256) is None
