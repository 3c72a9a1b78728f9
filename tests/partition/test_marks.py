from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import adjoint
from adjoint.capture.dynamo import capture_graph
from adjoint.compiler import Compiler
from adjoint.graph.derivative import Derivative
from adjoint.graph.metadata import region_of, run_of
from adjoint.options import Options
from adjoint.partition.marks import is_recomputed, mark_as_recomputed
from tests.parity import ROUTES, Route, leaf
from tests.partition.test_split import recorded, saved_nodes, saved_targets, targets

aten = torch.ops.aten
Policy = Callable[..., Any]


def block(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return (x @ w).tanh() @ v


def marked(x: Tensor, w: Tensor, v: Tensor, depth: int = 3, **options: Any) -> Tensor:
    """A residual network with a checkpoint for each layer."""
    options.setdefault("use_reentrant", False)
    for _ in range(depth):
        x = x + checkpoint(block, x, w, v, **options)
    return (x * x).sum()


def arguments() -> tuple[Tensor, Tensor, Tensor]:
    return leaf(64, 8), leaf(8, 16), leaf(16, 8)


def split_by(route: Route, function: Callable[..., Any], *args: Tensor) -> Derivative:
    """The forward and the backward graph, with respect to all arguments."""
    if route is Route.DIRECT:
        module = adjoint.capture(function, *args).graph_module
    else:
        module = graph_of_dynamo(function, *args)
    made = Compiler(Options()).derivative(module, tuple(range(len(args))))
    assert made is not None
    return made


def graph_of_dynamo(function: Callable[..., Any], *args: Tensor) -> fx.GraphModule:
    found: list[fx.GraphModule] = []

    def backend(graph_module: fx.GraphModule, examples: Any) -> Any:
        found.append(capture_graph(graph_module, examples).graph_module)
        return graph_module.forward

    torch._dynamo.reset()
    compiled: Any = torch.compile(function, backend=backend, fullgraph=True)
    compiled(*args)
    (graph_module,) = found
    return graph_module


def policy(of_products: str, of_others: str = "PREFER_RECOMPUTE") -> Any:
    """Contexts of selective checkpointing, with a policy for products and one for other ops."""

    def decide(_: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        name = of_products if op is aten.mm.default else of_others
        return CheckpointPolicy[name]

    return functools.partial(create_selective_checkpoint_contexts, decide)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("reentrant", [False, True])
def test_only_what_a_checkpoint_takes_is_saved(route: Route, reentrant: bool) -> None:
    def function(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return marked(x, w, v, use_reentrant=reentrant)

    made = split_by(route, function, *arguments())
    # The arguments, and the values between the checkpoints.
    assert saved_targets(made) == ["input"] * 3 + [aten.add.Tensor] * 3
    again = targets(made.first_backward.graph_module)
    assert again.count(aten.tanh.default) == 3


def test_without_checkpoints_more_is_saved() -> None:
    def function(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return (x + block(x, w, v)).square().sum()

    made = recorded(function, *arguments(), wrt=(0, 1, 2))
    assert aten.tanh.default in saved_targets(made)


def test_the_last_value_of_a_checkpoint_is_not_saved_for_itself() -> None:
    """The derivative of `tanh` reads its result, which is inside; a sum outside reads nothing."""

    def function(x: Tensor) -> Tensor:
        result: Tensor = checkpoint(lambda x: x.sin().tanh(), x, use_reentrant=False)
        return result.sum()

    assert saved_targets(recorded(function, leaf(5))) == ["input"]


def test_a_value_that_is_saved_anyway_is_not_recomputed() -> None:
    def function(x: Tensor) -> Tensor:
        result: Tensor = checkpoint(lambda x: x.sin().tanh(), x, use_reentrant=False)
        return result.exp()

    made = recorded(function, leaf(5))
    # `exp` reads its own result; the checkpoint recomputes.
    assert saved_targets(made) == ["input", aten.exp.default]

    def squared(x: Tensor) -> Tensor:
        result: Tensor = checkpoint(lambda x: x.sin().tanh(), x, use_reentrant=False)
        return result.square()

    made = recorded(squared, leaf(5))
    assert saved_targets(made) == ["input", aten.tanh.default]
    assert aten.tanh.default not in targets(made.first_backward.graph_module)


def test_what_leaves_a_checkpoint_as_a_view_is_saved_as_its_tensor() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = checkpoint(lambda x: x.exp().t(), x, use_reentrant=False)
        return result @ y

    made = recorded(function, leaf(4, 3), leaf(4, 3), wrt=(0, 1))
    # Its own derivative reads it, too, so that nothing has to be recomputed.
    assert saved_targets(made) == ["input", aten.exp.default]
    assert aten.exp.default not in targets(made.first_backward.graph_module)


# What each policy saves of products, and of what is made of them.
SAVED_BY_POLICY = {
    ("MUST_SAVE", "PREFER_RECOMPUTE"): {aten.mm.default},
    ("MUST_SAVE", "MUST_RECOMPUTE"): {aten.mm.default},
    ("PREFER_SAVE", "PREFER_RECOMPUTE"): {aten.mm.default},
    ("PREFER_RECOMPUTE", "PREFER_RECOMPUTE"): set(),
    ("MUST_RECOMPUTE", "MUST_RECOMPUTE"): set(),
    ("MUST_RECOMPUTE", "MUST_SAVE"): {aten.tanh.default},
    ("MUST_CPU_OFFLOAD", "PREFER_RECOMPUTE"): {aten.mm.default},
    ("PREFER_CPU_OFFLOAD", "PREFER_RECOMPUTE"): {aten.mm.default},
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("policies", SAVED_BY_POLICY, ids="-".join)
def test_policies_decide_what_is_saved(policies: tuple[str, str], route: Route) -> None:
    if not all(hasattr(CheckpointPolicy, each) for each in policies):
        pytest.skip("this torch has no such policy")
    contexts = policy(*policies)

    def function(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        inner = checkpoint(block, x, w, v, use_reentrant=False, context_fn=contexts)
        return inner.sum()  # type: ignore[no-any-return]

    made = split_by(route, function, *arguments())
    assert {*saved_targets(made)} == {"input"} | SAVED_BY_POLICY[policies]
    again = targets(made.first_backward.graph_module)
    recomputed = SAVED_BY_POLICY[policies] != {aten.tanh.default}
    assert (aten.tanh.default in again) == recomputed


def dropped(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return nn.functional.dropout((x @ w).tanh(), 0.5) @ v


def with_dropout(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    for _ in range(2):
        x = x + checkpoint(dropped, x, w, v, use_reentrant=False)
    return (x**3).sum()


@pytest.mark.parametrize("route", ROUTES)
def test_a_mask_is_saved_as_booleans(route: Route) -> None:
    made = split_by(route, with_dropout, *arguments())
    values = [node.meta["val"] for node in saved_nodes(made)]
    masks = [value for value in values if value.shape == (64, 16)]
    assert [each.dtype for each in masks] == [torch.bool] * 2
    assert not any(
        torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
        for target in targets(made.first_backward.graph_module)
    )


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("rng", [True, False])
def test_recomputed_dropouts_have_the_same_mask(order: int, rng: bool) -> None:
    """Numbers of kernels are not eager's, so the same program is compared with all saved."""
    found, args = [], arguments()
    keep: Any = policy("MUST_SAVE", "MUST_SAVE")
    for options in ({}, {"context_fn": keep}):
        torch._dynamo.reset()

        def function(x: Tensor, w: Tensor, v: Tensor, options: Any = options) -> Tensor:
            for _ in range(2):
                x = x + checkpoint(dropped, x, w, v, use_reentrant=False, **options)
            return (x**3).sum()

        compiled: Any = adjoint.compile(function, eager_rng=rng)
        torch.manual_seed(3)
        found.append(derivatives(compiled, args, order))
    torch.testing.assert_close(found[0], found[1])


def derivatives(function: Callable[..., Any], args: Any, order: int) -> list[Any]:
    value = function(*args)
    found = list(torch.autograd.grad(value, args, create_graph=order > 1))
    if order > 1:
        total = sum((each**2).sum() for each in found)
        found += torch.autograd.grad(total, args)
    return [value.detach(), *(each.detach() for each in found)]


@pytest.mark.parametrize("function", [marked, with_dropout])
@pytest.mark.parametrize("order", [1, 2])
def test_derivatives_are_eagers(function: Callable[..., Any], order: int) -> None:
    args = arguments()
    torch.manual_seed(3)
    expected = derivatives(function, args, order)
    counted = []

    def counting(sighting: Any) -> None:
        counted.append(sighting.stage)

    torch._dynamo.reset()
    backend: Any = functools.partial(adjoint.backend.adjoint, observer=counting)
    torch.manual_seed(3)
    actual = derivatives(torch.compile(function, backend=backend, fullgraph=True), args, order)
    assert counted.count("partition") >= order
    torch.testing.assert_close(actual, expected)


def test_a_second_derivative_recomputes_as_well() -> None:
    first = recorded(marked, *arguments(), wrt=(0, 1, 2)).first_backward
    inputs = first.graph_module.graph.find_nodes(op="placeholder")
    second = Compiler(Options()).derivative(first.graph_module, tuple(range(len(inputs))))
    assert second is not None
    # Nothing of the size that only values inside of a layer have.
    assert all(node.meta["val"].shape != (64, 16) for node in saved_nodes(second))
    assert aten.tanh.default in targets(second.first_backward.graph_module)


def test_a_gradient_inside_a_program_recomputes() -> None:
    """Forward and backward are one graph there, and the values that are recomputed are others."""
    seen: list[fx.GraphModule] = []

    def watching(sighting: Any) -> None:
        if sighting.stage == "merge-equal-values":
            seen.append(sighting.value)

    def gradient(x: Tensor, w: Tensor, v: Tensor) -> Any:
        return adjoint.grad(marked, argnums=(0, 1, 2))(x, w, v)

    args = [each.detach() for each in arguments()]
    expected = torch.func.grad(lambda *args: marked_plainly(*args), argnums=(0, 1, 2))(*args)
    compiler = Compiler(Options(target="native"), watching)
    captured = adjoint.capture(gradient, *args)
    program = compiler.program(captured.graph_module)
    actual = program(list(args))
    torch.testing.assert_close(tuple(actual), expected)
    (graph_module,) = seen
    tanhs = graph_module.graph.find_nodes(op="call_function", target=aten.tanh.default)
    assert len(tanhs) == 6
    assert len({run_of(node) for node in tanhs}) == 6


def marked_plainly(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    for _ in range(3):
        x = x + block(x, w, v)
    return (x * x).sum()


def test_a_number_is_saved_rather_than_what_it_is_a_size_of() -> None:
    def function(x: Tensor) -> Tensor:
        def inside(x: Tensor) -> Tensor:
            y = x.sin()
            return y.sum(0).expand(y.shape).exp()

        result: Tensor = checkpoint(inside, x, use_reentrant=False)
        return result.sum()

    made = recorded(function, leaf(3, 4), dynamic=True)
    tensors = [n for n in saved_nodes(made) if isinstance(n.meta["val"], Tensor)]
    assert [node.op for node in tensors] == ["placeholder"]


def test_values_outside_of_checkpoints_have_no_mark() -> None:
    graph = adjoint.capture(marked, *arguments()).graph_module.graph
    inside = [node for node in graph.nodes if region_of(node) is not None]
    assert {node.target for node in inside if is_recomputed(node)} == {
        aten.mm.default,
        aten.tanh.default,
    }
    assert not any(map(is_recomputed, set(graph.nodes) - set(inside)))


def test_each_recomputation_is_a_run_of_its_own() -> None:
    graph = adjoint.capture(marked, *arguments()).graph_module.graph
    runs = []
    for _ in range(3):
        runs.append({run_of(node) for node in graph.nodes} - {None})
        mark_as_recomputed(graph)
    assert all(len(each) == 3 for each in runs)
    assert all(one.isdisjoint(other) for one, other in itertools.combinations(runs, 2))
