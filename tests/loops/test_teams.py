from __future__ import annotations

from adjoint.loops.teams import BLOCK, block_of


def test_teams_larger_than_a_warp_have_a_block_each() -> None:
    assert [block_of(team) for team in (1, 8, 32, 64, 1024)] == [BLOCK, BLOCK, BLOCK, 64, 1024]
