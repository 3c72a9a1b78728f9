"""What becomes of the caller's inputs: data, metadata, `requires_grad` and version counters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import adjoint
from adjoint.graph.calling import (
    AssignData,
    CallingConvention,
    FromCaller,
    ReplayMetadataOp,
    SetRequiresGrad,
    StoragePlacement,
    Write,
)
from tests.parity import ROUTES, Route, Row, Table, check, grown, leaf, plain
from tests.versions import TORCH

table = Table()


@table(lambda: grown(3))
def a_mutated_input(x: Tensor) -> tuple[Tensor, Tensor]:
    x.mul_(2)
    return x, x.view(3, 1)


@table(lambda: (grown(3), plain(3)))
def one_of_two_is_written(x: Tensor, y: Tensor) -> Tensor:
    y.copy_(x.detach() + 1)
    return x * y


@table(lambda: grown(3, 4))
def written_through_views(x: Tensor) -> Tensor:
    x[0].add_(1)
    x.t()[0].mul_(2)
    return x.sum()


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
@pytest.mark.parametrize("row", table, ids=str)
def test_inputs_change_as_in_eager(row: Row, route: Route) -> None:
    row.check(route)


def convention(function: object, *inputs: Tensor) -> CallingConvention:
    return adjoint.capture(function, *inputs).calling  # type: ignore[arg-type]


def test_an_input_that_is_only_read_does_not_change() -> None:
    calling = convention(lambda x: x * 2, plain(3))
    assert calling.leaves_inputs_unchanged
    assert calling.placements == ()


def test_a_write_advances_one_version_counter() -> None:
    calling = convention(lambda x: x.add_(1).mul_(2) * 3, plain(3))
    assert calling.writes == (Write(FromCaller(0), 0, recorded=False),)
    assert calling.versions == ((0, 2),)


def test_metadata_ops_are_replayed_in_order() -> None:
    calling = convention(lambda x: x.t_().unsqueeze_(0) * 2, plain(3, 4))
    ops = [c.op for c in calling.metadata_changes if isinstance(c, ReplayMetadataOp)]
    assert ops == [torch.ops.aten.t_.default, torch.ops.aten.unsqueeze_.default]
    assert calling.writes == ()


def test_an_assignment_to_data() -> None:
    def program(x: Tensor) -> Tensor:
        x.data = x.data * 2
        return x * 3

    (change,) = convention(program, plain(3)).metadata_changes
    assert isinstance(change, AssignData)
    assert change.index == 0


def test_a_flag_is_set() -> None:
    calling = convention(lambda x: x.requires_grad_() * 2, plain(3))
    assert calling.requires_grad_changes == (SetRequiresGrad(0, requires_grad=True),)


def test_a_storage_offset_that_the_program_used_is_assumed() -> None:
    x = torch.arange(8.0)[2:]
    calling = convention(lambda x: x.as_strided((2,), (1,), 3) * 2, x)
    assert calling.placements == (StoragePlacement(0, offset=2, nbytes=32),)


class Double(Function):
    """Writes to its argument, and saves what it wrote."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        ctx.mark_dirty(x)
        x.mul_(y)
        ctx.save_for_backward(x, y)
        return x, y * 2

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor, other: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return cotangent * y, cotangent * x + 2 * other


def writes_to_its_argument(x: Tensor, y: Tensor) -> Any:
    z = x * 1
    part, whole = z[:2], z.view(3, 1)
    doubled, other = Double.apply(part, y[1:])  # type: ignore[no-untyped-call]
    return doubled, other, part * 2, whole.sin(), z


@pytest.mark.skipif(TORCH < (2, 13), reason="Dynamo breaks the graph at mark_dirty")
@pytest.mark.parametrize("written", [leaf, plain])
def test_what_is_marked_as_dirty_is_written(written: Any) -> None:
    check(writes_to_its_argument, lambda: (written(3), leaf(3)), Route.DYNAMO, order=2)
