"""Gradients as a user asks for them: accumulated, again, of some results, for some inputs."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from tests.parity import leaf, plain
from tests.scenarios import Compiler, Scenario, Scenarios, chain, check, fields, product, raised

USES = Scenarios()
MORE = Scenarios()
"""Those that take long, or are like another."""

grad = torch.autograd.grad


# Accumulation -------------------------------------------------------------------------------------


@USES
def several_backwards_accumulate(compiled: Compiler) -> Any:
    x, y, found = leaf(3), leaf(3), []
    run = compiled(product)
    for _ in range(3):
        run(x, y).sum().backward()
        assert x.grad is not None
        found.append((x.grad.clone(), x.grad._version))
    return found, fields(x, y)


@USES
def one_field_stays_one_tensor(compiled: Compiler) -> Any:
    """In eager the second backward adds to the tensor that the first one left."""
    x, y = leaf(3), leaf(3)
    run = compiled(product)
    run(x, y).sum().backward()
    held = x.grad
    run(x, y).sum().backward()
    return held is x.grad, fields(x, y)


@USES
def a_field_is_nobody_elses(compiled: Compiler) -> Any:
    """Not even where a gradient is the cotangent itself."""
    found = []
    run = compiled(lambda x, y: (x + y, x.sum() + y))
    for place in range(2):
        x, y = leaf(3), leaf(3)
        cotangent = plain(3)
        run(x, y)[place].backward(cotangent)
        assert x.grad is not None
        assert y.grad is not None
        x.grad.mul_(7)
        y.grad.mul_(3)
        found.append([x.grad, y.grad, cotangent])
    return found


@USES
def gradients_that_are_returned_are_nobody_elses(compiled: Compiler) -> Any:
    x, y = leaf(3), leaf(3)
    out = compiled(lambda x, y: (x + y, x * y))(x, y)
    cotangents = [plain(3), plain(3)]
    found = [each.clone() for each in grad(out, (x, y), cotangents, retain_graph=True)]
    for each in grad(out, (x, y), cotangents, retain_graph=True):
        each.zero_()
    return found, cotangents, grad(out, (x, y), cotangents)


@MORE
def with_create_graph_a_field_has_a_history(compiled: Compiler) -> Any:
    x, y = leaf(3), leaf(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of a cycle between x and its gradient.
        compiled(product)(x, y).sum().backward(create_graph=True)
    assert x.grad is not None
    first = x.grad
    x.grad = y.grad = None
    (second,) = grad(first.sum(), y)
    return first.detach(), first.requires_grad, second


@MORE
def how_a_field_lies_in_memory(compiled: Compiler) -> Any:
    """A field has the strides of its leaf."""
    found = []
    run = compiled(lambda x: (x.transpose(0, 1) * 2).sin())
    for x in (leaf(3, 4), leaf(4, 3).detach().t().requires_grad_()):
        run(x).sum().backward()
        assert x.grad is not None
        found.append((x.grad, x.grad.stride()))
    return found


@MORE
def fields_that_were_there_before(compiled: Compiler) -> Any:
    x, y = leaf(3), leaf(3)
    x.grad, y.grad = torch.ones_like(x), torch.zeros_like(y)
    held = x.grad
    compiled(product)(x, y).sum().backward()
    return held is x.grad, fields(x, y)


@MORE
def parameters_that_are_used_twice_and_never(compiled: Compiler) -> Any:
    torch.manual_seed(0)
    layer, never = nn.Linear(3, 3).double(), leaf(3)
    x = plain(2, 3)
    compiled(lambda x, unused: layer(layer(x)).tanh())(x, never).sum().backward()
    return fields(layer.weight, layer.bias, never)


# Twice --------------------------------------------------------------------------------------------


@USES
def twice_through_a_graph_that_is_retained(compiled: Compiler) -> Any:
    x, y = leaf(3), leaf(3)
    out = compiled(chain)(x, y)
    for _ in range(3):
        out[2].backward(retain_graph=True)
    out[1].sum().backward()
    return fields(x, y)


@USES
def twice_through_a_graph_that_is_not(compiled: Compiler) -> Any:
    found = []
    for function in (product, lambda x, y: x * y, lambda x, y: x.exp() / y):
        x, y = leaf(3), leaf(3)
        out = compiled(function)(x, y).sum()
        out.backward()
        found.append((raised(out.backward), fields(x, y)))
    return found


@USES
def another_result_of_a_graph_that_is_gone(compiled: Compiler) -> Any:
    def function(x: Tensor, y: Tensor) -> Any:
        h = (x * y).exp()
        return h.sin(), h.cos()

    x, y = leaf(3), leaf(3)
    one, other = compiled(function)(x, y)
    one.sum().backward()
    return raised(lambda: other.sum().backward()), fields(x, y)


@USES
def twice_at_order_two(compiled: Compiler) -> Any:
    x, y = leaf(3), leaf(3)
    (first,) = grad(compiled(product)(x, y).sum(), x, create_graph=True)
    again = first.square().sum()
    found = [grad(again, (x, y), retain_graph=True), grad(again, (x, y))]
    return found, raised(lambda: grad(again, (x, y)))


@USES
def memory_of_saved_tensors_goes_after_backward(compiled: Compiler) -> Any:
    """Though the result, and its node, are still held."""
    x, alive = leaf(3), []

    def pack(tensor: Tensor) -> Any:
        class Held:
            value = tensor

        held = Held()
        alive.append(weakref.ref(held))
        return held

    with saved_tensors_hooks(pack, lambda held: held.value):
        out = compiled(product)(x, x.cos())
    before = all(each() is not None for each in alive)
    out.sum().backward()
    gc.collect()
    return bool(alive), before, [each() for each in alive if each() is not None]


# What is asked for --------------------------------------------------------------------------------


@USES
def for_some_inputs_only(compiled: Compiler) -> Any:
    x, y, other = leaf(3), leaf(3), leaf(3)
    out = compiled(chain)(x, y)
    torch.autograd.backward(out[2], inputs=[y], retain_graph=True)
    found = fields(x, y)
    torch.autograd.backward(out[2], inputs=[out[0]], retain_graph=True)
    found += fields(x, y)
    out[2].backward(inputs=[x, y], retain_graph=True)
    refused = [
        raised(torch.autograd.backward, out[2], inputs=each, retain_graph=True)
        for each in ([], [other], out[2], [plain(3)])
    ]
    return found, refused, fields(x, y, other)


@USES
def for_inputs_that_are_not_used(compiled: Compiler) -> Any:
    x, y, z = leaf(3), leaf(3), leaf(3)
    run = compiled(lambda x, y, z: ((x * y).sin(), z * 2))
    return [
        raised(lambda: grad(run(x, y, z)[0].sum(), (x, z))),
        grad(run(x, y, z)[0].sum(), (x, z), allow_unused=True),
        grad(run(x, y, z)[0].sum(), (x, z), materialize_grads=True),
        raised(
            lambda: grad(run(x, y, z)[0].sum(), (x, z), allow_unused=False, materialize_grads=True)
        ),
        grad(run(x, y, z)[1].sum(), (x, z), materialize_grads=True, create_graph=True),
    ]


@USES
def of_several_results(compiled: Compiler) -> Any:
    def function(x: Tensor, y: Tensor) -> Any:
        h = x * y
        return h.sum(), h.sin().sum(), h.exp()

    x, y = leaf(3), leaf(3)
    out = compiled(function)(x, y)
    return [
        grad(out[:2], (x, y), retain_graph=True),
        grad(out, (x, y), (None, None, plain(3)), retain_graph=True),
        grad(out, (x, y), (plain(), None, plain(3)), retain_graph=True),
        raised(lambda: grad(out, (x, y), retain_graph=True)),
        raised(lambda: grad(out, (x, y), (None, None, plain(2)), retain_graph=True)),
        raised(lambda: grad(out[2:], (x, y), (plain(3).float(),), retain_graph=True)),
        raised(lambda: grad(out, (x, y), (None, None), retain_graph=True)),
        raised(lambda: torch.autograd.backward(out, retain_graph=True)),
        raised(lambda: grad(out[0], x.detach(), retain_graph=True)),
        raised(lambda: grad(out[2].detach().sum(), x, retain_graph=True)),
    ]


@MORE
def one_result_given_twice(compiled: Compiler) -> Any:
    x, y = leaf(3), leaf(3)
    out = compiled(chain)(x, y)
    return grad([out[2], out[2], out[0].sum()], [x, out[0], x])


@USES
def batches_of_cotangents(compiled: Compiler) -> Any:
    x, y = leaf(3), leaf(3)
    out = compiled(product)(x, y)
    directions = torch.eye(3, dtype=torch.float64)
    found = grad(out, (x, y), directions, is_grads_batched=True, create_graph=True)
    return found, grad(sum(each.square().sum() for each in found), (x, y))  # type: ignore[arg-type]


@USES
def batches_of_cotangents_of_stages(compiled: Compiler) -> Any:
    x, y = leaf(3), leaf(3)
    out = compiled(chain)(x, y)
    given = (torch.eye(3, dtype=torch.float64), torch.arange(3.0, dtype=torch.float64))
    return grad((out[1], out[2]), (x, y, out[0]), given, is_grads_batched=True)


@USES
def with_hooks_around_batches(compiled: Compiler) -> Any:
    x, y, seen = leaf(3), leaf(3), []
    out = compiled(product)(x, y)
    out.register_hook(lambda gradient: seen.append(tuple(gradient.shape)))
    out.register_hook(lambda gradient: gradient * 2)
    directions = torch.eye(3, dtype=torch.float64)
    return grad(out, (x, y), directions, is_grads_batched=True), seen


@MORE
def jacobians_and_hessians(compiled: Compiler) -> Any:
    x, y = plain(3), plain(3)
    run = compiled(product)
    functional = torch.autograd.functional
    return [
        functional.jacobian(run, (x, y)),
        functional.jacobian(run, (x, y), vectorize=True),
        functional.hessian(lambda x, y: run(x, y).sum(), (x, y)),
        functional.vhp(lambda x, y: run(x, y).sum(), (x, y), (y, x)),
        functional.jvp(run, (x, y), (y, x)),
    ]


@pytest.mark.parametrize("scenario", USES, ids=lambda each: each.__name__)
def test_uses(scenario: Scenario) -> None:
    check(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", MORE, ids=lambda each: each.__name__)
def test_more_uses(scenario: Scenario) -> None:
    check(scenario)
