from __future__ import annotations

import torch
from torch import Tensor

import adjoint
from adjoint.differentiate.activity import active_nodes
from adjoint.differentiate.dependence import entangled, visited_by_autograd
from adjoint.graph.metadata import inputs_of

aten = torch.ops.aten


def test_results_of_one_operator_are_entangled() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(x)
        return values.sum(), vectors.sum()

    captured = adjoint.capture(program, torch.eye(3)).graph_module
    found = {origin.name for origin in entangled(captured.graph, active_nodes(captured, [0]))}
    (call,) = captured.graph.find_nodes(op="call_function", target=aten._linalg_eigh.default)
    items = {user.name for user in call.users}
    assert len(items) == 2
    assert found == items | {each.name for each in call.all_input_nodes}


def test_results_of_different_operators_are_not() -> None:
    captured = adjoint.capture(lambda x: (x.sin(), x.cos()), torch.ones(3)).graph_module
    assert entangled(captured.graph, active_nodes(captured, [0])) == []
    parts = adjoint.capture(lambda x: x.split(1), torch.ones(3)).graph_module
    assert entangled(parts.graph, active_nodes(parts, [0])) == []


def test_autograd_visits_what_an_output_is_computed_from() -> None:
    x, y = torch.ones(3), torch.ones(3)
    captured = adjoint.capture(lambda x, y: (x.sin(), x * y.detach()), x, y).graph_module
    first, second = inputs_of(captured.graph)
    active = active_nodes(captured, [0, 1])
    assert first in visited_by_autograd(captured, [0], active, {})
    assert second not in visited_by_autograd(captured, [0, 1], active, {})


def test_of_several_results_the_sweep_knows_which_arguments_count() -> None:
    captured = adjoint.capture(lambda x, y: torch.cat([x, y]).split(3), *torch.ones(2, 3))
    graph_module = captured.graph_module
    first, second = inputs_of(graph_module.graph)
    active = active_nodes(graph_module, [0, 1])
    (joined,) = graph_module.graph.find_nodes(op="call_function", target=aten.cat.default)
    assert visited_by_autograd(graph_module, [0], active, {}) >= {first, second}
    visited = visited_by_autograd(graph_module, [0], active, {joined: [first]})
    assert first in visited
    assert second not in visited


def test_a_step_function_is_visited_and_what_is_detached_is_not() -> None:
    def function(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        return x.floor() * y.detach(), z

    leaves = [torch.rand(3, requires_grad=True) for _ in range(3)]
    module = adjoint.capture(function, *leaves).graph_module
    visited = visited_by_autograd(module, [0], active_nodes(module, [0, 1, 2]), {})
    assert [each in visited for each in inputs_of(module.graph)] == [True, False, False]
