"""Only gradients that someone waits for are computed (`adjoint/runtime/bridge.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from adjoint.graph.metadata import outputs_of
from adjoint.runtime import grad_program
from adjoint.runtime.bridge import DifferentiableGraph
from tests.differentiation import Bridged, bridged
from tests.parity import leaf

grad = torch.autograd.grad

mm = torch.ops.aten.mm.default


def layers(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return torch.tanh(torch.tanh(x @ w) @ v)


def arguments() -> list[Tensor]:
    torch.manual_seed(0)
    return [leaf(7, 5), leaf(5, 6), leaf(6, 6)]


def ran(compiled: Bridged) -> list[DifferentiableGraph]:
    """The backward graphs that have run."""
    programs = compiled.graph.grad_programs()
    tables = [table for program in programs for table in program._backwards.values()]
    made = [version.value for table in tables for version in table.versions]
    graphs: list[Any] = [
        ready.graph for each in made for ready in (each.whole, *each.narrowed.values())
    ]
    return [graph for graph in graphs if graph._plain is not None]


@pytest.mark.parametrize(("wanted", "products"), [([0], 2), ([2], 1), ([1], 2), ([0, 1, 2], 4)])
def test_nothing_else_is_computed(wanted: Sequence[int], products: int) -> None:
    inputs = arguments()
    compiled = bridged(layers, *inputs)
    ours = grad(compiled(*inputs).sum(), [inputs[i] for i in wanted])
    eager = grad(layers(*inputs).sum(), [inputs[i] for i in wanted])
    for one, other in zip(ours, eager, strict=True):
        torch.testing.assert_close(one, other)
    (graph,) = ran(compiled)
    returned = outputs_of(graph.graph_module.graph)
    assert [place for place, node in enumerate(returned) if node is not None] == list(wanted)
    nodes = graph.graph_module.graph.nodes
    assert sum(node.target is mm for node in nodes) == products


Take = Callable[[Callable[..., Tensor], list[Tensor]], list[Tensor]]


def first_order(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    return [*grad(function(*inputs).sum(), inputs[0])]


def second_order(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Of a derivative with respect to one input, that with respect to another."""
    (inside,) = grad(function(*inputs).sum(), inputs[0], create_graph=True)
    return [*grad(inside.square().sum(), inputs[1])]


