"""A first call compiles, and later ones may: contexts around them neither notice nor matter."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import adjoint
from adjoint.torch_private.modes import TorchDispatchMode, TorchFunctionMode
from tests.parity import leaf
from tests.versions import TORCH

grad = torch.autograd.grad


def function(x: Tensor, w: Tensor) -> Tensor:
    h = torch.softmax((x @ w).sin(), -1) * torch.arange(w.shape[1], device=x.device)
    return (h.exp() * h.cumsum(0)).sum(1)


def gradient(x: Tensor, w: Tensor) -> Tensor:
    made = adjoint.grad(lambda x, w: function(x, w).sin().sum(), (0, 1))
    return torch.cat([each.flatten() for each in made(x, w)])


def compiled(of: Callable[..., Any] = function) -> Callable[..., Any]:
    torch._dynamo.reset()
    made: Callable[..., Any] = torch.compile(of, backend="adjoint")
    return made


def leaves(rows: int = 4) -> tuple[Tensor, Tensor]:
    torch.manual_seed(rows)
    return leaf(rows, 3), leaf(3, 5)


def derivatives(
    call: Callable[..., Any], inputs: tuple[Tensor, Tensor], order: int = 2
) -> list[Tensor]:
    """The value, and derivatives up to `order`."""
    value = call(*inputs)
    first = grad(value.sin().sum(), inputs, create_graph=order == 2)
    return [value, *first, *(again(first, inputs) if order == 2 else ())]


def again(gradients: Sequence[Tensor], inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    return grad(torch.stack([each.square().sum() for each in gradients]).sum(), inputs)


def checkpointed(call: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return functools.partial(checkpoint, call, use_reentrant=False, **options)


def save_products(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    saved = op is torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


SELECTIVE = functools.partial(create_selective_checkpoint_contexts, save_products)


class Calls(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(call)
        return call(*args, **(kwargs or {}))


class Ops(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Any] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(op)
        return op(*args, **(kwargs or {}))


class Saved(saved_tensors_hooks):
    def __init__(self) -> None:
        super().__init__(self.pack, lambda tensor: tensor)
        self.seen: list[Any] = []

    def pack(self, tensor: Tensor) -> Tensor:
        self.seen.append(type(tensor))
        return tensor

    def __enter__(self) -> Any:
        super().__enter__()
        return self


# Checkpoints --------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("of", [function, gradient], ids=["compiled", "transformed"])
def test_a_checkpoint_around_the_first_call(of: Callable[..., Any], order: int) -> None:
    call = compiled() if of is function else gradient
    for rows in (4, 6, 7):
        found = derivatives(checkpointed(call), leaves(rows), order)
        torch.testing.assert_close(found, derivatives(checkpointed(of), leaves(rows), order))


def test_checkpoints_in_each_other_around_the_first_call() -> None:
    def twice(call: Callable[..., Any]) -> Callable[..., Any]:
        return checkpointed(lambda *inputs: checkpointed(call)(*inputs).sin())

    torch.testing.assert_close(
        derivatives(twice(compiled()), leaves()), derivatives(twice(function), leaves())
    )


def test_a_checkpoint_inside_and_another_around() -> None:
    inside = checkpointed(function)
    found = derivatives(checkpointed(compiled(lambda x, w: inside(x, w))), leaves())
    torch.testing.assert_close(found, derivatives(function, leaves()))


def test_a_selective_checkpoint_around_the_first_call() -> None:
    call = compiled()
    for rows in (4, 6):
        found = derivatives(checkpointed(call, context_fn=SELECTIVE), leaves(rows), order=1)
        torch.testing.assert_close(found, derivatives(function, leaves(rows), order=1))


def test_a_first_call_that_is_a_recomputation() -> None:
    """In the forward eager runs, and in the recomputation, by another thread, what is compiled."""
    call = compiled()
    calls = 0

    def either(x: Tensor, w: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        result: Tensor = checkpointed(function if calls == 1 else call)(x, w)
        return result

    inputs = leaves()
    value = checkpoint(either, *inputs, use_reentrant=False, preserve_rng_state=False)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(grad(value.sin().sum(), inputs)))
    thread.start()
    thread.join()
    assert calls == 2
    torch.testing.assert_close(found, derivatives(function, leaves(), order=1)[1:])


# What watches -------------------------------------------------------------------------------------

FOLLOWED_CALLS = pytest.param(
    Calls,
    id="Calls",
    marks=pytest.mark.skipif(
        TORCH < (2, 13), reason="Dynamo 2.11 has a guard for what the mode has seen, and breaks it"
    ),
)


@pytest.mark.parametrize("watch", [FOLLOWED_CALLS, Ops, Saved])
def test_a_first_call_shows_what_a_second_shows(watch: Callable[[], Any]) -> None:
    call, seen = compiled(), []
    for _ in range(2):
        with watch() as forward:
            value = call(*(inputs := leaves()))
        with watch() as backward:
            first = grad(value.sin().sum(), inputs, create_graph=True)
            second = again(first, inputs)
        seen.append((forward.seen, backward.seen))
        torch.testing.assert_close([value, *first, *second], derivatives(function, leaves()))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("watch", [Ops, Saved])
def test_a_first_gradient_shows_what_a_second_shows(watch: Callable[[], Any]) -> None:
    made = adjoint.grad(lambda x, w: function(x, w).sin().sum())
    seen = []
    for _ in range(2):
        with watch() as around:
            made(*leaves())
        seen.append(around.seen)
    assert seen[0] == seen[1]


def test_hooks_that_fail_or_move_what_is_saved() -> None:
    def refuse(tensor: Tensor) -> Tensor:
        raise ValueError("nothing is saved here")

    call = compiled()
    with saved_tensors_hooks(refuse, refuse), pytest.raises(ValueError, match="nothing is saved"):
        call(*leaves())
    call = compiled()
    with save_on_cpu():
        found = derivatives(call, leaves())
    torch.testing.assert_close(found, derivatives(function, leaves()))


# What changes results -----------------------------------------------------------------------------


@contextmanager
def halves_by_default() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


CHANGES: list[Callable[[], AbstractContextManager[Any]]] = [
    lambda: torch.device("meta"),
    lambda: torch.autocast("cpu", torch.bfloat16),
    lambda: torch.autograd.set_detect_anomaly(True),
    halves_by_default,
    forward_ad.dual_level,
]
NAMES = ["device", "autocast", "anomaly", "dtype", "forward mode"]


@pytest.mark.parametrize("around", CHANGES, ids=NAMES)
@pytest.mark.parametrize("everything", [False, True], ids=["backward", "everything"])
def test_contexts_that_do_not_matter(
    around: Callable[[], AbstractContextManager[Any]], everything: bool
) -> None:
    """Tensors are float64 and made where others are, so that eager gives the same without."""
    call = compiled()
    inputs = leaves()
    with around() if everything else nullcontext():
        value = call(*inputs)
    with around():
        first = grad(value.sin().sum(), inputs, create_graph=True)
        second = again(first, inputs)
    torch.testing.assert_close([value, *first, *second], derivatives(function, leaves()))


def test_tensors_made_elsewhere() -> None:
    made = adjoint.value_and_grad(lambda x: (x.square().sum(), torch.ones(2)), has_aux=True)
    x = leaf(3).detach()
    for _ in range(2):
        for device in ("cpu", "meta"):
            with torch.device(device):
                (_, aux), found = made(x)
            assert aux.device.type == device
            torch.testing.assert_close(found, x * 2)


class Doubled(TorchFunctionMode):
    """Every sine is twice as large."""

    def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = call(*args, **(kwargs or {}))
        return result * 2 if call in (torch.sin, Tensor.sin) else result


def test_calls_that_are_answered_otherwise() -> None:
    transforms: dict[str, Any] = {
        "grad": adjoint.grad(lambda x: x.sin().sum()),
        "vjp": lambda x: adjoint.vjp(lambda x: x.sin(), x)[1](x)[0] / x,
        "jvp": lambda x: adjoint.jvp(lambda x: x.sin(), (x,), (torch.ones_like(x),))[1],
    }
    x = leaf(3).detach()
    for transform in transforms.values():
        for _ in range(2):
            torch.testing.assert_close(transform(x), x.cos())
            with Doubled():
                torch.testing.assert_close(transform(x), x.cos() * 2)


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    "transform",
    [
        lambda api, f: api.grad(f),
        lambda api, f: api.grad(lambda x: api.grad(f)(x).square().sum()),
        lambda api, f: api.jacrev(lambda x: x.sin() * f(x)),
        lambda api, f: api.jacfwd(lambda x: x.sin() * f(x)),
        lambda api, f: api.hessian(f),
        lambda api, f: lambda x: api.vjp(f, x)[1](torch.ones_like(f(x)))[0],
        lambda api, f: lambda x: api.jvp(f, (x,), (torch.ones_like(x),))[1],
    ],
)
def test_derivatives_where_nothing_is_recorded(
    transform: Any, around: Callable[[], AbstractContextManager[Any]]
) -> None:
    """`no_grad` around a derivative is about what becomes of it, not about what is inside.

    It is what `torch.func` gives without: in inference mode, torch 2.11's own is zero or refused.
    """

    def inside(x: Tensor) -> Tensor:
        return (x.sin() * x.square()).sum()

    with around():
        x = leaf(3)
        found = transform(adjoint, inside)(x)
    torch.testing.assert_close(found, transform(torch.func, inside)(x.detach().clone()))
    assert found.any()
    assert not found.requires_grad


def test_no_grad_inside_of_a_derivative_is_about_what_is_inside() -> None:
    def inside(x: Tensor) -> Tensor:
        with torch.no_grad():
            held = x.square()
        return (x.sin() * held).sum()

    x = leaf(3)
    with torch.no_grad():
        torch.testing.assert_close(adjoint.grad(inside)(x), x.cos() * x.square())
