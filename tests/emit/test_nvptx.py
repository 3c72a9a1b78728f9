from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from adjoint.emit.nvptx import emit_module
from adjoint.lower.planning import lower
from adjoint.runtime.gpu.assembly import assemble
from tests.kernels import reversing
from tests.lowering import graph_of, launches

HOPPER = (9, 0)

ROWS, HALF = torch.empty(4096, 1024), torch.empty(4096, 1024, dtype=torch.bfloat16)
WIDE = torch.empty(1024, 4096)
PLACES = torch.zeros(4096, dtype=torch.int64)

CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "elements": (lambda x: [(x + 1).tanh()], [ROWS]),
    "halves": (lambda x: [(x.float() * 2).to(torch.bfloat16)], [HALF]),
    "softmax": (lambda x: [torch.softmax(x, -1)], [ROWS]),
    "doubles": (lambda x: [torch.softmax(x, -1)], [ROWS.double()]),
    "long rows": (lambda x: [x.amax(-1)], [torch.empty(64, 50304)]),
    "narrow rows": (lambda x: [x.sum(-1)], [torch.empty(4096, 24)]),
    "few columns": (lambda x: [(x * x).sum(-1).sqrt()], [torch.empty(131072, 3)]),
    "total": (lambda x: [(x * x).sum()], [ROWS]),
    "columns": (lambda x: [x.sin().sum(0)], [ROWS]),
    "rows and columns": (lambda x: [x - x.mean(-1, keepdim=True), x.sum(0)], [ROWS]),
    "scatter": (lambda h, i, m: [h.index_add(0, i, m)], [ROWS, PLACES, ROWS]),
    "gather": (lambda x, i, y: [x[i] * y], [ROWS, PLACES, ROWS]),
    "integers": (lambda x: [x.sum(-1), (x // 3) % 5], [torch.zeros(512, 96, dtype=torch.int64)]),
    "transpose": (lambda x: [x.t().contiguous()], [ROWS]),
    "transposed halves": (lambda x: [x.t().contiguous()], [HALF]),
    "transposed truth": (
        lambda x: [(~x.t()).contiguous()],
        [torch.zeros(2047, 1999, dtype=torch.bool)],
    ),
    "transposed in part": (lambda x, y: [y.sin() + x.t()], [ROWS.double(), WIDE.double()]),
    "several transposed": (
        lambda x, y, z: [z * x.t() + y.t(), z.exp()],
        [HALF, ROWS, WIDE],
    ),
    "channels last": (
        lambda x: [x.contiguous(memory_format=torch.channels_last)],
        [torch.empty(16, 64, 57, 57)],
    ),
    "truth": (lambda x: [x.any(-1), x.all()], [torch.zeros(512, 96, dtype=torch.bool)]),
}


def kernels(name: str) -> list[str]:
    """LLVM text of each kernel."""
    function, inputs = CASES[name]
    plan = lower(graph_of(function, inputs), grids=True)
    return [emit_module([launch.kernel], wide=True) for launch in launches(plan)]


def code(name: str) -> str:
    return "".join(assemble(text, HOPPER).decode() for text in kernels(name))


ASSEMBLER = shutil.which("ptxas")


@pytest.mark.parametrize("name", CASES)
def test_kernels_become_assembly(name: str) -> None:
    assert ".visible .entry kernel" in code(name)


@pytest.mark.skipif(ASSEMBLER is None, reason="there is no ptxas on this machine")
@pytest.mark.parametrize("name", CASES)
def test_the_assembler_finds_registers_for_all(name: str, tmp_path: Path) -> None:
    for number, each in enumerate(kernels(name)):
        source = tmp_path / f"{number}.ptx"
        source.write_bytes(assemble(each, HOPPER))
        command = [str(ASSEMBLER), "-arch=sm_90", "-v", str(source), "-o", str(tmp_path / "code")]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        assert re.search(r"0 bytes spill stores", said), said


def test_neighbours_are_one_access() -> None:
    assert code("elements").count("ld.global.nc.v4") == 1
    assert code("elements").count("st.global.v4") == 1


def test_a_row_is_read_once() -> None:
    """What the maximum was taken of is still in registers for the sum and the quotient."""
    function, inputs = CASES["softmax"]
    (launch,) = launches(lower(graph_of(function, inputs), grids=True))
    text = assemble(emit_module([launch.kernel]), HOPPER).decode()
    assert text.count("ld.global.nc.v4") == 1024 // 4 // launch.kernel.team
    assert "shfl.sync" in text


def test_lanes_of_several_warps_meet_in_shared_memory() -> None:
    assert "bar.sync" in code("long rows") or "barrier.sync" in code("long rows")
    assert "bar" not in code("few columns")


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
    text = assemble(emit_module([made]), HOPPER).decode()
    assert f".b8 kernel_$_tile[{teams * 24 * 4}]" in text
    assert text.rindex("st.shared") < text.index("ld.shared")


@pytest.mark.parametrize(("team", "barrier"), [(256, "bar.sync"), (16, "bar.warp.sync")])
def test_nobody_reads_before_all_have_stored(team: int, barrier: str) -> None:
    made = replace(reversing(24), team=team)
    text = assemble(emit_module([made]), HOPPER).decode()
    assert text.rindex("st.shared") < text.index(barrier) < text.index("ld.shared")


@pytest.mark.parametrize(
    "function",
    [lambda x, i, y: [x[i] * y], lambda x, i, y: [y + 1, x[i] * y]],
    ids=["read", "other reads before it"],
)
def test_an_index_is_checked_once_and_neighbours_are_read_together(
    function: Callable[..., Any],
) -> None:
    plan = lower(graph_of(function, [ROWS, PLACES, ROWS]), grids=True)
    (launch,) = launches(plan)
    text = assemble(emit_module([launch.kernel]), HOPPER).decode()
    assert text.count("call.uni") == text.count("__assertfail,") == 1
    assert text.count("ld.global.nc.v4") == 2
