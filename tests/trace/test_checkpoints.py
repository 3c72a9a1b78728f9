from __future__ import annotations

import functools
import itertools
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import adjoint
from adjoint.capture.dynamo import capture_graph
from adjoint.errors import CaptureError
from adjoint.graph.captured import CapturedProgram
from adjoint.graph.metadata import CheckpointRegion, region_of
from adjoint.trace.checkpoints import CheckpointRegions
from tests.parity import ROUTES, Route, Row, Table, leaf

Pair: TypeAlias = tuple[Tensor, Tensor]
aten = torch.ops.aten

TABLE = Table()


def leaves() -> Pair:
    return leaf(3, 3), leaf(3, 3)


def block(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y).tanh().sin()


def save_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    saved = op is aten.mm.default
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


selective = functools.partial(create_selective_checkpoint_contexts, save_products)


# Checkpoints --------------------------------------------------------------------------------------


@TABLE(leaves)
def one_checkpoint(x: Tensor, y: Tensor) -> Any:
    return checkpoint(block, x, y, use_reentrant=False) * 2


def old_form(x: Tensor, y: Tensor) -> Any:
    return checkpoint(block, x, y, use_reentrant=True) * 2


@TABLE(leaves)
def chosen_ops(x: Tensor, y: Tensor) -> Any:
    return checkpoint(block, x, y, use_reentrant=False, context_fn=selective) * 2


@TABLE(leaves)
def one_after_another(x: Tensor, y: Tensor) -> Any:
    x = checkpoint(block, x, y, use_reentrant=False)
    return checkpoint(block, x, y, use_reentrant=False) + x


@TABLE(leaves)
def one_in_another(x: Tensor, y: Tensor) -> Any:
    def outer(x: Tensor, y: Tensor) -> Any:
        return checkpoint(block, x.cos(), y, use_reentrant=False).exp()

    return checkpoint(outer, x, y, use_reentrant=False)


@TABLE(leaves)
def random_numbers_in_a_checkpoint(x: Tensor, y: Tensor) -> Any:
    def drop(x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(x, 0.5).sin()

    return checkpoint(drop, x, use_reentrant=False) * y


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("row", TABLE, ids=str)
def test_checkpoints_are_eagers(row: Row, route: Route) -> None:
    row.check(route)


@pytest.mark.parametrize("route", ROUTES)
def test_the_old_form_is_eagers(route: Route) -> None:
    gradients = []
    for compiled in (False, True):
        torch.manual_seed(0)
        x, y = leaves()
        if not compiled:
            result = old_form(x, y)
        elif route is Route.DIRECT:
            result = adjoint.run(adjoint.capture(old_form, x, y), x, y)
        else:
            result = adjoint.compile(old_form, fullgraph=True)(x, y)
        # Its derivative in eager torch can be taken in no other way.
        result.sum().backward()
        gradients.append((result, x.grad, y.grad))
    torch.testing.assert_close(gradients[1], gradients[0])


def captured_by(route: Route, function: Any) -> CapturedProgram:
    if route is Route.DIRECT:
        return adjoint.capture(function, *leaves())
    found: list[CapturedProgram] = []

    def backend(graph_module: torch.fx.GraphModule, examples: Any) -> Any:
        found.append(capture_graph(graph_module, examples))
        return graph_module.forward

    torch._dynamo.reset()
    compiled: Any = torch.compile(function, backend=backend, fullgraph=True)
    compiled(*leaves())
    return found[0]


def marks(captured: CapturedProgram) -> dict[str, CheckpointRegion | None]:
    nodes = captured.graph_module.graph.find_nodes
    calls = (aten.mm, aten.tanh, aten.sin, aten.mul, aten.cos, aten.exp, aten.add)
    return {
        str(node.target): region_of(node)
        for packet in calls
        for overload in packet.overloads()
        for node in nodes(op="call_function", target=getattr(packet, overload))
    }


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("function", [one_checkpoint, old_form])
def test_the_nodes_of_a_checkpoint_are_marked(function: Any, route: Route) -> None:
    inside = CheckpointRegion(0)
    assert marks(captured_by(route, function)) == {
        "aten.mm.default": inside,
        "aten.tanh.default": inside,
        "aten.sin.default": inside,
        "aten.mul.Tensor": None,
    }


@pytest.mark.parametrize("route", ROUTES)
def test_the_policy_is_part_of_the_mark(route: Route) -> None:
    assert marks(captured_by(route, chosen_ops)) == {
        "aten.mm.default": CheckpointRegion(0, "MUST_SAVE"),
        "aten.tanh.default": CheckpointRegion(0, "PREFER_RECOMPUTE"),
        "aten.sin.default": CheckpointRegion(0, "PREFER_RECOMPUTE"),
        "aten.mul.Tensor": None,
    }


@pytest.mark.parametrize("route", ROUTES)
def test_each_checkpoint_is_a_region_of_its_own(route: Route) -> None:
    graph = captured_by(route, one_after_another).graph_module.graph
    products = graph.find_nodes(op="call_function", target=aten.mm.default)
    first, second = (region_of(node) for node in products)
    assert first is not None
    assert second is not None
    assert first != second


@pytest.mark.parametrize("route", ROUTES)
def test_the_inner_of_two_checkpoints_marks(route: Route) -> None:
    found = marks(captured_by(route, one_in_another))
    assert found["aten.cos.default"] == found["aten.exp.default"]
    assert found["aten.mm.default"] not in (None, found["aten.cos.default"])


def test_a_checkpoint_around_the_capture_is_not_the_programs() -> None:
    found: list[CapturedProgram] = []

    def run(x: Tensor, y: Tensor) -> Tensor:
        found.append(adjoint.capture(block, x, y))
        return block(x, y)

    checkpoint(run, *leaves(), use_reentrant=False)
    assert set(marks(found[0]).values()) == {None}


# Hooks on saved tensors ---------------------------------------------------------------------------


def doubled_when_saved(x: Tensor, y: Tensor) -> Any:
    """The hooks change the gradient, so that it shows whether they ran."""
    with saved_tensors_hooks(lambda t: t.detach() * 2, lambda t: t):
        z = x * y
    return z * y


def test_hooks_of_the_program_are_kept() -> None:
    row = Table()
    row(leaves)(doubled_when_saved)
    row[0].check(Route.DIRECT)
    marked = adjoint.capture(doubled_when_saved, *leaves()).graph_module.graph.nodes
    assert [("hooks" in node.meta) for node in marked if node.target is aten.mul.Tensor] == [
        True,
        False,
    ]


@pytest.mark.parametrize("route", ROUTES)
def test_hooks_of_the_caller_see_what_is_saved(route: Route) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).sin()

    def packed(function: Any) -> int:
        count = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal count
            count += 1
            return tensor

        x, y = leaves()
        with saved_tensors_hooks(pack, lambda t: t):
            if route is Route.DIRECT and function is not program:
                adjoint.run(function, x, y)
            else:
                function(x, y)
        return count

    torch._dynamo.reset()
    compiled: Any = adjoint.compile(program)
    if route is Route.DIRECT:
        compiled = adjoint.capture(program, *leaves())
    else:
        compiled(*leaves())
    assert packed(program) == 3
    # The product is computed again, so that it need not be saved.
    assert packed(compiled) == (3 if route is Route.DIRECT else 2)


