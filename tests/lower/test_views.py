from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

import adjoint
from adjoint.graph.metadata import value_of
from adjoint.lower.views import PARTS, VIEWS, _slice, dtype_of, rank_of, shape_of
from tests.lowering import calls, check, graph_of, launches

aten = torch.ops.aten

View = Callable[[torch.Tensor], torch.Tensor]

# Views of a tensor of sizes 4, 3, 6.
ROWS: list[tuple[Any, View]] = [
    (aten._unsafe_view.default, lambda x: aten._unsafe_view(x, [12, 6])),
    (aten.alias.default, aten.alias),
    (aten.detach.default, aten.detach),
    (aten.diagonal.default, lambda x: aten.diagonal(x, 0, 0, 2)),
    (aten.diagonal.default, lambda x: aten.diagonal(x, 2, 1, -1)),
    (aten.diagonal.default, lambda x: aten.diagonal(x, -1, 2, 1)),
    (aten.expand.default, lambda x: aten.expand(x, [2, 4, 3, 6])),
    (aten.expand.default, lambda x: aten.expand(aten.select(x, 1, 0), [5, 4, 6])),
    (aten.expand.default, lambda x: aten.expand(aten.slice(x, 1, 0, 1), [-1, 5, -1])),
    (aten.flip.default, lambda x: aten.flip(x, [0, 2])),
    (aten.flip.default, lambda x: aten.flip(x, [-2])),
    (aten.lift_fresh_copy.default, aten.lift_fresh_copy),
    (aten.permute.default, lambda x: aten.permute(x, [2, 0, 1])),
    (aten.permute.default, lambda x: aten.permute(x, [-1, -3, -2])),
    (aten.reshape.default, lambda x: aten.view(x, [2, 2, 18])),
    (aten.select.int, lambda x: aten.select(x, 1, 2)),
    (aten.select.int, lambda x: aten.select(x, -1, -2)),
    (aten.slice.Tensor, lambda x: aten.slice(x, 2, 1, 5)),
    (aten.slice.Tensor, lambda x: aten.slice(x, 2, -4, 100, 2)),
    (aten.slice.Tensor, lambda x: aten.slice(x, -3, 1)),
    (aten.squeeze.default, lambda x: aten.squeeze(aten.unsqueeze(x, 1))),
    (aten.squeeze.dim, lambda x: aten.squeeze.dim(aten.unsqueeze(x, 1), 1)),
    (aten.squeeze.dim, lambda x: aten.squeeze.dim(x, 1)),
    (aten.squeeze.dims, lambda x: aten.squeeze.dims(aten.unsqueeze(x, 1), [1, 2])),
    (aten.t.default, lambda x: aten.t(aten.select(x, 0, 1))),
    (aten.t.default, lambda x: aten.t(aten.view(x, [72]))),
    (aten.transpose.int, lambda x: aten.transpose(x, 0, -1)),
    (aten.unfold.default, lambda x: aten.unfold(x, 2, 3, 2)),
    (aten.unfold.default, lambda x: aten.unfold(x, 0, 2, 1)),
    (aten.unsqueeze.default, lambda x: aten.unsqueeze(x, -1)),
    (aten.view.default, lambda x: aten.view(x, [3, 24])),
    (aten.view.default, lambda x: aten.view(x, [4, 3, 2, -1])),
    (aten.split.Tensor, lambda x: aten.split(x, 4, 2)[1]),
    (aten.split_with_sizes.default, lambda x: aten.split_with_sizes(x, [1, 2, 3], -1)[2]),
    (aten.unbind.int, lambda x: aten.unbind(x, 1)[2]),
    (aten.unbind.int, lambda x: aten.unbind(x)[0]),
]


def test_each_view_has_a_sample() -> None:
    assert {op for op, _ in ROWS} == {*VIEWS, *PARTS}


@pytest.mark.parametrize("place", range(len(ROWS)), ids=lambda place: str(ROWS[place][0]))
def test_a_view_is_read_where_it_is(place: int) -> None:
    _, view = ROWS[place]
    plan = check(lambda x: view(x) + 1, torch.arange(72.0).reshape(4, 3, 6)).plan
    assert len(launches(plan)) == 1
    assert not calls(plan)


def test_views_of_views() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.transpose(0, 2).reshape(3, 2, 12)[:, :, 1::3].permute(1, 0, 2)
        return y.reshape(-1, 4).flip([1]).unsqueeze(0).expand(2, -1, -1) * 2

    check(function, torch.arange(72.0).reshape(4, 3, 6))


def test_a_view_of_what_a_kernel_makes_is_returned() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y = x + 1
        return [y.transpose(0, 1), y[:, 1:], y]

    check(function, torch.arange(6.0).reshape(2, 3))


def test_no_dimensions() -> None:
    check(lambda x: x.view(1, 1).expand(2, 3) + x.reshape([]).view(1), torch.tensor(3.0))


def test_the_shape_and_dtype_of_a_node() -> None:
    graph = graph_of(lambda x: x.to(torch.int32) > 1, [torch.ones(3, 4)]).graph
    nodes = [node for node in graph.nodes if node.op != "output"]
    assert [dtype_of(node) for node in nodes] == [torch.float32, torch.int32, torch.bool]
    assert {(shape_of(node), rank_of(node)) for node in nodes} == {((3, 4), 2)}


def test_a_slice_that_begins_at_a_size_is_no_index_arithmetic() -> None:
    module = adjoint.capture(
        lambda x, y: x[y.shape[0] :] * 2, torch.ones(7), torch.ones(3), dynamic=True
    ).graph_module
    (node,) = module.graph.find_nodes(op="call_function", target=aten.slice.Tensor)
    with pytest.raises(NotImplementedError, match="a slice from a symbolic place"):
        _slice(node, (), node.args[0], *fx.map_arg(node.args[1:], value_of))
