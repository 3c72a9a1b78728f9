"""What a function depends on besides its arguments, as far as Python shows it.

A compiled function holds for the tensors, modules and numbers that it closed over when it was
compiled.  If one of them is another object now, it must be compiled again.
"""

from __future__ import annotations

import functools
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

_NUMBERS = (bool, int, float, complex, str, bytes, type(None))


def fingerprint(function: Any) -> Any:
    """A value that is the same as long as `function` means the same."""
    return _mark(function, set())


def _mark(value: Any, seen: set[int]) -> Any:
    if isinstance(value, _NUMBERS):
        return (type(value), value)
    if id(value) in seen:
        return None
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
    if isinstance(value, torch.nn.Module):
        return _module(value)
    if isinstance(value, (tuple, list)):
        return tuple(_mark(each, seen) for each in value)
    if isinstance(value, dict):
        return tuple((str(key), _mark(each, seen)) for key, each in value.items())
    return _object(value, seen)


def _tensor(tensor: torch.Tensor) -> Any:
    return (id(tensor), tensor.requires_grad, tensor.shape, tensor.dtype)


def _function(function: FunctionType, seen: set[int]) -> Any:
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    names = _names(function.__code__)
    used = [function.__globals__[name] for name in names if name in function.__globals__]
    kept = [each for each in used if not isinstance(each, ModuleType)]
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    wrapped = [function.__wrapped__] if hasattr(function, "__wrapped__") else []
    parts = (*cells, *kept, *defaults, *wrapped)
    return (function.__code__, *(_mark(each, seen) for each in parts))


def _names(code: CodeType) -> list[str]:
    """The names that a function, or one defined inside it, looks up outside."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return [*code.co_names, *(name for each in inner for name in _names(each))]


def _module(module: torch.nn.Module) -> Any:
    return (
        id(module),
        tuple(_numbers(each) for each in module.modules()),
        tuple(map(_tensor, module.parameters())),
        tuple(map(_tensor, module.buffers())),
    )


def _object(value: Any, seen: set[int]) -> Any:
    """An object is itself, with the numbers and tensors in it, and what it is a wrapper of."""
    wrapped = getattr(value, "__wrapped__", None)
    held = getattr(value, "__dict__", {})
    if isinstance(value, type) or not isinstance(held, dict):
        return id(value)
    tensors = [_tensor(each) for each in held.values() if isinstance(each, torch.Tensor)]
    numbers = _numbers(value) if held else ()
    return (id(value), numbers, tuple(tensors), _mark(wrapped, seen))


def _numbers(value: Any) -> Any:
    return tuple((k, type(v), v) for k, v in vars(value).items() if isinstance(v, _NUMBERS))


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
