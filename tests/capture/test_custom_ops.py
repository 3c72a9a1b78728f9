from __future__ import annotations

from itertools import pairwise
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint.graph.descriptors import EffectToken, EffectTokenOut
from adjoint.graph.operations import in_order, on_copies
from tests.effects import effectful
from tests.parity import ROUTES, Route, Row, Table, check, leaf, plain

Pair: TypeAlias = tuple[Tensor, Tensor]

TABLE = Table()


@torch.library.custom_op("adjoint_test_ops::scaled", mutates_args=())
def scaled(x: Tensor, by: float) -> Tensor:
    return x * by


@scaled.register_fake
def _(x: Tensor, by: float) -> Tensor:
    return torch.empty_like(x)


def _save(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    x, ctx.by = inputs
    ctx.save_for_backward(x)


# Wrong on purpose, so that it shows whose derivative is taken.
scaled.register_autograd(
    lambda ctx, cotangent: (cotangent * ctx.by * 7 * ctx.saved_tensors[0], None),
    setup_context=_save,
)


@torch.library.custom_op("adjoint_test_ops::halves", mutates_args=())
def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[:1] * 1, x[1:] * 1


@halves.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x[:1]), torch.empty_like(x[1:])


# Ops write to `.data`: how often they do so within does not show in a version then.  (It would in
# torch 2.13, and not in 2.11, whose ops run where autograd does not look.)


@torch.library.custom_op("adjoint_test_ops::bump", mutates_args={"x"})
def bump(x: Tensor, y: Tensor) -> Tensor:
    x.data.add_(y)
    return y * 2


@bump.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return torch.empty_like(y)


@torch.library.custom_op("adjoint_test_ops::bump_all", mutates_args={"xs", "z"})
def bump_all(xs: list[Tensor], y: Tensor, z: Tensor | None = None) -> None:
    for x in xs:
        x.data.add_(y)
    if z is not None:
        z.data.zero_()


@bump_all.register_fake
def _(xs: list[Tensor], y: Tensor, z: Tensor | None = None) -> None:
    return None


LOG: list[float] = []


@torch.library.custom_op("adjoint_test_ops::note", mutates_args=())
def note(x: Tensor) -> None:
    LOG.append(float(x.sum()))


@note.register_fake
def _(x: Tensor) -> None:
    return None


@torch.library.custom_op("adjoint_test_ops::counted", mutates_args=())
def counted(x: Tensor) -> Tensor:
    LOG.append(-1.0)
    return x * len(LOG)


@counted.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


effectful(torch.ops.adjoint_test_ops.note.default)
effectful(torch.ops.adjoint_test_ops.counted.default)


def leaves() -> Pair:
    return leaf(3), leaf(3)


def plains() -> Pair:
    return plain(3), plain(3)


@TABLE(leaves, order=2)
def its_own_derivative(x: Tensor, y: Tensor) -> Any:
    return scaled(x * y, 2.0) * 3


@TABLE(leaves)
def without_a_derivative(x: Tensor, y: Tensor) -> Any:
    first, second = halves(x.detach())
    return first * y, second


@TABLE(leaves)
def through_torch_ops(x: Tensor, y: Tensor) -> Any:
    return torch.ops.adjoint_test_ops.scaled(x, by=2.0) * y


@TABLE(plains)
def writes_to_an_input(x: Tensor, y: Tensor) -> Any:
    return bump(x, y)


@TABLE(plains)
def writes_to_a_view(x: Tensor, y: Tensor) -> Any:
    doubled = bump(x[1:], y[1:])
    return x * 2, doubled


@TABLE(plains)
def writes_to_an_intermediate(x: Tensor, y: Tensor) -> Any:
    z = x * 2
    bump(z, y)
    return z


@TABLE(leaves)
def writes_under_no_grad(x: Tensor, y: Tensor) -> Any:
    z = x * 1
    with torch.no_grad():
        w = bump(z.detach(), y)
    return z * y, w


@TABLE(plains)
def writes_to_a_list(x: Tensor, y: Tensor) -> Any:
    bump_all([x, y], torch.ones(3, dtype=torch.float64))
    return x * y


@TABLE(plains)
def writes_to_an_optional_argument(x: Tensor, y: Tensor) -> Any:
    bump_all([x], y.clone(), y)
    return x + y


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("row", TABLE, ids=str)
def test_custom_ops_are_eagers(row: Row, route: Route) -> None:
    row.check(route)


def test_a_writing_op_runs_on_copies() -> None:
    graph = adjoint.capture(writes_to_an_input, *plains()).graph_module.graph
    assert graph.find_nodes(op="call_function", target=on_copies)


# Effects ------------------------------------------------------------------------------------------


def notes_in_order(x: Tensor) -> Any:
    note(x)
    y = counted(x) + 1
    note(y)
    counted(x)  # its result is not used, but it counts
    return y, counted(y)


@pytest.mark.parametrize("route", ROUTES)
def test_effects_happen_once_and_in_order(route: Route) -> None:
    x = torch.arange(3.0)
    LOG.clear()
    expected = notes_in_order(x)
    log = list(LOG)
    if route is Route.DIRECT:
        captured = adjoint.capture(notes_in_order, x)
        LOG.clear()
        actual = adjoint.run(captured, x)
    else:
        torch._dynamo.reset()
        compiled = adjoint.compile(notes_in_order, fullgraph=True)
        LOG.clear()
        actual = compiled(x)
    assert log == LOG
    torch.testing.assert_close(actual, expected)


def test_a_token_goes_from_effect_to_effect() -> None:
    captured = adjoint.capture(notes_in_order, torch.arange(3.0))
    assert any(isinstance(each, EffectToken) for each in captured.inputs)
    assert any(isinstance(each, EffectTokenOut) for each in captured.outputs)
    calls = captured.graph_module.graph.find_nodes(op="call_function", target=in_order)
    assert len(calls) == 5
    for before, after in pairwise(calls):
        assert after.args[0].args[0] is before


# Ops of torch that are seldom pure ---------------------------------------------------------------


def add_to_both(x: Tensor, y: Tensor) -> Tensor:
    torch._foreach_add_([x, y], 1.0)
    return x * y


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.mul(x, y, out=torch.empty(3, dtype=x.dtype)),
        lambda x, y: torch.sort(x, out=(y, torch.empty(3, dtype=torch.int64)))[0] * 1,
        add_to_both,
    ],
)
def test_out_arguments_and_lists(function: Any, route: Route) -> None:
    check(function, plains, route)
