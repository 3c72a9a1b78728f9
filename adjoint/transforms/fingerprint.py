"""What a function depends on besides its arguments, as far as Python shows it.

A compiled function holds for the tensors, modules and numbers that it closed over when it was compiled.
If one of them is another object now, it must be compiled again.
"""

from __future__ import annotations

import functools
from types import FunctionType, MethodType
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
        return (id(value), value.requires_grad)
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
    return id(value)


def _function(function: FunctionType, seen: set[int]) -> Any:
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    names = function.__code__.co_names
    used = [function.__globals__[name] for name in names if name in function.__globals__]
    kept = [each for each in used if not isinstance(each, type(torch))]
    return (function.__code__, *(_mark(each, seen) for each in (*cells, *kept)))


def _module(module: torch.nn.Module) -> Any:
    return (
        id(module),
        tuple(each.training for each in module.modules()),
        tuple(id(each) for each in module.parameters()),
        tuple(id(each) for each in module.buffers()),
    )


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
