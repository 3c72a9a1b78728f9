"""Transforms in one another, ours and `torch.func`'s in any order, against `torch.func` alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adjoint
from tests.parity import plain

func: Any = torch.func

Function = Callable[[Tensor], Tensor]


def _hvp(function: Any, primals: Any, tangents: Any) -> Any:
    return function(*primals), func.jvp(func.grad(function), primals, tangents)[1:]


def _value_and_grad(function: Any) -> Any:
    return lambda x: func.grad_and_value(function)(x)[::-1]


def _linearize(function: Any, x: Tensor) -> Any:
    return function(x), lambda along: func.jvp(function, (x,), (along,))[1]


# `torch.func.linearize` traces with make_fx, which takes no part in other transforms.
THEIRS: Any = SimpleNamespace(
    **{name: getattr(func, name) for name in ("grad", "vjp", "jvp", "jacrev", "jacfwd", "hessian")},
    vmap=func.vmap,
    hvp=_hvp,
    value_and_grad=_value_and_grad,
    linearize=_linearize,
)

SCALES = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)


def _value_times_gradient(f: Any, inner: Function, x: Tensor) -> Tensor:
    value, gradient = f.value_and_grad(lambda z: inner(z).sum())(x)
    return value * gradient  # type: ignore[no-any-return]


# From a function of vectors to another, by a transform of the namespace `f`.
LEVELS: dict[str, Callable[[Any, Function, Tensor], Any]] = {
    "grad": lambda f, inner, x: f.grad(lambda z: inner(z).sum())(x),
    "value_and_grad": _value_times_gradient,
    "vjp": lambda f, inner, x: f.vjp(inner, x)[1](x.sin())[0],
    "jvp": lambda f, inner, x: f.jvp(inner, (x,), (x.cos(),))[1],
    "linearize": lambda f, inner, x: f.linearize(inner, x)[1](x.cos()),
    "jacrev": lambda f, inner, x: f.jacrev(inner)(x).sum(0),
    "jacfwd": lambda f, inner, x: f.jacfwd(inner)(x) @ x,
    "hessian": lambda f, inner, x: f.hessian(lambda z: inner(z).sum())(x) @ x,
    "hvp": lambda f, inner, x: f.hvp(lambda z: inner(z).sum(), (x,), (x.sin(),))[1][0],
    "vmap": lambda f, inner, x: f.vmap(inner)(SCALES[:, None] * x).sum(0),
    "vmap over scales": lambda f, inner, x: f.vmap(lambda s: inner(s * x))(SCALES).sum(0),
    "vmap by columns": lambda f, inner, x: f.vmap(inner, in_dims=1, out_dims=1)(x.outer(SCALES))[
        :, 0
    ],
}

WEIGHT = torch.linspace(-1, 1, 9, dtype=torch.float64).view(3, 3)


def _written(x: Tensor) -> Tensor:
    y = x.sin()
    y[1:].mul_(x[:-1])
    return y * x


BODIES: list[Function] = [
    lambda x: x.sin() * x,
    lambda x: torch.tanh(WEIGHT @ x),
    lambda x: torch.softmax(x, 0) * x.exp(),
    lambda x: torch.where(x > 0, x**2, x.cos()),
    lambda x: x.cumsum(0) / (1 + x.square().sum()),
    lambda x: nn.functional.silu(x).outer(x).sum(1),
    _written,
]


def nested(choices: list[tuple[str, Any]], body: Function) -> Function:
    function = body
    for name, namespace in choices:
        function = _level(name, namespace, function)
    return function


def _level(name: str, namespace: Any, inner: Function) -> Function:
    return lambda x: LEVELS[name](namespace, inner, x)


def check(seed: int) -> None:
    draw = random.Random(seed)
    names = [draw.choice(list(LEVELS)) for _ in range(draw.choice([1, 2, 2, 3]))]
    spaces = [draw.choice([adjoint, adjoint, THEIRS]) for _ in names]
    body = draw.choice(BODIES)
    x = plain(3)
    mine = nested(list(zip(names, spaces, strict=True)), body)(x)
    theirs = nested([(name, THEIRS) for name in names], body)(x)
    torch.testing.assert_close(mine, theirs, msg=lambda said: f"{names}: {said}")


@pytest.mark.parametrize("seed", [*range(1, 11), 205, 280])
def test_random_nestings(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(11, 611))
def test_many_random_nestings(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("name", LEVELS)
def test_inside_a_batch_of_torchs(name: str) -> None:
    x = plain(2, 3)
    mine, theirs = (
        func.vmap(lambda z, f=f: LEVELS[name](f, BODIES[1], z))(x) for f in (adjoint, THEIRS)
    )
    torch.testing.assert_close(mine, theirs)


# Models -------------------------------------------------------------------------------------------


def test_gradients_of_each_sample() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    parameters, x = dict(module.named_parameters()), plain(5, 3)

    def loss(parameters: Any, z: Tensor) -> Tensor:
        return func.functional_call(module, parameters, (z,)).square().sum()  # type: ignore[no-any-return]

    wanted = func.vmap(func.grad(loss), in_dims=(None, 0))(parameters, x)
    for vmap in (func.vmap, adjoint.vmap):
        torch.testing.assert_close(
            vmap(adjoint.grad(loss), in_dims=(None, 0))(parameters, x), wanted
        )


def test_gradients_of_an_ensemble() -> None:
    modules = [nn.Linear(3, 2).double() for _ in range(4)]
    parameters, buffers = func.stack_module_state(modules)
    x = plain(5, 3)

    def loss(parameters: Any, buffers: Any) -> Tensor:
        return func.functional_call(modules[0], (parameters, buffers), (x,)).square().sum()  # type: ignore[no-any-return]

    wanted = func.vmap(func.grad(loss))(parameters, buffers)
    for vmap in (func.vmap, adjoint.vmap):
        torch.testing.assert_close(vmap(adjoint.grad(loss))(parameters, buffers), wanted)


def test_what_was_made_outside_is_called_inside() -> None:
    x = plain(3)
    pull_back, push_forward = adjoint.vjp(torch.sin, x)[1], adjoint.linearize(torch.sin, x)[1]
    for around in (adjoint, THEIRS):
        for inside in (lambda c: pull_back(c)[0], push_forward):
            gradient = around.grad(lambda c, inside=inside: inside(c).sin().sum())(x)
            wanted = func.grad(lambda c: (c * x.cos()).sin().sum())(x)
            torch.testing.assert_close(gradient, wanted)
            batched = around.vmap(inside)(x.expand(2, 3))
            torch.testing.assert_close(batched, (x * x.cos()).expand(2, 3))
