"""Dispatch modes: seeing every op that torch runs, and the state it runs under."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import HigherOrderOperator
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

__all__ = [
    "Hooks",
    "TorchDispatchMode",
    "TorchFunctionMode",
    "below_autograd",
    "control_flow_calls_its_operator",
    "custom_functions_applied_by",
    "enable_python_dispatcher",
    "is_traceable_wrapper_subclass",
    "saved_tensor_hooks",
    "set_version",
    "without_autocast",
    "without_torch_function",
]

# Pack and unpack.
Hooks: TypeAlias = tuple[Callable[..., Any], Callable[..., Any]]

_AUTOCAST_DEVICES = ("cpu", "cuda")


def below_autograd() -> contextlib.AbstractContextManager[Any]:
    """Run ops as autograd's own kernels do: no history is recorded, no version is counted."""
    return torch._C._AutoDispatchBelowAutograd()


def without_torch_function() -> contextlib.AbstractContextManager[Any]:
    """Run without `__torch_function__`, of modes and of tensor subclasses."""
    return torch._C.DisableTorchFunction()


def saved_tensor_hooks() -> Hooks | None:
    """The innermost pack and unpack hooks that autograd would call now."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Set the version counter of `tensor`, and so of all that share it."""
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Run with autocast off: captured graphs carry their casts as ops."""
    if not any(torch.is_autocast_enabled(device) for device in _AUTOCAST_DEVICES):
        yield
        return
    with contextlib.ExitStack() as stack:
        for device in _AUTOCAST_DEVICES:
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextlib.contextmanager
def control_flow_calls_its_operator() -> Iterator[None]:
    """Let `torch.cond` and its kin call their operator directly instead of compiling themselves.

    They do so when they believe Dynamo is tracing them, which is the question they are asked here.
    """
    from torch._higher_order_ops.cond import CondOp

    original, checked_call = torch.compiler.is_dynamo_compiling, CondOp.__call__
    torch.compiler.is_dynamo_compiling = lambda: True
    # Its own checks allow flat operands alone.
    CondOp.__call__ = HigherOrderOperator.__call__
    try:
        yield
    finally:
        torch.compiler.is_dynamo_compiling = original
        CondOp.__call__ = checked_call


@contextlib.contextmanager
def custom_functions_applied_by(apply: Callable[..., Any]) -> Iterator[None]:
    """Route `SomeFunction.apply(*args)` to `apply(SomeFunction, *args)`.

    `apply` receives the original as its first argument, to fall back on.
    """
    original = torch.autograd.Function.__dict__["apply"]

    def routed(cls: type, *args: Any, **kwargs: Any) -> Any:
        return apply(original.__get__(None, cls), cls, *args, **kwargs)

    torch.autograd.Function.apply = classmethod(routed)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = original
