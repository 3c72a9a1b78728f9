"""Calls of a function whose compilation is watched, which leave no trace in the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MethodType

import torch

from adjoint.observing import Observer
from adjoint.open_types import UserFunction
from adjoint.stages import observe
from adjoint.torch_private import trees
from adjoint.transforms.compiled import Compiled


def call(
    observer: Observer,
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: dict[str, object],
    order: int,
    options: Mapping[str, object],
    dynamic: bool = False,
) -> list[list[object]]:
    """Compile `function` anew, call it with copies, and differentiate its results `order` times.

    Returns the results, and the gradients of each order that there is.
    """
    args, kwargs = trees.map_leaves(_copied, (tuple(args), dict(kwargs)))
    if isinstance(function, Compiled):
        return [trees.leaves(function.observed(observer, options)(*args, **kwargs))]
    anew = fresh(function)
    return observe(
        observer, anew, args, kwargs, order, dynamic, options, False, again=False, writes=True
    )


def original(function: Callable[..., object]) -> UserFunction:
    """What the user gave to `torch.compile`."""
    inner = getattr(function, "_orig_mod", function)
    inner = getattr(inner, "_torchdynamo_orig_callable", inner)
    assert callable(inner)
    return inner


def fresh(function: Callable[..., object]) -> UserFunction:
    """The same function with a code object of its own.

    Dynamo keeps what it compiled with the code object, and counts how often that was compiled.
    """
    function = original(function)
    if isinstance(function, torch.nn.Module):
        forward = function.forward
        if _has_hooks(function) or not isinstance(forward, MethodType):
            return _copy(_caller(function))
        return fresh(forward)
    if isinstance(function, MethodType):
        inner = fresh(function.__func__)
        return MethodType(inner, function.__self__)
    if isinstance(function, FunctionType):
        return _copy(function)
    return _copy(_caller(function))


def _has_hooks(module: torch.nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    backward = (module._backward_hooks, module._backward_pre_hooks)
    return any(map(bool, (*hooks, *backward)))


def _caller(function: Callable[..., object]) -> FunctionType:
    def called(*args: object, **kwargs: object) -> object:
        return function(*args, **kwargs)

    assert isinstance(called, FunctionType)
    return called


def _copy(function: FunctionType) -> FunctionType:
    made = FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    return made


def _copied(leaf: object) -> object:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)
