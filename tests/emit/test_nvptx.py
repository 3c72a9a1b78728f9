from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from adjoint.emit.nvptx import emit_module
from adjoint.loops.expressions import Counter, Extent, Load, integer
from adjoint.loops.statements import Buffer, Kernel, Loop, Mapping, Merge
from adjoint.lower.planning import lower
from adjoint.runtime.gpu.assembly import assemble
from tests.lowering import graph_of, launches

HOPPER = (9, 0)

ROWS, HALF = torch.empty(4096, 1024), torch.empty(4096, 1024, dtype=torch.bfloat16)
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
    "integers": (lambda x: [x.sum(-1), (x // 3) % 5], [torch.zeros(512, 96, dtype=torch.int64)]),
    "truth": (lambda x: [x.any(-1), x.all()], [torch.zeros(512, 96, dtype=torch.bool)]),
}


def kernels(name: str) -> list[str]:
    """LLVM text of each kernel."""
    function, inputs = CASES[name]
    plan = lower(graph_of(function, inputs), grids=True)
    return [emit_module([launch.kernel]) for launch in launches(plan)]


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


def meeting(dtype: torch.dtype, operator: str) -> str:
    """out[0] = out[0] `operator` x[i], for each i."""
    value = Load("x", Counter("i"), dtype)
    merge = Merge("out", integer(0), operator, value, shared=True)
    loop = Loop("i", integer(0), Extent("n"), (merge,), Mapping.PARALLEL)
    buffers = (Buffer("x", dtype), Buffer("out", dtype, written=True))
    kernel = Kernel("kernel", buffers, ("n",), (loop,))
    return assemble(emit_module([kernel]), HOPPER).decode()


def test_elements_that_several_threads_come_to_are_changed_atomically() -> None:
    assert code("scatter").count("atom.global.add.f32") == 4


@pytest.mark.parametrize(
    ("dtype", "operator", "how"),
    [
        (torch.float64, "add", "atom.global.add.f64"),
        (torch.int32, "add", "atom.global.add.u32"),
        (torch.bfloat16, "add", "cas.b32"),
        (torch.float16, "maximum", "cas.b32"),
        (torch.float32, "maximum", "cas.b32"),
        (torch.float64, "mul", "cas.b64"),
        (torch.bool, "or", "cas"),
    ],
)
def test_how_threads_meet(dtype: torch.dtype, operator: str, how: str) -> None:
    assert how in meeting(dtype, operator)
