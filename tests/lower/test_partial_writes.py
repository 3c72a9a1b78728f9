"""Writes to parts of tensors become one call each, and mean what they meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from adjoint.graph.copying import copied
from adjoint.graph.evaluation import evaluate
from adjoint.graph.partial_writes import written
from adjoint.graph.verify import verify
from adjoint.lower.partial_writes import join_writes
from tests.rewriting import graph_of, targets

aten = torch.ops.aten
AT = torch.tensor([2, 0])


def joined(
    function: Callable[..., Any], overwrites: bool = True, dynamic: bool = False
) -> fx.GraphModule:
    """The graph of a function after the pass; it computes what it did."""
    args = (x(), AT)
    graph_module = graph_of(function, *args, dynamic=dynamic)
    made = join_writes(copied(graph_module), overwrites)
    verify(made)
    pairs = zip(evaluate(graph_module, args), evaluate(made, args), strict=True)
    for one, other in pairs:
        assert one.stride() == other.stride()
        assert torch.equal(one, other)
    return made


def x() -> Tensor:
    return torch.arange(60.0, dtype=torch.float64).view(3, 4, 5)


def views(x: Tensor, at: Tensor) -> None:
    x[1, :, 2:4] = 7


def through_a_row(x: Tensor, at: Tensor) -> None:
    x[1].index_fill_(1, at, 3)


def flat(x: Tensor, at: Tensor) -> None:
    x.view(-1)[at] = 1


def with_axes(x: Tensor, at: Tensor) -> None:
    x.unsqueeze(1).squeeze(1)[:, at] = 1


def permuted(x: Tensor, at: Tensor) -> None:
    x.permute(2, 0, 1)[at] = 1


def transposed(x: Tensor, at: Tensor) -> None:
    x.transpose(-1, 0)[at] = 1


def diagonal(x: Tensor, at: Tensor) -> None:
    x.diagonal(1, 1, 2).fill_(2)


def sliced_by_steps(x: Tensor, at: Tensor) -> None:
    x[:, ::2] = x[:, 1::2] + 1


def unbound(x: Tensor, at: Tensor) -> None:
    x.unbind(1)[2].copy_(x[:, 0] * 2)


def split(x: Tensor, at: Tensor) -> None:
    x.split(2, 1)[1].mul_(2)


def augmented(x: Tensor, at: Tensor) -> None:
    x[0] += 1


@pytest.mark.parametrize(
    "function",
    [
        views,
        through_a_row,
        flat,
        with_axes,
        permuted,
        transposed,
        diagonal,
        sliced_by_steps,
        unbound,
        split,
        augmented,
    ],
)
def test_a_write_through_views_is_one_call(function: Callable[..., Any]) -> None:
    for dynamic in (False, True):
        made = targets(joined(function, dynamic=dynamic))
        assert made.count(written) == 1
        assert not {aten.index_put.default, aten.index_fill.int_Scalar} & {*made}
        assert not any("_scatter" in str(each) for each in made)


def test_several_writes_are_as_many_calls() -> None:
    def function(x: Tensor, at: Tensor) -> None:
        x[0] = 1
        row = x[1]
        row[at] = 2
        row[:, 0] = 3
        x.view(-1)[at] = 4

    assert targets(joined(function)).count(written) == 4


def test_a_write_that_accumulates_is_done_twice() -> None:
    def function(x: Tensor, at: Tensor) -> None:
        x[0] = 2
        x[0] = 2
        x.index_add_(1, at[:1], torch.ones(3, 1, 5, dtype=x.dtype))
        x.index_add_(1, at[:1], torch.ones(3, 1, 5, dtype=x.dtype))

    calls = joined(function).graph.find_nodes(op="call_function", target=written)
    assert [node.args[2] for node in calls].count(aten.index_add.default) == 2


def all_of_it(x: Tensor, at: Tensor) -> None:
    x.copy_(x.sin())


def all_of_a_view(x: Tensor, at: Tensor) -> None:
    x.view(-1).fill_(2)


def of_another_type(x: Tensor, at: Tensor) -> Tensor:
    return x.to(torch.complex128).index_fill(1, at, 2)


def many_additions(x: Tensor, at: Tensor) -> None:
    x.index_add_(1, at, x[:, :2].sin())


def expanded(x: Tensor, at: Tensor) -> Tensor:
    return x[:1].expand(3, 4, 5).index_fill(1, at, 2)


@pytest.mark.parametrize(
    "function", [all_of_it, all_of_a_view, of_another_type, many_additions, expanded]
)
def test_what_kernels_do_better_stays(function: Callable[..., Any]) -> None:
    assert written not in targets(joined(function))


def test_additions_to_what_is_no_input_are_kernels() -> None:
    def added(x: Tensor, at: Tensor) -> None:
        x.index_add_(1, at[:1], torch.ones(3, 1, 5, dtype=x.dtype))

    def added_elsewhere(x: Tensor, at: Tensor) -> Tensor:
        return x.sin().index_add(1, at[:1], torch.ones(3, 1, 5, dtype=x.dtype))

    assert written in targets(joined(added))
    assert written not in targets(joined(added, overwrites=False))
    assert written not in targets(joined(added_elsewhere))


def test_other_places_are_not_mistaken_for_one() -> None:
    """A value that was computed from one row is written to another one."""

    def function(x: Tensor, at: Tensor) -> Tensor:
        row = x[0].index_fill(0, at, 9)
        back = x.permute(1, 2, 0).index_fill(0, at, 8).permute(1, 2, 0)
        return torch.select_scatter(x, row, 0, 1), back.reshape(5, 3, 4)  # type: ignore[return-value]

    joined(function)


def test_a_part_that_others_read_is_kept() -> None:
    def function(x: Tensor, at: Tensor) -> Tensor:
        row = x[0]
        row[at] = 5
        return row.exp() + x[0]

    joined(function)
