"""Functions of torch that are replaced while one of our dispatch modes is active."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator

import torch
from torch._functorch.autograd_function import AutogradFunctionApply
from torch._higher_order_ops.cond import CondOp
from torch._higher_order_ops.wrap import TagActivationCheckpoint
from torch._ops import HigherOrderOperator
from torch.autograd.function import FunctionCtx, _SingleLevelFunction
from torch.utils._python_dispatch import TorchDispatchMode

from adjoint.torch_private.modes import dispatch_modes

# Higher-order operators whose `__call__` checks or runs operands before a mode sees the call.
_CALLED_ABOVE_MODES = (CondOp, AutogradFunctionApply, TagActivationCheckpoint)

# Our own copy of the setting, which torch does not expose.
_MATERIALIZES = "_adjoint_materializes_grads"

# Imported by name, because the package's attribute is the operator, not the module.
_nested_regions = importlib.import_module("torch._higher_order_ops.invoke_subgraph")


@contextlib.contextmanager
def replaced(
    owner: object, name: str, function: Callable[..., object], mode: TorchDispatchMode
) -> Iterator[None]:
    """Replace the function or method `name` of `owner` wherever `mode` is active.

    Other threads, which are not under the mode, call the original.  Callers hold a lock, so that
    two threads cannot restore each other's replacement.
    """
    before = vars(owner)[name]
    is_classmethod = isinstance(before, classmethod)
    original = before.__func__ if is_classmethod else before

    def either(*args: object, **kwargs: object) -> object:
        return (function if _is_under(mode) else original)(*args, **kwargs)

    setattr(owner, name, classmethod(either) if is_classmethod else either)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _is_under(mode: TorchDispatchMode) -> bool:
    return any(each is mode for each in dispatch_modes())


@contextlib.contextmanager
def control_flow_calls_its_operator(mode: TorchDispatchMode) -> Iterator[None]:
    """Under `mode`, let `torch.cond` and others call their operator instead of `torch.compile`.

    They do so if `torch.compiler.is_dynamo_compiling()`, which is patched here.  A nested compile
    region, which has no operator in that case, is called as in eager torch.
    """
    changes: list[tuple[object, str, Callable[..., object]]] = [
        (torch.compiler, "is_dynamo_compiling", lambda: True),
        (_nested_regions, "invoke_subgraph_placeholder", _call),
        *((operator, "__call__", HigherOrderOperator.__call__) for operator in _CALLED_ABOVE_MODES),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, function in changes:
            stack.enter_context(replaced(owner, name, function, mode))
        yield


def _call(function: Callable[..., object], *args: object, **kwargs: object) -> object:
    return function(*args, **kwargs)


@contextlib.contextmanager
def custom_functions_applied_by(
    apply: Callable[..., object], mode: TorchDispatchMode
) -> Iterator[None]:
    """Under `mode`, route `Function.apply(*args)` to `apply(original_apply, Function, *args)`."""
    original = torch.autograd.Function.__dict__["apply"]
    set_materialize_grads = FunctionCtx.set_materialize_grads

    def routed(cls: type, *args: object, **kwargs: object) -> object:
        own = original.__get__(None, cls)
        return apply(own, cls, *args, **kwargs)

    def noted(self: FunctionCtx, value: bool) -> None:
        setattr(self, _MATERIALIZES, value)
        set_materialize_grads(self, value)

    with (
        replaced(torch.autograd.Function, "apply", routed, mode),
        replaced(FunctionCtx, "set_materialize_grads", noted, mode),
    ):
        yield


# The names that `torch.library` gives to the autograd functions of custom ops begin so.
_OF_CUSTOM_OPS = "GeneratedBackwardFor_"


def is_of_custom_op(function: type) -> bool:
    """Whether `torch.library` made this `autograd.Function` for a custom op."""
    return function.__name__.startswith(_OF_CUSTOM_OPS)


@contextlib.contextmanager
def custom_ops_applied_by(apply: Callable[..., object], mode: TorchDispatchMode) -> Iterator[None]:
    """Under `mode`, route the autograd function of a custom op to `apply(run)`.

    Functions of ops with lists of tensors keep the `apply` of `autograd.Function` from when they
    were made, so that one is not patched; all of them end in `_SingleLevelFunction.apply`.
    """

    def routed(cls: type, *args: object) -> object:
        original = super(_SingleLevelFunction, cls).apply  # type: ignore[misc]
        return apply(lambda: original(*args)) if is_of_custom_op(cls) else original(*args)

    def inherited(cls: type, *args: object) -> object:
        return super(_SingleLevelFunction, cls).apply(*args)  # type: ignore[misc]

    setattr(_SingleLevelFunction, "apply", classmethod(inherited))  # noqa: B010
    try:
        with replaced(_SingleLevelFunction, "apply", routed, mode):
            yield
    finally:
        delattr(_SingleLevelFunction, "apply")


def materializes_grads(context: object) -> bool:
    """Whether missing cotangents are zeros (`ctx.set_materialize_grads`), for such a function."""
    return bool(getattr(context, _MATERIALIZES, True))
