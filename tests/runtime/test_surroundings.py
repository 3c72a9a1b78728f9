"""What surrounds a compiled function and its backward matters as in eager: modes, hooks, writes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks

from tests.parity import leaf, plain
from tests.scenarios import (
    Compiler,
    Scenario,
    Scenarios,
    chain,
    check,
    compiled,
    fields,
    product,
    raised,
)

USES = Scenarios()
MORE = Scenarios()
"""Those that take long, or are like another."""

grad = torch.autograd.grad


# Anomaly mode -------------------------------------------------------------------------------------


def anomaly(check_nan: bool) -> Scenario:
    def scenario(compiled: Compiler) -> Any:
        def function(x: Tensor) -> Tensor:
            return (x * x).sqrt()

        x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with torch.autograd.set_detect_anomaly(True, check_nan=check_nan):
                out = compiled(function)(x)
                error = raised(lambda: (out * 0).sum().backward())
        # The line of the forward, for eager; that of the call, where one node is the whole graph.
        about = [str(each.message) for each in told if "Traceback of forward" in str(each.message)]
        return error, [__file__ in each for each in about], len(about)

    scenario.__name__ = f"anomalies_{check_nan}"
    return scenario


USES += [anomaly(True), anomaly(False)]


@USES
def an_anomaly_of_order_two(compiled: Compiler) -> Any:
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.set_detect_anomaly(True):
            out = compiled(lambda x: x.abs().pow(1.5))(x)
            (first,) = grad(out.sum(), x, create_graph=True)
            return first.detach(), raised(lambda: grad(first.sum(), x))


# What is saved ------------------------------------------------------------------------------------


@USES
def what_is_saved_is_unpacked(compiled: Compiler) -> Any:
    x, y, seen = leaf(3), leaf(3), []

    def unpack(value: Tensor) -> Tensor:
        seen.append("unpacked")
        return value / 2

    with saved_tensors_hooks(lambda tensor: tensor.detach() * 2, unpack):
        out = compiled(chain)(x, y)
    assert not seen
    first = grad(out[2], (x, y, out[0]), create_graph=True)
    return bool(seen), first, grad(sum(e.square().sum() for e in first), (x, y))  # type: ignore[arg-type]


@MORE
def what_is_saved_is_elsewhere(compiled: Compiler) -> Any:
    x, y = leaf(3), leaf(3)
    with save_on_cpu():
        out = compiled(chain)(x, y)
        first = grad(out[2], (x, y), create_graph=True)
    return first, grad(first[0].sum(), (x, y))


@USES
def hooks_on_what_is_saved_are_refused(compiled: Compiler) -> Any:
    x, y = leaf(3), leaf(3)
    run = compiled(product)
    with disable_saved_tensors_hooks("not here"):
        found = [grad(run(x, y).sum(), (x, y))]

        def hooked() -> Any:
            with saved_tensors_hooks(lambda t: t, lambda t: t):
                return run(x, y)

        found.append(raised(hooked))
    return found


@USES
def hooks_that_refuse(compiled: Compiler) -> Any:
    def refuse(tensor: Any) -> Any:
        raise KeyError("not this one")

    x, y = leaf(3), leaf(3)
    run = compiled(product)

    def forward() -> Any:
        with saved_tensors_hooks(refuse, lambda t: t):
            return run(x, y)

    with saved_tensors_hooks(lambda t: t, refuse):
        out = run(x, y)
    return raised(forward), raised(lambda: out.sum().backward()), fields(x, y)


@MORE
def hooks_that_unpack_no_tensor(compiled: Compiler) -> Any:
    x, y = leaf(3), leaf(3)
    nothing: Any = lambda tensor: "nothing"  # noqa: E731
    with saved_tensors_hooks(lambda t: t, nothing):
        out = compiled(product)(x, y)
    return raised(lambda: out.sum().backward())


# Modes --------------------------------------------------------------------------------------------


@contextmanager
def disabled() -> Iterator[None]:
    with torch.set_grad_enabled(False):
        yield


AROUND: list[Callable[[], AbstractContextManager[Any]]] = [
    torch.no_grad,
    torch.enable_grad,
    torch.inference_mode,
    disabled,
]


def under(around: Callable[[], AbstractContextManager[Any]]) -> Scenario:
    def scenario(compiled: Compiler) -> Any:
        x, y = leaf(3), leaf(3)
        run = compiled(chain)
        found: list[Any] = []
        for _ in range(2):
            with around():
                out = run(x, y)
            found.append([(e.detach().clone(), e.requires_grad, e.is_inference()) for e in out])
            found.append([raised(grad, e.sum(), x, retain_graph=True) for e in out])
            out = run(x, y)
            found.append([*grad(out[2], (x, y, out[0]))])
        return found

    scenario.__name__ = f"under_{around.__name__}"
    return scenario


def with_inside(around: Callable[[], AbstractContextManager[Any]]) -> Scenario:
    def scenario(compiled: Compiler) -> Any:
        def function(x: Tensor, y: Tensor) -> Any:
            first = x * y
            with around():
                held = first.exp()
            return first.sin(), held

        x, y = leaf(3), leaf(3)
        out = compiled(function)(x, y)
        found = [raised(grad, e.sum(), (x, y), retain_graph=True) for e in out]
        return found, [(e.requires_grad, e.is_inference(), e.is_leaf) for e in out]

    scenario.__name__ = f"{around.__name__}_inside"
    return scenario


USES += [under(each) for each in (torch.no_grad, torch.inference_mode)]
MORE += [under(each) for each in (torch.enable_grad, disabled)]
MORE += [with_inside(each) for each in AROUND if each is not disabled]


@USES
def an_input_made_under_inference_mode(compiled: Compiler) -> Any:
    with torch.inference_mode():
        y = plain(3)
    x = leaf(3)
    run = compiled(lambda x, y: x + y)
    times = compiled(torch.mul)
    return grad(run(x, y).sum(), x), raised(lambda: grad(times(x, y).sum(), x))


@MORE
def backward_under_no_grad(compiled: Compiler) -> Any:
    x, y = leaf(3), leaf(3)
    out = compiled(chain)(x, y)
    with torch.no_grad():
        out[2].backward()
    return fields(x, y)


@USES
def dual_numbers(compiled: Compiler) -> Any:
    x, y = leaf(3), leaf(3)
    run = compiled(chain, fullgraph=False)
    run(x, y)  # Dynamo compiles nothing while there are dual numbers.
    with forward_ad.dual_level():
        out = run(forward_ad.make_dual(x, y), y)
        found = [forward_ad.unpack_dual(each) for each in out]
        tangents = [each.tangent for each in found]
        again = grad(tangents[2], (x, y), allow_unused=True)
    return [each.primal.detach() for each in found], [e.detach() for e in tangents], again


@MORE
def dual_numbers_beside(compiled: Compiler) -> Any:
    """A level is open, and no input is a dual number."""
    x, y = leaf(3), leaf(3)
    run = compiled(product)
    with forward_ad.dual_level():
        out = run(x, y)
        return grad(out.sum(), (x, y)), forward_ad.unpack_dual(out).tangent


# Between forward and backward ---------------------------------------------------------------------


def changing(name: str, change: Callable[..., Any], programs: list[Callable[..., Any]]) -> Scenario:
    def scenario(compiled: Compiler) -> Any:
        found = []
        for program in programs:
            run = compiled(program)
            x, y = leaf(3), leaf(3)
            h, k = x * 2, y * 2
            out = run(h, k)
            found.append(raised(change, out, h, k))
            found.append(raised(grad, out.sum(), (x, y)))
        return found

    scenario.__name__ = name
    return scenario


# Each saves, in eager and compiled, one of: its result, its inputs, nothing.
SAVING: list[Callable[..., Any]] = [
    lambda x, y: (x + y).exp(),
    lambda x, y: x * y,
    lambda x, y: x + y,
    lambda x, y: (x + y).sigmoid(),
]


def quietly(out: Tensor, x: Tensor, y: Tensor) -> None:
    out.data.mul_(2)
    x.data.mul_(2)


def without_grad(out: Tensor, x: Tensor, y: Tensor) -> None:
    with torch.no_grad():
        out.mul_(2)


USES += [
    changing("a_result_is_written_to", lambda out, x, y: out.mul_(2).detach(), SAVING),
    changing("an_input_is_written_to", lambda out, x, y: x.mul_(2).detach(), SAVING),
    changing("another_input_is_written_to", lambda out, x, y: y.add_(2).detach(), SAVING),
]
MORE += [
    changing("data_is_written_to", quietly, SAVING),
    changing("a_result_is_written_to_without_grad", without_grad, SAVING),
    changing("a_result_is_detached", lambda out, x, y: out.detach_(), SAVING),
    changing("a_result_is_moved", lambda out, x, y: out.unsqueeze_(0).detach(), SAVING),
]


@USES
def a_leaf_is_written_to(compiled: Compiler) -> Any:
    x, y, found = leaf(3), leaf(3), []
    run = compiled(product)
    out = run(x, y)
    with torch.no_grad():
        x.add_(1)
    found.append(raised(lambda: grad(out.sum(), (x, y))))
    found.append(raised(lambda: x.add_(1)))
    return found, grad(run(x, y).sum(), (x, y))


@MORE
def a_leaf_is_an_optimizers(compiled: Compiler) -> Any:
    torch.manual_seed(0)
    layer = nn.Linear(3, 3).double()
    run, x, losses = compiled(layer), plain(4, 3), []
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        loss = run(x).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, list(layer.parameters())


@MORE
def requires_grad_is_switched_between_calls(compiled: Compiler) -> Any:
    x, y = leaf(3), leaf(3)
    run = compiled(chain)
    found = []
    for flags in ((True, True), (False, True), (True, False), (False, False)):
        x.requires_grad_(flags[0])
        y.requires_grad_(flags[1])
        out = run(x, y)
        found.append([each.requires_grad for each in out])
        wanted = [each for each in (x, y) if each.requires_grad]
        found.append(raised(grad, out[2], wanted))
    return found


@pytest.mark.parametrize("scenario", USES, ids=lambda each: each.__name__)
def test_uses(scenario: Scenario) -> None:
    check(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", MORE, ids=lambda each: each.__name__)
def test_more_uses(scenario: Scenario) -> None:
    check(scenario)


# Where we differ ----------------------------------------------------------------------------------


def test_a_result_that_is_written_to_and_other_results() -> None:
    """What is saved of a graph is looked at as one: all results raise what one would in eager."""

    def scenario(compiler: Compiler) -> Any:
        x, y = leaf(3), leaf(3)
        out = compiler(lambda x, y: (x.exp(), y.sin()))(x, y)
        out[0].mul_(2)
        return [raised(grad, e.sum(), (x, y), allow_unused=True) for e in out]

    assert scenario(lambda function: function)[0] == "RuntimeError"
    assert isinstance(scenario(lambda function: function)[1], tuple)
    assert compiled(scenario) == ["RuntimeError"] * 2


def test_what_is_detached_in_place_was_saved_all_the_same() -> None:
    """Eager refuses to use it; a custom function, as a graph is one, has the derivative."""

    def scenario(compiler: Compiler) -> Any:
        x, y = leaf(3), leaf(3)
        h = x * 2
        out = compiler(chain)(h, y)
        h.detach_()
        out[0].detach_()
        return raised(lambda: grad(out[2], (x, y)))

    torch.manual_seed(0)
    assert scenario(lambda function: function) == "RuntimeError"
    torch.manual_seed(0)
    x, y = leaf(3), leaf(3)
    torch.testing.assert_close(compiled(scenario), grad(chain(x * 2, y)[2], (x, y)))


def test_inputs_and_views_that_are_written_to_among_results() -> None:
    """What is computed from them after the write has its history by way of them."""

    def view(x: Tensor, y: Tensor) -> Any:
        h = (x * y)[1:]
        h.mul_(2)
        return h, h.exp()

    def write(x: Tensor, y: Tensor) -> Any:
        x.mul_(y)
        return x, x.exp()

    x, y = leaf(3), leaf(3)

    def scenario(compiler: Compiler) -> Any:
        found = []
        for program in (view, write):
            first, second = compiler(program)(x * 2, y)
            found += grad(second.sum(), first, retain_graph=True)
            found += grad(second.sum(), (x, y))
        return found

    torch.testing.assert_close(compiled(scenario), scenario(lambda function: function))
