"""Operators on lists of tensors compute what they do on each tensor, in kernels and in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from adjoint.loops.plan import LibraryCall, Plan
from adjoint.lower.compositions import NoComposition, composition_of
from adjoint.lower.compositions.foreach import ON_EACH
from adjoint.lower.decompositions import decompose
from tests.lower.compositions.samples import X, Y
from tests.lower.test_in_place_calls import plans_of
from tests.lowering import graph_of
from tests.parity import Route, check, plain

aten = torch.ops.aten
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "clamp_max", "clamp_min", "pow")

Call = Callable[[list[Tensor], list[Tensor]], Any]
CALLS: list[tuple[str, Call]] = [
    *[(n, lambda x, y, n=n: getattr(torch, f"_foreach_{n}")(x, y)) for n in BINARY],
    *[(n, lambda x, y, n=n: getattr(torch, f"_foreach_{n}")(x, 2)) for n in BINARY],
    *[(n, lambda x, y, n=n: getattr(torch, f"_foreach_{n}")(x, [2.0, 3.0])) for n in BINARY],
    ("add", lambda x, y: torch._foreach_add(x, y, alpha=0.5)),
    ("mul", lambda x, y: torch._foreach_mul(x, torch.tensor(3.0, dtype=x[0].dtype))),
    ("pow", lambda x, y: torch._foreach_pow(2.0, y)),
    ("lerp", lambda x, y: torch._foreach_lerp(x, y, 0.3)),
    ("lerp", lambda x, y: torch._foreach_lerp(x, y, x)),
    ("addcmul", lambda x, y: torch._foreach_addcmul(x, y, x, 0.3)),
    ("addcmul", lambda x, y: torch._foreach_addcmul(x, y, x, [0.3, 0.4])),
    ("addcdiv", lambda x, y: torch._foreach_addcdiv(x, y, y, 0.3)),
    ("norm", lambda x, y: torch._foreach_norm(x, 1)),
    ("norm", lambda x, y: torch._foreach_norm(x)),
    ("copy", lambda x, y: aten._foreach_copy(x, y)),
    ("zero", lambda x, y: aten._foreach_zero(x)),
    ("clone", lambda x, y: aten._foreach_clone(x)),
    *[
        (n, lambda x, y, n=n: getattr(torch, f"_foreach_{n}")(x))
        for n in sorted(
            {*ON_EACH} - {*BINARY, "lerp", "addcmul", "addcdiv", "norm", "copy", "zero", "clone"}
        )
    ],
]


def test_every_operator_is_called() -> None:
    assert {name for name, _ in CALLS} == {*ON_EACH}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "call"), CALLS, ids=[name for name, _ in CALLS])
def test_on_each_tensor(name: str, call: Call, dtype: torch.dtype) -> None:
    if not hasattr(aten, f"_foreach_{name}"):
        pytest.skip(f"this torch has no _foreach_{name}")
    x, y = X(dtype).abs() / 4, Y(dtype).abs() + 1
    inputs = [x, y[0] / 9, y, x[0] + 1]
    graph_module = graph_of(lambda a, b, c, d: call([a, b], [c, d]), inputs)
    made = decompose(graph_module)
    assert "_foreach_" not in str(made.graph)
    for one, other in zip(graph_module(*inputs), made(*inputs), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one.nan_to_num(7), other.nan_to_num(7))


def test_what_is_left() -> None:
    """The largest element of each tensor, and factors that are one tensor."""
    graph_module = graph_of(lambda a, b: aten._foreach_max([a, b]), [X(torch.float32)] * 2)
    assert "_foreach_max" in str(decompose(graph_module).graph)
    one, composition = torch.ones(2), composition_of(aten._foreach_addcmul.Tensor)
    assert composition is not None
    with pytest.raises(NoComposition):
        composition([one, one], [one, one], [one, one], one)


def update(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> None:
    """The update of an optimizer with momentum."""
    torch._foreach_mul_([a, b], 0.9)
    torch._foreach_add_([a, b], [c, d])
    torch._foreach_add_([c, d], [a, b], alpha=-0.1)


def kinds(plans: list[Plan]) -> set[type]:
    return {type(step) for plan in plans for step in plan.steps}


def test_an_update_is_done_in_place_by_kernels() -> None:
    def make() -> tuple[Tensor, ...]:
        return plain(5, 4), plain(3), plain(5, 4), plain(3)

    plans = plans_of(update, *make())
    assert LibraryCall not in kinds(plans)
    replaced = [slot.replaces for plan in plans for slot in plan.slots]
    assert sum(each is not None for each in replaced) == 4
    for route in Route:
        check(update, make, route)


def test_its_derivatives() -> None:
    def function(a: Tensor, b: Tensor) -> Any:
        first, second = torch._foreach_mul([a.sin(), b.cos()], [b, a])
        return torch._foreach_add([first, second], 1.0)

    for route in Route:
        check(
            function, lambda: (plain(4).requires_grad_(), plain(4).requires_grad_()), route, order=2
        )
