from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import adjoint
from adjoint.backend import adjoint as backend
from adjoint.errors import RewriteError
from adjoint.observing import Sighting
from adjoint.passes import graph_pass
from adjoint.rewrite.passes import replaces, rules_pass
from adjoint.rewrite.patterns import Wildcard, call
from adjoint.rewrite.rules import equation
from tests.rewriting import calls, graph_of

aten = torch.ops.aten
MATRIX = torch.ones(2, 3)
x = Wildcard("x")


@torch.library.custom_op("adjoint_tests::add_relu", mutates_args=())
def add_relu(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x + y)


@add_relu.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return torch.empty_like(x)


def keep(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(output)


def pull_back(ctx: Any, cotangent: Tensor) -> Any:
    (out,) = ctx.saved_tensors
    masked = cotangent * (out > 0)
    return masked, masked


add_relu.register_autograd(pull_back, setup_context=keep)
OP = torch.ops.adjoint_tests.add_relu.default


@adjoint.replaces(lambda x, y: torch.relu(x + y), MATRIX, MATRIX)
def fused_add_relu(x: Tensor, y: Tensor) -> Tensor:
    """relu(x + y) by one operator"""
    return torch.ops.adjoint_tests.add_relu(x, y)  # type: ignore[no-any-return]


def program(a: Tensor, b: Tensor) -> Tensor:
    return (torch.relu(a * 2 + b) * a).sum()


def test_two_operators_become_one_of_the_users_which_is_differentiated() -> None:
    seen: list[Sighting] = []
    inputs = [torch.randn(4, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    torch._dynamo.reset()
    options: Any = {"passes": [fused_add_relu]}
    compiled = torch.compile(
        program, backend=partial(backend, observer=seen.append), options=options
    )
    results = []
    for run in (program, compiled):
        value = run(*inputs)
        first = torch.autograd.grad(value, inputs, create_graph=True)
        results.append([value, *first, *torch.autograd.grad(first[0].sum(), inputs)])
    for eager, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager)
    (shown,) = (each for each in seen if each.stage == "fused-add-relu")
    assert shown.order == 0
    assert shown.matches == {"fused-add-relu": 1}
    assert shown.nodes is not None
    assert shown.nodes[0] - shown.nodes[1] == 1
    assert isinstance(shown.value, fx.GraphModule)
    assert calls(shown.value, OP) == 1


def test_it_holds_for_the_call_that_asks_for_it_alone() -> None:
    seen: list[Sighting] = []
    torch._dynamo.reset()
    compiled = torch.compile(program, backend=partial(backend, observer=seen.append))
    compiled(torch.randn(4, 5), torch.randn(4, 5))
    assert all(each.stage != "fused-add-relu" for each in seen)


def test_a_replacement_of_another_shape_reaches_the_user() -> None:
    torch._dynamo.reset()
    for place in ("primal", "joint", "post"):
        wrong = replaces(lambda x: torch.exp(-x), MATRIX, place=place)(lambda x: x.sum())
        compiled = adjoint.compile(lambda a: torch.exp(-a) * 2, passes=[wrong])
        with pytest.raises(RewriteError, match=r"computes f32\[\], the pattern f32\[3\]") as caught:
            compiled(torch.ones(3, requires_grad=True))
        assert "test_passes.py" in str(caught.value)


def mutate(graph_module: fx.GraphModule) -> fx.GraphModule:
    (node,) = graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.exp.default)
    node.target = torch.ops.aten.exp_.default
    return graph_module


def forget(graph_module: fx.GraphModule) -> fx.GraphModule:
    (node,) = graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.exp.default)
    del node.meta["val"]
    return graph_module


def reduce(graph_module: fx.GraphModule) -> fx.GraphModule:
    (node,) = graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.exp.default)
    node.target = torch.ops.aten.sum.default
    return graph_module


def give_up(graph_module: fx.GraphModule) -> fx.GraphModule:
    reduce(graph_module)
    raise KeyError("gone")


@pytest.mark.parametrize("place", ["primal", "joint", "post", "lowering"])
@pytest.mark.parametrize(
    ("run", "why"),
    [
        (reduce, r"the node computes f32\[\], and its metadata says f32\[3\]"),
        (give_up, "it raised KeyError: 'gone'"),
        (mutate, "node .* = aten.exp_.default.* mutates"),
        (forget, "node .* = aten.exp.default.*"),
        (lambda graph_module: None, "returned NoneType"),
    ],
)
def test_a_pass_that_breaks_the_graph_is_an_error(run: Any, why: str, place: Any) -> None:
    """It names the pass, the node and the user's line, and the program runs without the pass."""
    torch._dynamo.reset()
    wrong = graph_pass("break-it", place)(run)

    def function(a: Tensor) -> Tensor:
        return torch.exp(a) * 2

    a = torch.ones(3, requires_grad=True)
    with pytest.raises(RewriteError, match=f"pass 'break-it'.*: .*{why}") as caught:
        adjoint.compile(function, passes=[wrong])(a)
    if "node" in why:
        assert "return torch.exp(a) * 2" in str(caught.value)
    torch.testing.assert_close(adjoint.compile(function)(a), function(a))


def test_a_pass_after_one_that_does_not_exist_is_refused() -> None:
    late = graph_pass("late", "joint", after="nothing")(lambda graph_module: graph_module)
    with pytest.raises(RewriteError, match="'late' comes after 'nothing', which does not run at"):
        adjoint.compile(torch.sin, passes=[late])(torch.ones(2))


def test_a_guard_that_raises_names_the_rule() -> None:
    def fails(match: Any) -> bool:
        raise ZeroDivisionError("no such size")

    @adjoint.replaces(lambda x: x.exp(), torch.ones(2), where=fails)
    def power(x: Tensor) -> Tensor:
        return x.exp2()

    with pytest.raises(RewriteError, match=r"(?s)rule 'power' of pass 'power' at .*ZeroDivision"):
        adjoint.compile(torch.exp, passes=[power])(torch.ones(2))


def test_its_identity_depends_on_what_it_does() -> None:
    def one(factor: float) -> Any:
        def scaled(x: Tensor) -> Tensor:
            return torch.sin(x) * factor

        return replaces(lambda x: torch.sin(x), MATRIX)(scaled)

    def other() -> Any:
        def scaled(x: Tensor) -> Tensor:
            return torch.cos(x) * 2.0

        return replaces(lambda x: torch.sin(x), MATRIX)(scaled)

    assert one(2.0).identity == one(2.0).identity
    assert len({one(2.0).identity, one(3.0).identity, other().identity}) == 3
    elsewhere = replaces(lambda x: torch.sin(x), MATRIX, place="post")(lambda x: x.sin() * 1)
    assert elsewhere.identity.startswith("<lambda>@post:")


def test_rules_make_a_pass() -> None:
    double = equation("double", call(aten.mul.Tensor, x, 2), call(aten.add.Tensor, x, x))
    made = rules_pass("doubling", [double], "joint", after="merge-views", meaning="x * 2 = x + x")
    assert (made.name, made.place, made.after) == ("doubling", "joint", "merge-views")
    assert made.run.__doc__ == "x * 2 = x + x"
    assert [rule.name for rule in made.rules] == ["double"]
    graph = made(graph_of(lambda a: a * 2, MATRIX))
    assert isinstance(graph, fx.GraphModule)
    assert calls(graph, aten.add.Tensor) == 1
