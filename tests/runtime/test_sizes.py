"""Derivatives that hold for some sizes alone are built anew for others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint.rules.registry import VJPS

grad = torch.autograd.grad


@torch.library.custom_op("adjoint_tests::half", mutates_args=())
def half(x: Tensor) -> Tensor:
    return x / 2


@half.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


half.register_autograd(lambda ctx, cotangent: cotangent / 2)


@pytest.fixture
def looks_at_the_size() -> Iterator[list[int]]:
    """A rule that looks at a size holds for that size; lists the sizes that it was run for."""
    torch._dynamo.reset()
    op = torch.ops.adjoint_tests.half.default
    before = VJPS.get(op)
    seen: list[int] = []

    @adjoint.vjp_rule(op)
    def rule(cotangent: Tensor, out: Tensor, x: Tensor) -> Any:
        for size in (2, 5, 6):
            if x.shape[0] == size:
                seen.append(size)
                return (cotangent * (x.new_full((size,), 0.5)),)
        seen.append(0)
        return (cotangent / 2,)

    yield seen
    del VJPS[op]
    if before is not None:
        VJPS[op] = before


def halved(x: Tensor) -> Tensor:
    return half(x) * x  # type: ignore[no-any-return]


def check_sizes(compiled: Any, sizes: Sequence[int]) -> None:
    for size in sizes:
        x = torch.rand(size, dtype=torch.float64, requires_grad=True)
        (first,) = grad(compiled(x).sum(), x, create_graph=True)
        torch.testing.assert_close(first, x.detach())
        torch.testing.assert_close(grad(first.square().sum(), x)[0], 2 * x.detach())


def test_a_derivative_is_built_anew_for_other_sizes(looks_at_the_size: list[int]) -> None:
    compiled = torch.compile(halved, backend="adjoint", dynamic=True)
    check_sizes(compiled, (6, 5, 4, 7))
    assert {0, 5, 6} == set(looks_at_the_size)
    before = len(looks_at_the_size)
    check_sizes(compiled, (6, 5, 4, 7, 8, 9))
    assert len(looks_at_the_size) == before


def test_a_backward_is_built_anew_for_other_sizes(looks_at_the_size: list[int]) -> None:
    """What is saved was decided for sizes that the second derivative is not asked for with."""
    compiled = torch.compile(halved, backend="adjoint", dynamic=True)
    x, y = (torch.rand(n, dtype=torch.float64, requires_grad=True) for n in (6, 7))
    early = compiled(x), compiled(y)
    for result, given in zip(early, (x, y), strict=True):
        (first,) = grad(result.sum(), given, create_graph=True)
        torch.testing.assert_close(grad(first.square().sum(), given)[0], 2 * given.detach())


def test_after_many_sizes_eager_takes_over(
    looks_at_the_size: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adjoint.runtime.bridge.MAX_SIZE_VERSIONS", 2)
    compiled = torch.compile(halved, backend="adjoint", dynamic=True)
    check_sizes(compiled, (6, 5))
    x = torch.rand(4, dtype=torch.float64, requires_grad=True)
    with pytest.warns(
        adjoint.FallbackWarning,
        match=r"eager autograd takes over .* for sizes s\d+=4: .* made 2 times",
    ) as warned:
        result = compiled(x)
    assert {each.filename for each in warned} == {__file__}
    torch.testing.assert_close(grad(result.sum(), x)[0], x.detach())
