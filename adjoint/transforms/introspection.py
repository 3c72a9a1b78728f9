"""What Python shows of functions, classes and objects: what they hold, and what they look up."""

from __future__ import annotations

import functools
import logging
import sys
from abc import ABCMeta
from collections.abc import Mapping, Sequence
from types import (
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Generic, Protocol

import torch

from adjoint.source import is_standard_file

# Immutable values, compared by type and value.
NUMBERS = (bool, int, float, complex, str, bytes, type(None))


# Attributes of a Python module or a class of these types count as used if a function names them.
GLOBAL_VALUES = (*NUMBERS[:-1], tuple, list, dict, torch.Tensor, FunctionType)


# In the closure of a decorator of torch, values of these types are the user's; the rest is torch's.
USER_VALUES = (FunctionType, MethodType, functools.partial, torch.nn.Module, torch.Tensor)


# Built-in classes whose instances keep all of their state in attributes.
_TRANSPARENT_CLASSES = frozenset({object, SimpleNamespace, Generic, Protocol})


def parts_of_function(function: FunctionType) -> tuple[object, ...]:
    """The parts of a function that can be assigned to, except its cells."""
    keywords = (function.__kwdefaults__ or {}).values()
    return (function.__code__, function.__defaults__, *keywords, vars(function).get("__wrapped__"))


def names_looked_up(code: CodeType) -> list[str]:
    """The global names that a function, or one defined inside it, looks up."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return [*code.co_names, *(name for each in inner for name in names_looked_up(each))]


def looked_up(scope: dict[str, object], names: Sequence[str]) -> list[object]:
    """The values of `names` in `scope`, and in the modules and classes found there."""
    used = [scope[name] for name in names if name in scope]
    scopes = [vars(each) for one in used for each in scopes_of(one)]
    inside: list[object] = []
    seen: set[int] = set()
    for each in scopes:
        if id(each) in seen:
            continue
        seen.add(id(each))
        found = [each[name] for name in names if name in each]
        inside += [one for one in found if may_be_used(one)]
        # Submodules of packages.
        scopes += [vars(s) for one in found if isinstance(one, ModuleType) for s in scopes_of(one)]
    return [each for each in used if not isinstance(each, ModuleType)] + inside


def may_be_used(value: object) -> bool:
    """Whether an attribute of a Python module or a class counts as used by who names it."""
    if isinstance(value, (type, ModuleType)):
        return False
    return isinstance(value, (*GLOBAL_VALUES, *USER_VALUES)) or (
        not is_ours_or_torchs(type(value).__module__) and shows_all(value)
    )


def is_plain(value: object) -> bool:
    """Whether this is a number or another immutable constant, or a tuple of them."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return isinstance(value, NUMBERS)


def shows_all(value: object) -> bool:
    """Whether attributes show all that the object holds: its class is written in Python."""
    kind = type(value)
    if isinstance(value, torch.nn.Module):
        return not isinstance(value, torch.jit.ScriptModule)
    return not is_ours_or_torchs(kind.__module__) and all(map(_is_written_in_python, kind.__mro__))


def _is_written_in_python(kind: type) -> bool:
    if kind in _TRANSPARENT_CLASSES:
        return True
    if type(kind) not in (type, ABCMeta):
        return False
    own = vars(kind)
    return "__slots__" in own or any("__dict__" in vars(each) for each in kind.__mro__)


def attribute_in(scopes: Sequence[Mapping[str, object]], name: str) -> list[object]:
    """The value of `name` in the first of the scopes that has it, in a list; None if none has."""
    return [next((scope[name] for scope in scopes if name in scope), None)]


def function_of(attribute: object) -> object:
    """The function behind an attribute of a class, if there is one."""
    if isinstance(attribute, property):
        return attribute.fget
    return attribute.__func__ if isinstance(attribute, (classmethod, staticmethod)) else attribute


def scopes_of(value: object) -> Sequence[object]:
    """The modules or classes in which attributes are looked up, except torch's and ours."""
    if isinstance(value, ModuleType):
        return () if is_ours_or_torchs(value.__name__) else (value,)
    if isinstance(value, type):
        return [each for each in value.__mro__ if not is_ours_or_torchs(each.__module__)]
    return ()


def is_standard(function: FunctionType) -> bool:
    """Whether a function is of Python's standard library, whose globals are caches of its own."""
    return is_standard_file(function.__code__.co_filename)


def is_surrounding(value: object) -> bool:
    """Whether this belongs to the whole process, and changes as other modules are imported."""
    return isinstance(value, (logging.Logger, logging.Handler)) or value is sys.modules


def is_ours_or_torchs(module: object) -> bool:
    return str(module).partition(".")[0] in ("torch", "adjoint")


def attributes_of(value: object) -> dict[str, object]:
    """The attributes of an object, by name; of an object of torch, plain values and tensors."""
    attributes = getattr(value, "__dict__", {})
    named = dict(attributes) if isinstance(attributes, dict) else {}
    named.update(
        (name, getattr(value, name)) for name in _slots(type(value)) if hasattr(value, name)
    )
    if isinstance(value, torch.nn.Module) or not is_ours_or_torchs(type(value).__module__):
        return named
    plain = (*NUMBERS, torch.Tensor)
    return {k: v for k, v in named.items() if k == "__wrapped__" or isinstance(v, plain)}


def _slots(kind: type) -> list[str]:
    found: list[str] = []
    for each in kind.__mro__:
        slots = each.__dict__.get("__slots__", ())
        found += [slots] if isinstance(slots, str) else slots
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
