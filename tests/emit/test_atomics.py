from __future__ import annotations

import pytest
import torch

from adjoint.emit.nvptx import emit_module
from adjoint.loops.expressions import Counter, Extent, Load, integer
from adjoint.loops.statements import Buffer, Kernel, Loop, Mapping, Merge
from adjoint.runtime.gpu.assembly import assemble
from adjoint.target import CPU, Target, cuda_target
from tests.lowering import GRID, HOPPER, graph_of, launches, lower

ROWS = torch.empty(4096, 1024)


def scattering(rows: torch.Tensor, target: Target = GRID) -> list[str]:
    """The kernels that add rows to rows."""
    places = torch.zeros(len(rows), dtype=torch.int64)
    graph = graph_of(lambda h, i, m: [h.index_add(0, i, m)], [rows, places, rows])
    return [emit_module([each.kernel], target) for each in launches(lower(graph, GRID))]


def assembled(rows: torch.Tensor) -> str:
    return "".join(assemble(text, HOPPER).decode() for text in scattering(rows))


def meeting(dtype: torch.dtype, operator: str) -> str:
    """out[0] = out[0] `operator` x[i], for each i."""
    value = Load("x", Counter("i"), dtype)
    merge = Merge("out", integer(0), operator, value, shared=True)
    loop = Loop("i", integer(0), Extent("n"), (merge,), Mapping.PARALLEL)
    buffers = (Buffer("x", dtype), Buffer("out", dtype, written=True))
    kernel = Kernel("kernel", buffers, ("n",), (loop,))
    return assemble(emit_module([kernel], GRID), HOPPER).decode()


def test_elements_that_several_threads_come_to_are_changed_atomically() -> None:
    """Four neighbours at a time, where the machine can do that."""
    assert assembled(ROWS).count("red.relaxed.gpu.global.add.v4.f32") == 1
    ampere = cuda_target(CPU, (8, 0))
    assert ampere.machine is not None
    texts = scattering(ROWS, ampere)
    older = "".join(assemble(text, ampere.machine).decode() for text in texts)
    assert older.count("atom.global.add.f32") == 4


def test_neighbours_that_do_not_begin_where_the_machine_wants_are_added_one_by_one() -> None:
    """Rows of six elements begin at places that are no multiples of four."""
    assert not any("v4.f32" in text for text in scattering(torch.empty(4096, 6)))


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
