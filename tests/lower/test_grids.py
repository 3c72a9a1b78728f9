from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from adjoint.loops.evaluate import evaluate
from adjoint.loops.plan import Launch, Scratch
from adjoint.loops.show import show
from tests.lowering import GRID, check, graph_of, launches, lower

F64 = torch.float64


def grids(function: Callable[..., Any], *inputs: torch.Tensor) -> list[Launch]:
    return launches(lower(graph_of(function, inputs), GRID))


def test_a_thread_takes_neighbours_where_there_are_many() -> None:
    (many,) = grids(lambda x: [x + 1], torch.empty(1024, 1024))
    (few,) = grids(lambda x: [x + 1], torch.empty(3, 4))
    assert "for i1 in range(4)" in show(many.kernel)
    assert "range(4)" not in show(few.kernel)
    assert many.grid is not None
    assert many.grid.count == 1024 * 1024 // 4


def test_a_team_takes_a_row() -> None:
    (softmax,) = grids(lambda x: [torch.softmax(x, -1)], torch.empty(4096, 1024))
    assert softmax.kernel.team > 1
    assert softmax.grid is not None
    assert softmax.grid.count == 4096
    (norm,) = grids(lambda x: [(x * x).sum(-1)], torch.empty(4096, 3))
    assert norm.kernel.team == 1


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x: [x.sum()], 2),
        (lambda x: [x.sum(0)], 2),
        (lambda x: [x.sum(0), x.exp()], 2),
        (lambda x: [x.softmax(-1), x.sum(0)], 2),
        (lambda x: [x.sum(), x.sum(0)], 4),
        (lambda x: [x.index_add(0, torch.tensor([1, 1]), x[:2] * 2)], 2),
    ],
)
def test_sums_over_rows_are_put_together_by_a_second_kernel(
    function: Callable[..., Any], count: int
) -> None:
    x = torch.rand(64, 48, dtype=F64)
    assert len(grids(function, x)) == count
    check(function, x)


@pytest.mark.parametrize(
    "shape", [(5, 7), (1, 4096), (4096, 1), (3, 5, 8), (64, 33), (2, 3, 4, 5), (8, 1024)]
)
@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.bfloat16])
def test_forms(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.rand(shape).to(dtype) + 0.5

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y = x.double()
        return [
            y.exp(),
            y.sum(-1),
            y.sum(0),
            y.sum(),
            (y - y.mean(-1, keepdim=True)) / y.sum(-1, keepdim=True),
            y.transpose(0, -1) + 1,
            y.transpose(0, -1).sum(0),
        ]

    check(function, x)


def test_the_evaluator_runs_them() -> None:
    """Mapping changes who computes, not what."""
    first, second = grids(lambda x: [(x * 2).sum(0)], torch.empty(6, 4, dtype=F64))
    x, chunks = torch.rand(6, 4, dtype=F64), 2
    parts, out = torch.zeros(chunks * 4, dtype=F64), torch.zeros(4, dtype=F64)
    for launch, given in ((first, x.reshape(-1)), (second, out)):
        scratch = [isinstance(operand, Scratch) for operand in launch.operands]
        names = [buffer.name for buffer in launch.kernel.buffers]
        held = [parts if is_scratch else given for is_scratch in scratch]
        evaluate(launch.kernel, dict(zip(names, held, strict=True)), {"chunks": chunks})
    torch.testing.assert_close(out, (x * 2).sum(0))


def test_deterministic_algorithms_scatter_by_torch() -> None:
    place = torch.tensor([1, 1])
    torch.use_deterministic_algorithms(True)
    try:
        found = grids(lambda x, i: [(x + 1).index_add(0, i, x[:2])], torch.rand(4, 3), place)
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(found) == 1
