"""Names for functions of torch and Python that graphs of Dynamo call.

A function has a name only if looking up the name finds the same function, and if torch or Python
defines it: a function with which a user has replaced one of torch's has none.
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
import sys
import types
from collections.abc import Callable
from pathlib import Path

import torch
from torch._ops import HigherOrderOperator

_FOLDERS = tuple(str(Path(each).parent) + "/" for each in (torch.__file__,))

# Functions written in C have no module of their own that leads to them.
_SPACES: tuple[tuple[str, types.ModuleType], ...] = (
    ("torch", torch),
    ("torch.nn.functional", torch.nn.functional),
    ("torch.linalg", torch.linalg),
    ("torch.fft", torch.fft),
    ("torch.special", torch.special),
    ("torch._C", torch._C),
    ("torch._C._nn", torch._C._nn),
    ("torch._C._functorch", torch._C._functorch),
    ("torch._C._autograd", torch._C._autograd),
    ("operator", operator),
    ("builtins", builtins),
    ("math", math),
)


def name_of(function: Callable[..., object]) -> str | None:
    """The name of a function of torch's or of Python's; None: it is neither."""
    if isinstance(function, HigherOrderOperator):
        name = function.name()
        is_own = type(function).__module__.partition(".")[0] == "torch"
        found = getattr(torch.ops.higher_order, name, None)
        return f"higher_order.{name}" if is_own and found is function else None
    if isinstance(function, type):
        name, module = function.__qualname__, function.__module__
        is_own = module.partition(".")[0] in ("torch", "builtins")
        there = getattr(sys.modules.get(module), name, None)
        return f"{module}.{name}" if is_own and there is function else None
    if isinstance(function, types.FunctionType):
        name, module = function.__name__, function.__module__
        is_own = function.__code__.co_filename.startswith(_FOLDERS)
        there = getattr(sys.modules.get(module), name, None)
        return f"{module}.{name}" if is_own and there is function else None
    return _in_c().get(id(function), (None, None))[0]


def method_is_torchs(name: str) -> bool:
    """Whether a method of this name is one that torch gives its tensors."""
    method = getattr(torch.Tensor, name, None)
    if isinstance(method, types.FunctionType):
        return method.__code__.co_filename.startswith(_FOLDERS)
    kinds = (types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType)
    return isinstance(method, kinds)


@functools.cache
def _in_c() -> dict[int, tuple[str, object]]:
    """Functions written in C, by identity: their names, and themselves so that these stay."""
    found: dict[int, tuple[str, object]] = {}
    for space, module in _SPACES:
        for name, function in sorted(vars(module).items()):
            if isinstance(function, types.BuiltinFunctionType):
                found.setdefault(id(function), (f"{space}.{name}", function))
    for name in dir(torch._C._VariableFunctions):
        function = getattr(torch._C._VariableFunctions, name)
        if isinstance(function, types.BuiltinFunctionType):
            found.setdefault(id(function), (f"torch._VF.{name}", function))
    return found
