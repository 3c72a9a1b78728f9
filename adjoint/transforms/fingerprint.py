"""What a function depends on besides its arguments, as far as Python shows it.

A program is for functions of one meaning: those with the same code, around equal numbers and
containers, and around tensors, which are inputs of the program like its arguments.  So a function
that is made anew each time is captured once.

To look at all of it takes milliseconds for a large module.  So what was looked at is remembered: as
long as the same containers hold the very same objects, nothing has changed.  Of dictionaries, which
is what modules are made of, it is enough to know that nobody has written to them.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
import weakref
from abc import ABCMeta
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from itertools import chain
from operator import attrgetter, is_
from types import (
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, Generic, Protocol

import numpy as np
import torch

from adjoint.errors import CaptureError
from adjoint.graph.boundary import location_of_function
from adjoint.torch_private.dynamo import dict_version

_NUMBERS = (bool, int, float, complex, str, bytes, type(None))

# What of a module of Python, or of a class, a function is taken to use by its name.
_USED = (*_NUMBERS[:-1], tuple, list, dict, torch.Tensor, FunctionType)

# What a decorator of torch holds for the user; the rest is its own.
_MEANT = (FunctionType, MethodType, functools.partial, torch.nn.Module, torch.Tensor)

# What is equal where it means the same, and never changes.
_VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format, range)

# Classes of Python's own that hide nothing.
_SHOWN = frozenset({object, SimpleNamespace, Generic, Protocol})

# Objects looked into; one that a function reaches beyond so many others is only itself.
MOST = 20_000


def fingerprint(function: Any) -> Any:
    """A value that is the same as long as `function` means the same."""
    return Fingerprint(function).mark


class Same:
    """An object as itself: equal to nothing but the very same object, while it lives."""

    __slots__ = ("_hash", "_object")

    def __init__(self, value: Any) -> None:
        self._hash = id(value)
        try:
            self._object: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            self._object = lambda: value

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        value = self._object()
        return isinstance(other, Same) and value is not None and value is other._object()


class Transformed:
    """A transform of a function: equal for equal transforms of functions that mean the same."""

    transform: Any
    function: Callable[..., Any]


def owner_of(function: Any) -> Any:
    """What lives as long as functions like `function` may be made: the code of it, as a rule."""
    if isinstance(function, Transformed):
        return owner_of(function.function)
    if isinstance(function, functools.partial):
        return owner_of(function.func)
    if isinstance(function, MethodType):
        return owner_of(function.__func__)
    if isinstance(function, FunctionType):
        inner = inspect.unwrap(function)
        return inner.__code__ if isinstance(inner, FunctionType) else function.__code__
    return function


class Fingerprint:
    """What a function depended on when it was looked at."""

    def __init__(self, function: Any) -> None:
        looked_at = _Look()
        self.mark = (looked_at.mark(function), *looked_at.classes())
        """Equal marks, equal meaning, but for the tensors."""
        looked_at.end()
        self.tensors = looked_at.tensors()
        """Those that the function may use besides its arguments, each once."""
        self.function = function
        self._looked_at = looked_at
        self._versions, self._held = looked_at.versions(), list(looked_at.held())
        self._same, self._equal = list(looked_at.same()), looked_at.equal()

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """Run the function; what it changes besides its arguments is put back, and an error."""
        put_back = self._looked_at.snapshot()
        drawn = _Drawn()
        try:
            yield
        finally:
            is_as_before = self.holds(self.function)
            put_back()
            drew = drawn.put_back()
        if drew or not is_as_before:
            what = "random numbers of Python or NumPy" if drew else "a change of what it holds"
            error = CaptureError(
                what,
                "a graph has no such effect",
                "use torch's numbers" if drew else "return the new value instead",
                location_of_function(self.function).source,
            )
            error.depends_on_data = True
            raise error

    def holds(self, function: Any) -> bool:
        """Whether `function` is that function, and nothing it depended on has been changed."""
        if function is not self.function:
            return False
        now = self._looked_at
        try:
            if now.equal() != self._equal or not _are_same(now.same(), self._same):
                return False
            versions = now.versions()
            if versions != self._versions:
                if not _are_same(now.held(), self._held):
                    return False
                self._versions = versions
            return True
        except (ValueError, RuntimeError):  # A cell is empty now; a dictionary is being changed.
            return False


class _Drawn:
    """The states of the generators of Python and NumPy."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy: Any = np.random.get_state()

    def put_back(self) -> bool:
        """Let them be as they were; whether they were not."""
        now: Any = np.random.get_state()
        same = now[2] == self._numpy[2] and np.array_equal(now[1], self._numpy[1])
        if same and random.getstate() == self._python:
            return False
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        return True