def test_regions_begun_by_hand() -> None:
    regions = CheckpointRegions()
    assert regions.current() is None
    regions.enter()
    assert regions.current() == CheckpointRegion(0)
    regions.enter()
    assert regions.current() == CheckpointRegion(1)
    regions.leave()
    assert regions.current() == CheckpointRegion(0)
    regions.leave()
    assert regions.current() is None
    assert regions.hooks() is None


# Marks that cannot be followed --------------------------------------------------------------------


def selecting(name: str, selected: Any = aten.mm.default) -> Any:
    """Contexts whose policy is `name` for one operator, and a preference for the others."""

    def decide(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy[name] if op is selected else CheckpointPolicy.PREFER_RECOMPUTE

    return functools.partial(create_selective_checkpoint_contexts, decide)


def run_through(route: Route, function: Any, *args: Tensor) -> None:
    if route is Route.DIRECT:
        adjoint.capture(function, *args)
        return
    torch._dynamo.reset()
    compiled: Any = torch.compile(function, backend="adjoint", fullgraph=True)
    compiled(*args)


def refusal_of(route: Route, function: Any, *args: Tensor) -> CaptureError:
    with pytest.raises(CaptureError) as caught:
        run_through(route, function, *args)
    assert caught.value.source is not None
    assert caught.value.source.file == __file__
    return caught.value


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("outer", "inner"),
    [*itertools.permutations(("MUST_RECOMPUTE", "MUST_SAVE", "MUST_CPU_OFFLOAD"), 2)],
)
def test_policies_that_contradict_each_other(route: Route, outer: str, inner: str) -> None:
    if not {outer, inner} <= {each.name for each in CheckpointPolicy}:
        pytest.skip("this torch has no such policy")

    def within(x: Tensor, y: Tensor) -> Any:
        contexts = selecting(inner)
        return checkpoint(block, x, y, use_reentrant=False, context_fn=contexts).sin()

    def function(x: Tensor, y: Tensor) -> Any:
        return checkpoint(within, x, y, use_reentrant=False, context_fn=selecting(outer)).sum()

    error = refusal_of(route, function, *leaves())
    assert inner in str(error)
    assert outer in str(error)
    assert "aten.mm.default in nested checkpoints" in str(error)
    assert error.source is not None
    assert error.source.text.strip() == "return (x @ y).tanh().sin()"


@pytest.mark.parametrize("route", ROUTES)
def test_policies_that_agree_or_prefer(route: Route) -> None:
    def within(x: Tensor, y: Tensor) -> Any:
        contexts = selecting("MUST_SAVE")
        return checkpoint(block, x, y, use_reentrant=False, context_fn=contexts).sin()

    for outer in ("MUST_SAVE", "PREFER_RECOMPUTE"):

        def function(x: Tensor, y: Tensor, outer: str = outer) -> Any:
            return checkpoint(within, x, y, use_reentrant=False, context_fn=selecting(outer)).sum()

        run_through(route, function, *leaves())


NOTED: list[int] = []


@torch.library.custom_op("adjoint_checkpoints::note", mutates_args=())
def note(x: Tensor) -> None:
    NOTED.append(x.numel())


@note.register_fake
def _(x: Tensor) -> None:
    return None


def test_effects_are_not_marked_to_happen_twice() -> None:
    def inside(x: Tensor) -> Tensor:
        torch.ops.adjoint_checkpoints.note(x)
        return x.sin().exp()

    def function(x: Tensor, name: str) -> Any:
        contexts = selecting(name, torch.ops.adjoint_checkpoints.note.default)
        return checkpoint(inside, x, use_reentrant=False, context_fn=contexts).sum()

    error = refusal_of(Route.DIRECT, lambda x: function(x, "MUST_RECOMPUTE"), leaf(3))
    assert "it has effects, which would happen twice" in str(error)
    run_through(Route.DIRECT, lambda x: function(x, "PREFER_RECOMPUTE"), leaf(3))
