"""Loading the functions, and their arguments, that are named on the command line."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

import torch

from adjoint.open_types import TorchValue, UserFunction

EXAMPLES = "example_inputs"

# By position and by name.
Arguments: TypeAlias = tuple[tuple[TorchValue, ...], dict[str, TorchValue]]


class UsageError(Exception):
    """The command line names something that cannot be found or called."""


def require_folder(file: str | Path) -> None:
    """Raise `UsageError` unless a file can be written there: before anything takes minutes."""
    path = Path(file)
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} for {path.name}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder, and not a file")


def find(target: str) -> tuple[ModuleType, object]:
    """The module and the object that `module:name` or `file.py:name` names."""
    place, separator, name = target.rpartition(":")
    if not separator:
        raise UsageError(f"{target!r} names no function; write module:function")
    module = _load_file(place) if place.endswith(".py") else _load_module(place)
    found: object = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
            raise UsageError(
                f"{place} has no {name!r}; it has {', '.join(sorted(known)) or 'none'}"
            )
        found = getattr(found, part)
    return module, found


def _load_file(path: str) -> ModuleType:
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    sys.path.insert(0, str(file.parent.resolve()))
    spec.loader.exec_module(module)
    return module


def _load_module(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and not name.startswith(error.name):
            raise  # The module exists; one that it imports does not.
        raise UsageError(f"there is no module {name!r}") from None


def call_arguments(
    module: ModuleType, function: Callable[..., object], expression: str | None
) -> Arguments:
    """The arguments to call `function` with."""
    args, kwargs = _given_arguments(module, function, expression)
    try:
        signature = inspect.signature(_called_function(function))
    except (TypeError, ValueError):  # It is not written in Python, and does not say.
        return args, kwargs
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise UsageError(
            f"{name}{signature} cannot be called with the arguments given: {error}"
        ) from None
    return args, kwargs


def _given_arguments(
    module: ModuleType, function: Callable[..., object], expression: str | None
) -> Arguments:
    if expression is not None:
        scope = {"torch": torch, **vars(module), "_call": lambda *a, **k: (a, k)}
        try:
            args, kwargs = eval(f"_call({expression})", scope)
        except Exception as error:
            raise UsageError(
                f"--args {expression!r} failed with {type(error).__name__}: {error}; it is "
                f"evaluated with `torch` and the names of {module.__name__}"
            ) from error
        return args, kwargs
    examples = getattr(function, EXAMPLES, getattr(module, EXAMPLES, None))
    if callable(examples):
        examples = examples()
    if isinstance(examples, dict):
        return (), examples
    if examples is not None:
        return tuple(examples) if isinstance(examples, (tuple, list)) else (examples,), {}
    if _needs_arguments(function):
        raise UsageError(
            f"{getattr(function, '__name__', function)} takes arguments; give them by --args "
            f"'torch.randn(3, 4)', or define `{EXAMPLES}` (a tuple, or a function that returns "
            "one) in its module"
        )
    return (), {}


def called(
    target: str, expression: str | None
) -> tuple[UserFunction, tuple[TorchValue, ...], dict[str, TorchValue]]:
    """The function that is named, or an instance of the module, and what to call it with."""
    module, function = find_function(target)
    return (function, *call_arguments(module, function, expression))


def find_function(target: str) -> tuple[ModuleType, UserFunction]:
    """The module and the function that `target` names, or an instance of a module class."""
    module, found = find(target)
    if isinstance(found, type) and issubclass(found, torch.nn.Module):
        return module, instance(found)
    if not callable(found):
        raise UsageError(f"{target} is of type {type(found).__name__}, which cannot be called")
    return module, found


def instance(cls: type[torch.nn.Module]) -> torch.nn.Module:
    """An instance of a module class that needs no arguments."""
    try:
        return cls()
    except TypeError as error:
        raise UsageError(
            f"{cls.__name__} cannot be made without arguments ({error}); "
            "name an instance of it, or a function that makes and calls one"
        ) from None


def _called_function(function: Callable[..., object]) -> Callable[..., object]:
    return function.forward if isinstance(function, torch.nn.Module) else function


def _needs_arguments(function: Callable[..., object]) -> bool:
    parameters = inspect.signature(_called_function(function)).parameters.values()
    required = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.default is p.empty and p.kind in required for p in parameters)