def _part(container: Any, names: Sequence[str] | None) -> Any:
    if names is None:
        return container
    return {name: container[name] for name in names if name in container}


def _has_same(container: Any, before: Any) -> bool:
    if isinstance(container, dict):
        return list(container) == list(before) and _are_same(
            container.values(), list(before.values())
        )
    return _are_same(container, list(before))


def _refill(container: Any, names: Sequence[str] | None, before: Any) -> None:
    if names is not None:
        for name in [name for name in names if name in container and name not in before]:
            del container[name]
    elif isinstance(container, list):
        container[:] = before
        return
    else:
        container.clear()
    if isinstance(container, deque):
        container.extend(before)
    elif not isinstance(container, frozenset):
        container.update(before)


def _are_same(objects: Iterable[Any], before: Sequence[Any]) -> bool:
    """They are the very same."""
    now = list(objects)
    return len(now) == len(before) and all(map(is_, now, before))


class _Look:
    """A look at everything that can be reached from a function; it keeps what may change."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}
        """What each object seen so far counts as if it is met again, by identity."""
        self._alive: list[Any] = []
        self._dicts: list[dict[Any, Any]] = []
        self._collections: list[Any] = []
        self._cells: list[CellType] = []
        self._tensors: list[torch.Tensor] = []
        self._arrays: list[np.ndarray[Any, Any]] = []
        self._others: list[Callable[[], Iterable[Any]]] = []
        self._empty: list[Any] = []
        self._containers: list[tuple[Any, Sequence[str] | None]] = []
        """All that may be written to; of a function's globals, the names it uses."""
        self._sizes: list[Any] = []
        self._plain: list[dict[Any, Any]] = []
        self._names = {"forward": None, "__call__": None}
        """What functions look up, of objects as well, in order."""
        self._classes: dict[type, None] = {}
        """Of objects."""

    def snapshot(self) -> Callable[[], None]:
        """A function that puts everything back as it is now."""
        cells = [(cell, cell.cell_contents) for cell in self._cells]
        kept = [(each, names, copy(_part(each, names))) for each, names in self._containers]

        def put_back() -> None:
            for cell, value in cells:
                cell.cell_contents = value
            for container, names, before in kept:
                if not _has_same(_part(container, names), before):
                    _refill(container, names, before)

        return put_back

    def end(self) -> None:
        """Of what is empty it is enough to know that it stays so."""
        containers = [*self._dicts, *self._collections]
        self._empty = [each for each in containers if not each]
        self._sizes = [each for each in containers if each]
        # Others may have an order besides, which their versions know nothing of.
        self._plain = [each for each in self._dicts if each and type(each) is dict]
        self._dicts = [each for each in self._dicts if each and type(each) is not dict]
        self._collections = [each for each in self._collections if each]

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Which tensors the function may use besides its arguments."""
        return tuple(self._tensors)

    def versions(self) -> list[int]:
        """What is another number once a dictionary has been written to."""
        return list(map(dict_version, self._plain))

    def held(self) -> Iterable[Any]:
        """What must be the very same objects where a dictionary has been written to."""
        return _held_by(self._plain)

    def same(self) -> Iterable[Any]:
        """What must be the very same objects for the mark to be the same."""
        return chain(
            _held_by(self._dicts),
            chain.from_iterable(self._collections),
            map(attrgetter("cell_contents"), self._cells),
            chain.from_iterable(other() for other in self._others),
        )

    def equal(self) -> list[Any]:
        """What must be equal besides."""
        return [
            any(self._empty),
            *map(len, self._sizes),
            *map(np.ndarray.tobytes, self._arrays),
        ]

    def mark(self, value: Any) -> Any:
        if isinstance(value, (float, complex)):
            # Zeros of either sign are equal, and NaN is not.
            return (type(value), repr(value))
        if isinstance(value, _NUMBERS):
            return (type(value), value)
        if isinstance(value, _VALUES):
            return (type(value), value)
        again = self._seen.get(id(value))
        if again is not None:
            return again
        if len(self._seen) > MOST:
            return Same(value)
        self._seen[id(value)] = ("again", len(self._seen))
        self._alive.append(value)
        if isinstance(value, torch.Tensor):
            self._tensors.append(value)
            return ("tensor", len(self._tensors))
        if isinstance(value, Transformed):
            self._others.append(lambda: (value.function,))
            return (value.transform, self.mark(value.function))
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            return self._marks((value.__func__, value.__self__))
        if isinstance(value, functools.partial):
            return self._marks((value.func, *value.args, value.keywords))
        if isinstance(value, tuple):
            return (type(value), *self._marks(value))
        if isinstance(value, (list, deque, set, frozenset)):
            self._collections.append(value)
            self._containers.append((value, None))
            kind = tuple if isinstance(value, (list, deque)) else frozenset
            return (type(value), kind(map(self.mark, value)))
        if isinstance(value, MappingProxyType):
            self._others.append(lambda: chain.from_iterable(value.items()))
            return self._items(value)
        if isinstance(value, dict):
            self._dicts.append(value)
            self._containers.append((value, None))
            return (type(value), *self._items(value))
        if isinstance(value, np.ndarray):
            self._arrays.append(value)
            return (value.shape, value.dtype.str, value.tobytes())
        return self._object(value)

    def _marks(self, values: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(map(self.mark, values))

    def _items(self, mapping: Any) -> tuple[Any, ...]:
        return tuple([(self.mark(key), self.mark(each)) for key, each in mapping.items()])

    def _function(self, function: FunctionType) -> Any:
        cells = [cell for cell in function.__closure__ or () if _is_filled(cell)]
        self._cells += cells
        self._others.append(functools.partial(_parts, function))
        held = [cell.cell_contents for cell in cells]
        wrapped = [function.__wrapped__] if hasattr(function, "__wrapped__") else []
        if _is_ours_or_torchs(function.__globals__.get("__name__")):
            # A decorator, around a function of the user's.
            kept = [each for each in held if isinstance(each, _MEANT) or _is_plain(each)]
            return (Same(function.__code__), *self._marks((*kept, *wrapped)))
        names = _names(function.__code__)
        self._names.update(dict.fromkeys(names))
        self._containers.append((function.__globals__, names))
        self._others.append(functools.partial(_looked_up, function.__globals__, names))
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        found = _looked_up(function.__globals__, names)
        return (Same(function.__code__), *self._marks((*held, *found, *defaults, *wrapped)))

    def _object(self, value: Any) -> Any:
        """An object is what it holds, down to numbers and tensors, if Python shows all of it.

        Others are themselves besides.  What torch keeps for its own use changes with every call,
        and means nothing.
        """
        if isinstance(value, (type, ModuleType)):
            return Same(value)
        if isinstance(getattr(value, "__dict__", None), dict):
            self._containers.append((vars(value), None))
        if isinstance(value, torch.nn.Module):
            self._dicts.append(vars(value))
        else:
            self._others.append(lambda: chain.from_iterable(_held(value).items()))
        self._classes[type(value)] = None
        held = tuple([(name, self.mark(each)) for name, each in _held(value).items()])
        return (Same(type(value) if _shows_all(value) else value), held)

    def classes(self) -> list[Any]:
        """What functions use of the classes of objects: methods, what those use, and constants.

        Known once all functions are; and methods look up more, of more objects.
        """
        marks: list[Any] = []
        done: set[tuple[type, str]] = set()
        while new := [
            (kind, name)
            for kind in self._classes
            for name in self._names
            if (kind, name) not in done
        ]:
            done.update(new)
            for kind, name in new:
                scopes = [vars(each) for each in _scopes(kind)]
                used = _function_of(*_attribute(scopes, name))
                if _counts(used):
                    self._others.append(functools.partial(_attribute, scopes, name))
                    marks.append((Same(kind), name, self.mark(used)))
        return marks


def _held_by(dicts: Sequence[dict[Any, Any]]) -> Iterable[Any]:
    return chain(chain.from_iterable(dicts), chain.from_iterable(map(dict.values, dicts)))


def _parts(function: FunctionType) -> tuple[Any, ...]:
    """What of a function may be assigned to, but for its cells."""
    keywords = (function.__kwdefaults__ or {}).values()
    return (function.__code__, function.__defaults__, *keywords, vars(function).get("__wrapped__"))


def _names(code: CodeType) -> list[str]:
    """The names that a function, or one defined inside it, looks up outside."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return [*code.co_names, *(name for each in inner for name in _names(each))]


