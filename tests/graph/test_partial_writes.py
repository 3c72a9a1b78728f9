"""Writes to parts of tensors: what they compute, in which memory, and how they are undone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from adjoint.graph.partial_writes import (
    IN_PLACE,
    REGIONS,
    Undo,
    ViewCall,
    put_back,
    written,
    written_there,
)

aten = torch.ops.aten

INDEX = torch.tensor([2, 0, 2])
ROWS = torch.arange(1.0, 13.0, dtype=torch.float64).view(3, 4)
PLACES = torch.tensor([[0, 3, 1, 1], [2, 0, 0, 2]])
VIEWS: tuple[ViewCall, ...] = ((aten.transpose.int, (0, 1), {}), (aten.slice.Tensor, (0, 1, 5), {}))

# Arguments after a tensor of shape (4, 4).
ARGUMENTS: dict[Any, tuple[tuple[Any, ...], dict[str, Any]]] = {
    aten.copy.default: ((torch.full((4, 4), 2.0, dtype=torch.float64),), {}),
    aten.fill.Scalar: ((3.0,), {}),
    aten.fill.Tensor: ((torch.tensor(3.0, dtype=torch.float64),), {}),
    aten.index_put.default: (([INDEX], ROWS, True), {}),
    aten.scatter.src: ((0, PLACES, ROWS[:2]), {}),
    aten.scatter.value: ((1, PLACES, 5.0), {}),
    aten.scatter.reduce: ((0, PLACES, ROWS[:2]), {"reduce": "multiply"}),
    aten.scatter.value_reduce: ((0, PLACES, 2.0), {"reduce": "add"}),
    aten.scatter_add.default: ((0, PLACES, ROWS[:2]), {}),
    aten.scatter_reduce.two: ((0, PLACES, ROWS[:2], "amax"), {"include_self": False}),
    aten.index_add.default: ((0, INDEX, ROWS), {"alpha": 2}),
    aten.index_copy.default: ((0, INDEX[:2], ROWS[:2]), {}),
    aten.index_fill.int_Scalar: ((1, INDEX, 7.0), {}),
    aten.index_fill.int_Tensor: ((0, INDEX, torch.tensor(7.0, dtype=torch.float64)), {}),
    aten.index_reduce.default: ((0, INDEX, ROWS, "prod"), {}),
}


def tensor() -> Tensor:
    return torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_every_op_is_tested() -> None:
    assert ARGUMENTS.keys() == REGIONS.keys() == IN_PLACE.keys()


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("op", REGIONS, ids=str)
def test_an_op_through_views(op: Any) -> None:
    args, kwargs = ARGUMENTS[op]
    base = tensor()
    before = base.clone()
    expected = base.clone()
    part = expected.transpose(0, 1)[:, 1:5]
    part.copy_(op(part, *args, **kwargs))
    views: tuple[ViewCall, ...] = (VIEWS[0], (aten.slice.Tensor, (1, 1, 5), {}))
    pure = written(base, views, op, args, kwargs)
    assert torch.equal(pure, expected)
    assert torch.equal(base, before)
    assert pure.stride() == base.stride()
    undo: Undo = []
    version = base._version
    assert written(base, views, op, args, kwargs, out=base, undo=undo) is base
    assert base._version == version
    assert torch.equal(base, expected)
    put_back(undo)
    assert torch.equal(base, before)
    assert written_there(base, views, op, args, kwargs) is base
    assert torch.equal(base, expected)


def test_another_tensor_has_the_rest_as_well() -> None:
    base, out = tensor(), torch.zeros(5, 4, dtype=torch.float64)
    undo: Undo = []
    written(base, VIEWS, aten.fill.Scalar, (1.0,), {}, out=out, undo=undo)
    assert torch.equal(out[:, 0], base[:, 0])
    assert torch.equal(out[:, 1:], torch.ones(5, 3, dtype=torch.float64))
    assert torch.equal(base, tensor())


def test_several_writes_to_one_place_are_undone() -> None:
    base = tensor()
    undo: Undo = []
    for value in (1.0, 2.0):
        written(base, (), aten.index_fill.int_Scalar, (0, INDEX, value), {}, out=base, undo=undo)
        written(base, VIEWS, aten.fill.Scalar, (value,), {}, out=base, undo=undo)
    put_back(undo)
    assert torch.equal(base, tensor())


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.index_put.default, ([torch.tensor([0, 9])], torch.ones(2, 4, dtype=torch.float64))),
        (aten.index_copy.default, (0, torch.tensor([0, 9]), ROWS[:2])),
        (aten.index_fill.int_Scalar, (0, torch.tensor([0, 9]), 1.0)),
        (aten.index_add.default, (0, torch.tensor([0, 9]), ROWS[:2])),
        (aten.scatter.src, (0, torch.tensor([[0, 9, 0, 0]]), ROWS)),
    ],
    ids=str,
)
def test_an_index_out_of_bounds_changes_nothing(op: Any, args: tuple[Any, ...]) -> None:
    base = tensor()
    undo: Undo = []
    with pytest.raises((IndexError, RuntimeError)) as ours:
        written(base, (), op, args, {}, out=base, undo=undo)
    with pytest.raises((IndexError, RuntimeError)) as eager:
        op(base, *args)
    assert type(ours.value) is type(eager.value)
    assert str(ours.value) == str(eager.value)
    put_back(undo)
    assert torch.equal(base, tensor())


def test_an_index_that_only_writing_accepts() -> None:
    base, undo = tensor(), Undo()
    args = (0, torch.tensor([-1]), 2.0)
    expected = base.index_fill(*args)
    written(base, (), aten.index_fill.int_Scalar, args, {}, out=base, undo=undo)
    assert torch.equal(base, expected)
    put_back(undo)
    assert torch.equal(base, tensor())


@pytest.mark.parametrize(
    "base",
    [tensor().t(), tensor()[::2, 1:3], tensor()[:, :1].expand(5, 4)],
    ids=["transposed", "with gaps", "expanded"],
)
def test_a_copy_has_the_views_of_the_tensor(base: Tensor) -> None:
    expected = base.clone()
    expected.select(1, 1).fill_(2)
    select: ViewCall = (aten.select.int, (1, 1), {})
    assert torch.equal(written(base, (select,), aten.fill.Scalar, (2.0,), {}), expected)
    assert torch.equal(base.flatten()[:1], base.reshape(-1)[:1])
