"""What a function depends on besides its arguments, as far as Python shows it.

A compiled function holds for the tensors, modules and numbers that it closed over when it was
compiled.  If one of them is another object now, it must be compiled again.
"""

from __future__ import annotations

import functools
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

_NUMBERS = (bool, int, float, complex, str, bytes, type(None))

# What a module of Python holds besides code.
_CONSTANTS = (*_NUMBERS[:-1], tuple, list, dict, torch.Tensor)

# What a decorator of torch holds for the user; the rest is its own.
_MEANT = (FunctionType, MethodType, functools.partial, torch.nn.Module, torch.Tensor)

# Objects looked into; one that a function reaches beyond so many others is only itself.
MOST = 20_000


def fingerprint(function: Any) -> Any:
    """A value that is the same as long as `function` means the same."""
    return _mark(function, set())


def _mark(value: Any, seen: set[int]) -> Any:
    if isinstance(value, _NUMBERS):
        return (type(value), value)
    if id(value) in seen or len(seen) > MOST:
        return id(value)
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    seen.add(id(value))
    if isinstance(value, FunctionType):
        return _function(value, seen)
    if isinstance(value, MethodType):
        return (_mark(value.__func__, seen), _mark(value.__self__, seen))
    if isinstance(value, functools.partial):
        parts = (value.func, *value.args, *value.keywords.values())
        return tuple(_mark(each, seen) for each in parts)
    if isinstance(value, (tuple, list)):
        return tuple(_mark(each, seen) for each in value)
    if isinstance(value, (set, frozenset)):
        return frozenset(_mark(each, seen) for each in value)
    if isinstance(value, dict):
        return tuple((str(key), _mark(each, seen)) for key, each in value.items())
    if isinstance(value, np.ndarray):
        return (value.shape, value.dtype.str, value.tobytes())
    return _object(value, seen)


def _tensor(tensor: torch.Tensor) -> Any:
    return (id(tensor), tensor.requires_grad, tensor.shape, tensor.dtype)


def _function(function: FunctionType, seen: set[int]) -> Any:
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    wrapped = [function.__wrapped__] if hasattr(function, "__wrapped__") else []
    if _is_ours_or_torchs(function.__globals__.get("__name__")):
        # A decorator, around a function of the user's.
        kept = [each for each in cells if isinstance(each, _MEANT)]
        return (function.__code__, *(_mark(each, seen) for each in (*kept, *wrapped)))
    names = _names(function.__code__)
    used = [function.__globals__[name] for name in names if name in function.__globals__]
    kept = [each for each in used if not isinstance(each, ModuleType)]
    kept += [
        vars(module)[name]
        for module in used
        if isinstance(module, ModuleType)
        for name in names
        if isinstance(vars(module).get(name), _CONSTANTS)
    ]
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    parts = (*cells, *kept, *defaults, *wrapped)
    return (function.__code__, *(_mark(each, seen) for each in parts))


def _names(code: CodeType) -> list[str]:
    """The names that a function, or one defined inside it, looks up outside."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return [*code.co_names, *(name for each in inner for name in _names(each))]


def _object(value: Any, seen: set[int]) -> Any:
    """An object is itself with what it holds, down to numbers and tensors.

    What torch keeps for its own use changes with every call, and means nothing.
    """
    if isinstance(value, (type, ModuleType)):
        return id(value)
    named = _held(value)
    if not isinstance(value, torch.nn.Module) and _is_ours_or_torchs(type(value).__module__):
        plain = (*_NUMBERS, torch.Tensor)
        named = {k: v for k, v in named.items() if k == "__wrapped__" or isinstance(v, plain)}
    return (id(value), *((name, _mark(each, seen)) for name, each in named.items()))


def _is_ours_or_torchs(module: Any) -> bool:
    return str(module).partition(".")[0] in ("torch", "adjoint")


def _held(value: Any) -> dict[str, Any]:
    attributes = getattr(value, "__dict__", {})
    named = dict(attributes) if isinstance(attributes, dict) else {}
    named.update(
        (name, getattr(value, name)) for name in _slots(type(value)) if hasattr(value, name)
    )
    return named


def _slots(kind: type) -> list[str]:
    found: list[str] = []
    for each in kind.__mro__:
        slots = each.__dict__.get("__slots__", ())
        found += [slots] if isinstance(slots, str) else slots
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
