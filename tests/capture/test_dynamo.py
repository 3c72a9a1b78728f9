from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn

import adjoint
from adjoint.capture.dynamo import capture_graph
from adjoint.graph.captured import CapturedProgram
from adjoint.graph.descriptors import Argument, Buffer, Parameter, SymbolicSize
from adjoint.graph.metadata import source_of
from tests.parity import leaf, plain


def captures(function: Any, *calls: tuple[Any, ...], **settings: Any) -> list[CapturedProgram]:
    """What is captured when `function` is compiled and called."""
    found: list[CapturedProgram] = []

    def backend(graph_module: torch.fx.GraphModule, examples: Any) -> Any:
        found.append(capture_graph(graph_module, examples))
        return graph_module.forward

    torch._dynamo.reset()
    compiled: Any = torch.compile(function, backend=backend, fullgraph=True, **settings)
    for args in calls:
        compiled(*args)
    return found


class Block(nn.Module):
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x * self.scale


def test_parameters_and_buffers_have_their_names() -> None:
    (captured,) = captures(Block(), (torch.randn(2, 3),))
    assert set(captured.inputs) == {
        Parameter("layers.0.weight"),
        Parameter("layers.0.bias"),
        Parameter("layers.1.weight"),
        Parameter("layers.1.bias"),
        Buffer("scale"),
        *(each for each in captured.inputs if isinstance(each, Argument)),
    }
    (argument,) = (each for each in captured.inputs if isinstance(each, Argument))
    assert argument.path == "L['x']"


def test_a_name_counts_from_the_module_that_is_compiled() -> None:
    block = Block()
    (captured,) = captures(lambda x: block(x), (torch.randn(2, 3),))
    names = {each.name for each in captured.inputs if isinstance(each, Parameter)}
    assert {name.split(".", 1)[-1][-len("0.weight") :] for name in names} >= {"0.weight"}


class Holder:
    """Of no torch type: Dynamo finds the module by an attribute of an object."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer


class Unregistered(nn.Module):
    """Its submodules are in a list and in objects, none of which registers them."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = [nn.Linear(3, 3), nn.Linear(3, 3)]
        self.held = [Holder(nn.Linear(3, 3)), Holder(nn.Linear(3, 3))]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.listed:
            x = layer(x)
        for each in self.held:
            x = each.layer(x)
        return x


SHADOWED = nn.Linear(3, 3)


class Shadowing(nn.Module):
    """Its submodule has the name of a module outside."""

    def __init__(self) -> None:
        super().__init__()
        self.SHADOWED = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        after: Tensor = SHADOWED(self.SHADOWED(x))
        return after


def in_a_list() -> Any:
    layers = [nn.Linear(3, 3), nn.Linear(3, 3)]
    return lambda x: layers[1](layers[0](x))


def in_a_dict() -> Any:
    layers: dict[Any, nn.Module] = {3: nn.Linear(3, 3), 4: nn.Linear(3, 3), "a": nn.Linear(3, 3)}
    return lambda x: layers["a"](layers[4](layers[3](x)))


@pytest.mark.parametrize("make", [Unregistered, Shadowing, in_a_list, in_a_dict])
def test_parameters_of_modules_that_none_registers(make: Any) -> None:
    function, x = make(), torch.randn(2, 3)
    torch._dynamo.reset()
    compiled: Any = torch.compile(function, backend="adjoint", fullgraph=True)
    torch.testing.assert_close(compiled(x), function(x))
    (captured,) = captures(function, (x,))
    names = [each.name for each in captured.inputs if isinstance(each, Parameter)]
    assert len(names) == len(set(names)) >= 4


def test_sizes_are_inputs_of_their_own() -> None:
    (captured,) = captures(lambda x: x * 2, (torch.randn(4, 3),), dynamic=True)
    kinds = {type(each) for each in captured.inputs}
    assert Argument in kinds
    assert kinds <= {Argument, SymbolicSize}


def test_nodes_know_the_users_line() -> None:
    def program(x: Tensor) -> Tensor:
        y = x.sin()
        return helper(y)

    def helper(y: Tensor) -> Tensor:
        return y.cos()

    (captured,) = captures(program, (torch.randn(3),))
    calls = captured.graph_module.graph.find_nodes(
        op="call_function", target=torch.ops.aten.cos.default
    )
    line = source_of(calls[0])
    assert line is not None
    assert (line.function, line.text) == ("helper", "return y.cos()")


def add_one_to_the_first(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return x * y


def apart() -> Any:
    return plain(3), plain(3)


def the_same() -> Any:
    x = plain(3)
    return x, x


def overlapping() -> Any:
    x = plain(4)
    return x[1:], x[:3]


def two_views_of_all() -> Any:
    x = plain(3)
    return x.view(3), x.view(3)


SHARINGS = [apart, the_same, overlapping, two_views_of_all]


@pytest.mark.parametrize("first", SHARINGS)
def test_one_compiled_function_for_all_ways_to_share_memory(first: Any) -> None:
    torch._dynamo.reset()
    compiled = adjoint.compile(add_one_to_the_first)
    for make in [first, *SHARINGS, first]:
        torch.manual_seed(0)
        mine = make()
        torch.manual_seed(0)
        theirs = make()
        assert torch.equal(compiled(*mine), add_one_to_the_first(*theirs)), make.__name__
        assert torch.equal(mine[0], theirs[0])
        assert torch.equal(mine[1], theirs[1])


def test_a_capture_outside_of_dynamo() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).sin()

    class Root(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Any:
            return (program(x, y),)

    graph_module = torch.fx.symbolic_trace(Root())
    captured = capture_graph(graph_module, [leaf(3), leaf(3)], anew=True)
    assert captured.inputs == (Argument(0, "x"), Argument(1, "y"))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_tensors_that_dynamo_keeps_in_the_graph(requires_grad: bool) -> None:
    torch._dynamo.reset()
    kept = torch.arange(3.0).double()

    def program(x: Tensor) -> Tensor:
        constant = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
        constant.add_(1)
        return x * kept * constant

    x = plain(3).requires_grad_(requires_grad)
    compiled = adjoint.compile(program, fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(x), program(x))
