"""Everything that can be reached from a function, and whether it is still the same."""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from itertools import chain
from operator import attrgetter
from types import (
    CellType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
)

import numpy as np
import numpy.typing as npt
import torch

from adjoint.open_types import UserFunction
from adjoint.torch_private.dynamo import dict_version
from adjoint.transforms.introspection import (
    NUMBERS,
    USER_VALUES,
    attribute_in,
    attributes_of,
    function_of,
    is_filled,
    is_ours_or_torchs,
    is_plain,
    is_standard,
    is_surrounding,
    looked_up,
    may_be_used,
    names_looked_up,
    parts_of_function,
    scopes_of,
    shows_all,
)
from adjoint.transforms.restoring import Container, Dictionary, snapshot

# Immutable values that are compared by equality.
_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format, range)

# How many objects a traversal looks into; further ones are compared by identity.
MAX_OBJECTS = 20_000


class Same:
    """An object compared by identity: equal to the same object only, and only while it lives."""

    __slots__ = ("_hash", "_object")

    def __init__(self, value: object) -> None:
        self._hash = id(value)
        try:
            self._object: Callable[[], object] = weakref.ref(value)
        except TypeError:
            self._object = lambda: value

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        value = self._object()
        return isinstance(other, Same) and value is not None and value is other._object()


class Transformed:
    """A transform of a function: equal for equal transforms of functions that mean the same."""

    transform: object
    function: UserFunction


class Reachable:
    """A traversal of everything that can be reached from a function; it keeps what may change."""

    def __init__(self) -> None:
        self._seen: dict[int, object] = {}
        """The mark of each object visited so far, if it is met again, by id."""
        self._alive: list[object] = []
        self._dicts: list[Dictionary] = []
        self._collections: list[Collection[object]] = []
        self._cells: list[CellType] = []
        self._tensors: list[torch.Tensor] = []
        self._arrays: list[npt.NDArray[np.generic]] = []
        self._others: list[Callable[[], Iterable[object]]] = []
        self._empty: list[object] = []
        self._containers: list[tuple[Container, Sequence[str] | None]] = []
        """All that the function may write to; of its globals, the names it uses."""
        self._sizes: list[Sized] = []
        self._plain: list[Dictionary] = []
        self._names = {"forward": None, "__call__": None}
        """The names that functions look up, in globals or on objects, in order."""
        self._classes: dict[type, None] = {}
        """The classes of the objects visited."""

    def snapshot(self) -> Callable[[], None]:
        """A function that restores everything as it is now."""
        return snapshot(self._cells, self._containers)

    def end(self) -> None:
        """Sort the containers by how they are compared later: empty ones by their length alone."""
        containers = [*self._dicts, *self._collections]
        self._empty = [each for each in containers if not each]
        self._sizes = [each for each in containers if each]
        # Subclasses may have an order besides, which the version of a dictionary does not cover.
        self._plain = [each for each in self._dicts if each and type(each) is dict]
        self._dicts = [each for each in self._dicts if each and type(each) is not dict]
        self._collections = [each for each in self._collections if each]

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Which tensors the function may use besides its arguments."""
        return tuple(self._tensors)

    def versions(self) -> list[int]:
        """The versions of dictionaries, which change when one is written to."""
        return list(map(dict_version, self._plain))

    def held(self) -> Iterable[object]:
        """The contents of those dictionaries, compared by identity where a version has changed."""
        return _held_by(self._plain)

    def same(self) -> Iterable[object]:
        """What else must be the same objects for the mark to be the same."""
        return chain(
            _held_by(self._dicts),
            chain.from_iterable(self._collections),
            map(attrgetter("cell_contents"), self._cells),
            chain.from_iterable(other() for other in self._others),
        )

    def equal(self) -> list[object]:
        """What must be equal for the mark to be the same."""
        return [
            any(self._empty),
            *map(len, self._sizes),
            *map(np.ndarray.tobytes, self._arrays),
        ]

    def mark(self, value: object) -> object:
        if isinstance(value, (float, complex)):
            # Zeros of either sign are equal, and NaN is not.
            return (type(value), repr(value))
        if isinstance(value, NUMBERS):
            return (type(value), value)
        if isinstance(value, _CONSTANTS):
            return (type(value), value)
        if is_surrounding(value):
            return Same(value)
        again = self._seen.get(id(value))
        if again is not None:
            return again
        if len(self._seen) > MAX_OBJECTS:
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

    def _marks(self, values: Iterable[object]) -> tuple[object, ...]:
        return tuple(map(self.mark, values))

    def _items(self, mapping: Mapping[object, object]) -> tuple[object, ...]:
        return tuple([(self.mark(key), self.mark(each)) for key, each in mapping.items()])

    def _function(self, function: FunctionType) -> object:
        cells = [cell for cell in function.__closure__ or () if is_filled(cell)]
        self._cells += cells
        self._others.append(functools.partial(parts_of_function, function))
        held = [cell.cell_contents for cell in cells]
        wrapped = [function.__wrapped__] if hasattr(function, "__wrapped__") else []
        if is_ours_or_torchs(function.__globals__.get("__name__")):
            # A decorator, around a function of the user's.
            kept = [each for each in held if isinstance(each, USER_VALUES) or is_plain(each)]
            return (Same(function.__code__), *self._marks((*kept, *wrapped)))
        names = [] if is_standard(function) else names_looked_up(function.__code__)
        self._names.update(dict.fromkeys(names))
        self._containers.append((function.__globals__, names))
        self._others.append(functools.partial(looked_up, function.__globals__, names))
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        found = looked_up(function.__globals__, names)
        return (Same(function.__code__), *self._marks((*held, *found, *defaults, *wrapped)))

    def _object(self, value: object) -> object:
        """The mark of an object is made of what it holds, down to numbers and tensors. If Python
        does not show all of that, its identity is part of the mark. What torch keeps for its own
        use is left out: it changes with every call, and means nothing.
        """
        if isinstance(value, (type, ModuleType)):
            return Same(value)
        if isinstance(getattr(value, "__dict__", None), dict):
            self._containers.append((vars(value), None))
        if isinstance(value, torch.nn.Module):
            self._dicts.append(vars(value))
        else:
            self._others.append(lambda: chain.from_iterable(attributes_of(value).items()))
        self._classes[type(value)] = None
        held = tuple([(name, self.mark(each)) for name, each in attributes_of(value).items()])
        return (Same(type(value) if shows_all(value) else value), held)

    def classes(self) -> list[object]:
        """What functions use of the classes of objects: methods, what those use, and constants.

        Called when all functions are known: methods look up more names, on more objects.
        """
        marks: list[object] = []
        unused: dict[type, dict[str, None]] = {}
        while True:
            for kind in self._classes:
                if kind not in unused:
                    names = (name for each in scopes_of(kind) for name in vars(each))
                    unused[kind] = dict.fromkeys(names)
            new = [
                (kind, name)
                for kind, attributes in unused.items()
                for name in attributes
                if name in self._names
            ]
            if not new:
                return marks
            for kind, name in new:
                del unused[kind][name]
                scopes = [vars(each) for each in scopes_of(kind)]
                used = function_of(*attribute_in(scopes, name))
                if may_be_used(used):
                    self._others.append(functools.partial(attribute_in, scopes, name))
                    marks.append((Same(kind), name, self.mark(used)))


def _held_by(dicts: Sequence[Dictionary]) -> Iterable[object]:
    values: Callable[..., Iterable[object]] = dict.values
    return chain(chain.from_iterable(dicts), chain.from_iterable(map(values, dicts)))
