from __future__ import annotations

from tests.emit.test_nvptx import code


def test_lanes_of_several_warps_meet_in_shared_memory() -> None:
    assert "bar.sync" in code("long rows") or "barrier.sync" in code("long rows")
    assert "bar" not in code("few columns")


def test_the_lanes_of_one_warp_reduce_by_shuffles() -> None:
    text = code("narrow rows")
    assert "shfl.sync.bfly" in text
    assert ".shared" not in text
