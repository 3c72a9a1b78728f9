"""Inputs that share memory, in every way that they can."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint.graph.descriptors import Argument, SyntheticBase, ViewBase
from tests.parity import Route, check, grown, leaf, plain

# How two or three inputs may share memory.


def same_twice(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    x = make(3, 4)
    return x, x


def base_and_view(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    base = make(3, 4)
    return base, base[1]


def view_and_base(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    base = make(3, 4)
    return base[:, 1], base


def disjoint_views(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    base = make(3, 4)
    return base[0], base[1]


def overlapping_views(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    base = make(3, 4)
    return base[:2], base.t()[1:3]


def equal_views(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    base = make(3, 4)
    return base[1:], base[1:]


def views_of_a_transposed_base(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    base = make(3, 4).t().detach()
    base.requires_grad_(make is leaf)
    base = base * 1 if make is grown else base
    return base[0], base[:, 1]


def base_and_detached(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    base = make(3, 4)
    return base, base.detach()


def views_of_detached(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    base = make(3, 4)
    return base[1], base.detach()[:, 1]


def base_and_data(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    base = make(3, 4)
    return base, base.data


def two_detached(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    base = make(3, 4)
    return base.detach(), base.detach()[1:]


def two_leaves_over_one_memory(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    base = plain(3, 4)
    return (
        base[1].detach().requires_grad_(make is not plain),
        base.detach().requires_grad_(make is not plain),
    )


def view_without_grad(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    base = make(3, 4)
    with torch.no_grad():
        return base, base[1:]


def views_without_grad(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    base = make(3, 4)
    with torch.no_grad():
        return base[:2], base[1:]


def mixed_bases(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    base = make(3, 4)
    other = base.detach()
    return base[1], base[:, 1], other[1:]


def different_dtypes(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    base = make(3, 4)
    return base, base.detach().view(torch.int64)


def different_dtype_sizes(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    base = make(3, 4)
    return base[1], base.detach().view(torch.int32)[:, 2:6]


def complex_and_real(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    base = make(3, 4, dtype=torch.complex128)
    return base, torch.view_as_real(base)[1]


def with_gaps(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    base = make(3, 8)[:, ::2].detach()
    return base, base.detach()[1:]


def set_on_one_storage(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    base = make(3, 4)
    other = torch.empty(0, dtype=base.dtype).set_(base.untyped_storage(), 2, (2, 4), (4, 1))
    return base, other


def three_of_one_memory(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    base = make(3, 4)
    return base, base.detach(), base[2]


def duplicate_and_view(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    base = make(3, 4)
    return base, base, base[1:]


def expanded(make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    base = make(1, 4)
    return base, base.expand(3, 4)


SHARING: list[Callable[..., tuple[Tensor, ...]]] = [
    same_twice,
    base_and_view,
    view_and_base,
    disjoint_views,
    overlapping_views,
    equal_views,
    views_of_a_transposed_base,
    base_and_detached,
    views_of_detached,
    base_and_data,
    two_detached,
    two_leaves_over_one_memory,
    view_without_grad,
    views_without_grad,
    mixed_bases,
    different_dtypes,
    different_dtype_sizes,
    complex_and_real,
    with_gaps,
    set_on_one_storage,
    three_of_one_memory,
    duplicate_and_view,
    expanded,
]

# What a function may do with them.


def reads(x: Tensor, y: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
    return x.sin(), y.double().cos(), *more


def writes_the_first(x: Tensor, y: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
    before = y * 2
    x.mul_(3)
    return before, y * 1, x.sum()


def writes_the_last(*inputs: Tensor) -> tuple[Tensor, ...]:
    inputs[-1].add_(1)
    return tuple(each * 2 for each in inputs)


def writes_both(x: Tensor, y: Tensor, *more: Tensor) -> Tensor:
    x.mul_(2)
    y.add_(1)
    x.sub_(3)
    return x.sum() + y.double().sum()


def writes_without_grad(x: Tensor, y: Tensor, *more: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        x.mul_(2)
        y.add_(1)
    return x * 2, y * 2


def writes_views(x: Tensor, y: Tensor, *more: Tensor) -> tuple[Tensor, Tensor]:
    x.view(-1)[1:3].mul_(2)
    seen = y[..., 0]
    x[..., 0].add_(1)
    return seen * 1, y.sum()


def writes_views_without_grad(x: Tensor, y: Tensor, *more: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        seen = y[..., 0]
        x[..., 0].add_(1)
    return seen * 1, y.sum()


def returns_them(x: Tensor, y: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
    return x, y, x.view(-1), y[..., :1], x + y.sum()


def writes_and_returns_them(x: Tensor, y: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
    x.add_(1)
    return y, x, x[..., 0], y.view_as(y)


def copies_one_to_the_other(x: Tensor, y: Tensor, *more: Tensor) -> Tensor:
    x.copy_(y.flatten()[0])
    return y.sum()


USES: list[Callable[..., Any]] = [
    reads,
    writes_the_first,
    writes_the_last,
    writes_both,
    writes_without_grad,
    writes_views,
    writes_views_without_grad,
    returns_them,
    writes_and_returns_them,
    copies_one_to_the_other,
]


def is_known_to_differ(sharing: Any, use: Any, make: Any) -> bool:
    """Eager refuses to use a view that was made without grad once its memory was written to, and
    knows of the write by the version counter that `detach` leaves two leaves in common.  Their
    fakes have a counter each."""
    return (
        sharing is two_leaves_over_one_memory
        and use is writes_views_without_grad
        and make is not plain
    )


@pytest.mark.parametrize(
    ("sharing", "use", "make"),
    [
        pytest.param(*way, id="-".join(each.__name__ for each in way))
        for way in itertools.product(SHARING, USES, [plain, grown, leaf])
        if not is_known_to_differ(*way)
    ],
)
def test_inputs_that_share_memory(sharing: Any, use: Any, make: Any) -> None:
    check(use, lambda: sharing(make))


@pytest.mark.parametrize("make", [plain, grown])
@pytest.mark.parametrize("use", [writes_the_first, writes_views, writes_and_returns_them])
@pytest.mark.parametrize("sharing", SHARING)
def test_through_dynamo(sharing: Any, use: Any, make: Any) -> None:
    check(use, lambda: sharing(make), Route.DYNAMO)


def test_a_base_is_an_input_only_if_it_is_needed() -> None:
    apart = adjoint.capture(reads, *disjoint_views(plain))
    assert [type(each) for each in apart.inputs] == [Argument, Argument]
    together = adjoint.capture(writes_the_first, *disjoint_views(plain))
    assert [type(each) for each in together.inputs] == [Argument, Argument, ViewBase]
    foreign = adjoint.capture(writes_the_first, *base_and_data(plain))
    assert [type(each) for each in foreign.inputs] == [Argument, Argument, SyntheticBase]


def test_the_same_tensor_twice_is_one_input() -> None:
    assert len(adjoint.capture(writes_both, *same_twice(plain)).inputs) == 1
