from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from adjoint.emit.nvptx import emit_module
from adjoint.runtime.gpu.assembly import assemble
from tests.emit.test_nvptx import CASES, PLACES, ROWS, code
from tests.kernels import reversing
from tests.lowering import GRID, HOPPER, graph_of, launches, lower


def test_neighbours_are_one_access() -> None:
    assert code("elements").count("ld.global.nc.v4") == 1
    assert code("elements").count("st.global.v4") == 1


def test_a_row_is_read_once() -> None:
    """What the maximum was taken of is still in registers for the sum and the quotient."""
    function, inputs = CASES["softmax"]
    (launch,) = launches(lower(graph_of(function, inputs), GRID))
    text = assemble(emit_module([launch.kernel], GRID), HOPPER).decode()
    assert text.count("ld.global.nc.v4") == 1024 // 4 // launch.kernel.team
    assert "shfl.sync" in text


def test_a_transpose_reads_and_stores_neighbours_together() -> None:
    text = code("transpose")
    # Four elements a thread, in the direction of threads both times.
    assert text.count("ld.global.nc.b32") == text.count("st.shared.b32") == 4
    assert text.count("ld.shared.b32") == text.count("st.global.b32") == 4
    assert text.rindex("st.shared") < text.index("bar.sync") < text.index("ld.shared")


@pytest.mark.parametrize(
    "name", ["transposed truth", "transposed in part", "several transposed", "channels last"]
)
def test_transposes_go_by_shared_memory(name: str) -> None:
    text = code(name)
    assert text.rindex("st.shared") < text.index("bar.sync") < text.index("ld.shared")


def test_halves_are_read_and_stored_by_pairs() -> None:
    text = code("transposed halves")
    assert text.count("ld.global.nc.v2.b16") == text.count("st.global.b32") == 8
    assert "ld.global.nc.b16" not in text
    assert "st.global.b16" not in text


@pytest.mark.parametrize(("team", "teams"), [(256, 1), (16, 16), (1, 256)])
def test_each_team_of_a_block_has_memory_of_its_own(team: int, teams: int) -> None:
    made = replace(reversing(24), team=team)
    text = assemble(emit_module([made], GRID), HOPPER).decode()
    assert f".b8 kernel_$_tile[{teams * 24 * 4}]" in text
    assert text.rindex("st.shared") < text.index("ld.shared")


@pytest.mark.parametrize(("team", "barrier"), [(256, "bar.sync"), (16, "bar.warp.sync")])
def test_nobody_reads_before_all_have_stored(team: int, barrier: str) -> None:
    made = replace(reversing(24), team=team)
    text = assemble(emit_module([made], GRID), HOPPER).decode()
    assert text.rindex("st.shared") < text.index(barrier) < text.index("ld.shared")


@pytest.mark.parametrize(
    "function",
    [lambda x, i, y: [x[i] * y], lambda x, i, y: [y + 1, x[i] * y]],
    ids=["read", "other reads before it"],
)
def test_an_index_is_checked_once_and_neighbours_are_read_together(
    function: Callable[..., Any],
) -> None:
    plan = lower(graph_of(function, [ROWS, PLACES, ROWS]), GRID)
    (launch,) = launches(plan)
    text = assemble(emit_module([launch.kernel], GRID), HOPPER).decode()
    assert text.count("call.uni") == text.count("__assertfail,") == 1
    assert text.count("ld.global.nc.v4") == 2