def _looked_up(scope: dict[str, Any], names: Sequence[str]) -> list[Any]:
    """What `names` are in `scope`, and in modules and classes among that."""
    used = [scope[name] for name in names if name in scope]
    scopes = [vars(each) for one in used for each in _scopes(one)]
    inside: list[Any] = []
    seen: set[int] = set()
    for each in scopes:
        if id(each) in seen:
            continue
        seen.add(id(each))
        found = [each[name] for name in names if name in each]
        inside += [one for one in found if _counts(one)]
        # Modules in packages.
        scopes += [vars(s) for one in found if isinstance(one, ModuleType) for s in _scopes(one)]
    return [each for each in used if not isinstance(each, ModuleType)] + inside


def _counts(value: Any) -> bool:
    """An attribute of a module of Python, or of a class, that a function is taken to use."""
    if isinstance(value, (type, ModuleType)):
        return False
    return isinstance(value, (*_USED, *_MEANT)) or (
        not _is_ours_or_torchs(type(value).__module__) and _shows_all(value)
    )


def _is_plain(value: Any) -> bool:
    """A number or the like, or a tuple of them."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _NUMBERS)


def _shows_all(value: Any) -> bool:
    """All that the object holds is in attributes: its class is written in Python."""
    kind = type(value)
    if isinstance(value, torch.nn.Module):
        return not isinstance(value, torch.jit.ScriptModule)
    return not _is_ours_or_torchs(kind.__module__) and all(map(_is_written_in_python, kind.__mro__))


def _is_written_in_python(kind: type) -> bool:
    if kind in _SHOWN:
        return True
    if type(kind) not in (type, ABCMeta):
        return False
    own = vars(kind)
    return "__slots__" in own or any("__dict__" in vars(each) for each in kind.__mro__)


def _attribute(scopes: Sequence[Any], name: str) -> list[Any]:
    """What the name is, in the first of the scopes that has it."""
    return [next((scope[name] for scope in scopes if name in scope), None)]


def _function_of(attribute: Any) -> Any:
    """The function behind an attribute of a class, if there is one."""
    if isinstance(attribute, property):
        return attribute.fget
    return attribute.__func__ if isinstance(attribute, (classmethod, staticmethod)) else attribute


def _scopes(value: Any) -> Sequence[Any]:
    """Where attributes of a module or a class are looked up, unless that is torch's."""
    if isinstance(value, ModuleType):
        return () if _is_ours_or_torchs(value.__name__) else (value,)
    if isinstance(value, type):
        return [each for each in value.__mro__ if not _is_ours_or_torchs(each.__module__)]
    return ()


def _is_ours_or_torchs(module: Any) -> bool:
    return str(module).partition(".")[0] in ("torch", "adjoint")


def _held(value: Any) -> dict[str, Any]:
    """What an object holds, by name."""
    attributes = getattr(value, "__dict__", {})
    named = dict(attributes) if isinstance(attributes, dict) else {}
    named.update(
        (name, getattr(value, name)) for name in _slots(type(value)) if hasattr(value, name)
    )
    if isinstance(value, torch.nn.Module) or not _is_ours_or_torchs(type(value).__module__):
        return named
    plain = (*_NUMBERS, torch.Tensor)
    return {k: v for k, v in named.items() if k == "__wrapped__" or isinstance(v, plain)}


def _slots(kind: type) -> list[str]:
    found: list[str] = []
    for each in kind.__mro__:
        slots = each.__dict__.get("__slots__", ())
        found += [slots] if isinstance(slots, str) else slots
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
