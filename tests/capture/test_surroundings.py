"""Global states of torch around a compiled function: anomaly mode, determinism, autocast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from tests.parity import ROUTES, Route, check, leaf


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def float64_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


AROUND: list[Callable[[], AbstractContextManager[Any]]] = [
    lambda: torch.autograd.set_detect_anomaly(True),
    deterministic,
    float64_by_default,
    torch.no_grad,
    torch.inference_mode,
    lambda: torch.autocast("cpu", torch.bfloat16),
]
NAMES = ["anomaly", "deterministic", "default dtype", "no_grad", "inference_mode", "autocast"]


def program(x: Tensor, y: Tensor) -> Any:
    z = x @ y
    filled = torch.empty(3).fill_(2.0)
    return (
        z.sin() * filled,
        torch.zeros(3).index_add(0, torch.tensor([0, 0, 1]), torch.ones(3)),
        z.t(),
    )


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("around", AROUND, ids=NAMES)
def test_a_program_under_a_global_state(
    around: Callable[[], AbstractContextManager[Any]], route: Route
) -> None:
    # Doubles are compared as such, so that under the default dtype nothing may be less precise.
    dtype = torch.float64 if around is float64_by_default else torch.float32
    with around():
        check(program, lambda: (leaf(3, 3, dtype=dtype), leaf(3, 3, dtype=dtype)), route)


def test_anomaly_mode_finds_the_nan() -> None:
    def bad(x: Tensor) -> Tensor:
        return (x * 0).sqrt().sum()

    x = leaf(3)
    captured = adjoint.capture(bad, x)
    with torch.autograd.set_detect_anomaly(True), pytest.raises(RuntimeError, match="nan values"):
        adjoint.run(captured, x).backward()


def test_a_nondeterministic_op_is_refused_where_eager_refuses_it() -> None:
    def program(x: Tensor) -> Tensor:
        return x.put_(torch.tensor([0, 0]), torch.ones(2).double(), accumulate=False)

    x = torch.zeros(3).double()
    captured = adjoint.capture(program, x)
    with deterministic():
        with pytest.raises(RuntimeError, match="deterministic"):
            program(x)
        with pytest.raises(RuntimeError, match="deterministic"):
            adjoint.run(captured, x)
    assert not x.any()


@pytest.mark.parametrize("route", ROUTES)
def test_modes_inside_the_program(route: Route) -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            low = x @ y
            with torch.autocast("cpu", enabled=False):
                high = x @ y
        with torch.no_grad():
            constant = x * 2
            with torch.enable_grad():
                recorded = y * 3
        return low, high, constant, recorded, x.detach() * y

    check(
        program, lambda: (leaf(3, 3, dtype=torch.float32), leaf(3, 3, dtype=torch.float32)), route
    )


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("depends", [False, True])
def test_views_made_without_grad(
    mode: Callable[[], AbstractContextManager[None]], depends: bool, route: Route
) -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        z = x * y
        with mode():
            part = z[1:]
            first, second = z.split(2)
            constant = part * 2
        doubled = part * 2
        others = (doubled.sin(), first.cos(), second.detach() * 2, torch.zeros_like(part) + 1)
        return (doubled, *others, constant, *([z.sin()] if depends else []))

    check(program, lambda: (leaf(4), leaf(4)), route)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("made_inside", [False, True])
def test_grad_is_not_enabled_in_inference_mode(made_inside: bool, route: Route) -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        with torch.enable_grad():
            product = x * y
        return product, product[1:], x[1:]

    def inputs() -> Any:
        with torch.inference_mode(made_inside):
            return leaf(3), leaf(3)

    with torch.inference_mode():
        check(program, inputs, route)