def forces(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """A loss of energies and their derivatives, as potentials are trained."""
    energies = function(*inputs)
    (force,) = grad(energies.sum(), inputs[0], create_graph=True)
    (energies.square().sum() + force.square().sum()).backward(inputs=inputs[1:])
    assert inputs[0].grad is None
    return [tensor.grad for tensor in inputs[1:] if tensor.grad is not None]


def third_order(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    (one,) = grad(function(*inputs).sum(), inputs[2], create_graph=True)
    (two,) = grad(one.square().sum(), inputs[0], create_graph=True)
    return [*grad(two.square().sum(), inputs[1])]


def retained(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """One result, differentiated several times, each time with respect to others."""
    loss = function(*inputs).sum()
    found = [*grad(loss, inputs[1], retain_graph=True)]
    found += grad(loss, [inputs[2], inputs[0]], retain_graph=True)
    loss.backward(retain_graph=True, inputs=[inputs[0]])
    loss.backward()
    return [*found, *(tensor.grad for tensor in inputs if tensor.grad is not None)]


def through_what_came_before(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """An input that is no leaf: gradients go on to what it was made of, or end there."""
    scaled = inputs[0] * 2
    loss = function(scaled, *inputs[1:]).sum()
    found = [*grad(loss, scaled, retain_graph=True)]
    found += grad(loss, inputs[0], retain_graph=True)
    return [*found, *grad(loss, inputs[1])]


def hooked(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    # In which order autograd comes to the leaves behind one node, it does not promise.
    seen: dict[int, Tensor] = {}
    inputs[0].register_hook(lambda gradient: gradient * 3)
    inputs[1].register_hook(lambda gradient: seen.update({1: gradient}))
    inputs[2].register_post_accumulate_grad_hook(lambda x: seen.update({2: x.grad + 0}))
    result = function(*inputs)
    result.register_hook(lambda gradient: gradient + 1)
    found = [*grad(result.sum(), inputs[0], retain_graph=True)]
    assert not seen
    result.sum().backward()
    assert len(seen) == 2
    return [
        *found,
        seen[1],
        seen[2],
        *(tensor.grad for tensor in inputs if tensor.grad is not None),
    ]


def retained_grad(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    scaled = inputs[0] * 2
    scaled.retain_grad()
    function(scaled, *inputs[1:]).sum().backward()
    assert scaled.grad is not None
    return [scaled.grad, *(tensor.grad for tensor in inputs if tensor.grad is not None)]


def given_twice(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    loss = function(*inputs).sum()
    return [*grad(loss, [inputs[0], inputs[0], inputs[2]])]


@pytest.mark.parametrize(
    "take",
    [
        first_order,
        second_order,
        forces,
        third_order,
        retained,
        through_what_came_before,
        hooked,
        retained_grad,
        given_twice,
    ],
)
def test_gradients_are_eagers(take: Take) -> None:
    compiled = bridged(layers, *arguments())
    for _ in range(2):
        ours, eager = take(compiled, arguments()), take(layers, arguments())
        assert len(ours) == len(eager) > 0
        for one, other in zip(ours, eager, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_many_choices_are_not_compiled_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grad_program, "MAX_NEEDED_SETS", 1)
    inputs = arguments()
    compiled = bridged(layers, *inputs)
    for x in inputs:
        (ours,), (eager,) = grad(compiled(*inputs).sum(), x), grad(layers(*inputs).sum(), x)
        torch.testing.assert_close(ours, eager)
    assert len(ran(compiled)) == 2


def test_gradients_have_memory_of_their_own() -> None:
    """One tensor is the gradient of both, and the cotangent itself."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    x, y, cotangent = leaf(3), leaf(3), torch.ones(3, dtype=torch.float64)
    compiled = bridged(function, x, y)
    for count in (1, 2, 3):
        compiled(x, y).backward(cotangent)
        assert x.grad is not None
        assert y.grad is not None
        assert torch.equal(x.grad, torch.full_like(x, count))
        assert torch.equal(y.grad, torch.full_like(y, count))
        assert torch.equal(cotangent, torch.ones_like(cotangent))
    large = [leaf(300, 300), leaf(300, 300)]
    bridged(lambda x, y: (x + y).exp(), *large)(*large).sum().backward()
    one, other = (x.grad.data_ptr() for x in large if x.grad is not None)
    assert one != other


# Versions -----------------------------------------------------------------------------------------


def outcome(function: Callable[..., Tensor], inputs: list[Tensor], written: int) -> Any:
    """The gradients after one input was written to, or the error instead."""
    loss = function(*inputs).sum()
    with torch.no_grad():
        inputs[written].mul_(2)
    try:
        return grad(loss, inputs, allow_unused=True)
    except RuntimeError as error:
        return str(error).partition(":")[0]


@pytest.mark.parametrize("written", [0, 1])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x * y,
        lambda x, y: x + y * 2,
        lambda x, y: (x + y).exp(),
        lambda x, y: (x * 2 + 1).sin() * y.exp(),
        lambda x, y: torch.tanh(x @ y),
        lambda x, y: (x - y).square(),
        lambda x, y: torch.relu(x) * 3 + torch.sigmoid(y),
        lambda x, y: x[:2].sin().sum() + y.t() * 2,
    ],
)
def test_writing_to_an_input_is_an_error_where_it_is_eagers(
    function: Callable[..., Tensor], written: int
) -> None:
    def inputs() -> list[Tensor]:
        torch.manual_seed(0)
        return [leaf(3, 3), leaf(3, 3)]

    ours = outcome(bridged(function, *inputs()), inputs(), written)
    eager = outcome(function, inputs(), written)
    if isinstance(eager, str):
        assert ours == eager
        assert "modified by an inplace operation" in eager
    else:
        torch.testing.assert_close(ours, eager)
