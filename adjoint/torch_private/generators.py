"""Observing what a thread does to random generators.

Generators are implemented in C, and their methods are visible to no mode of torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch.cuda import random as cuda_random

from adjoint.open_types import OpArgument

_SET = ("__setstate__", "graphsafe_set_state", "manual_seed", "seed", "set_offset")
_MAKE = ("clone_state", "graphsafe_get_state")


class Watcher(Protocol):
    """Receives a call for each use of a generator by a thread, before the generator changes."""

    def read(self, generator: torch.Generator, state: torch.Tensor) -> None:
        """`generator.get_state()` returned `state`."""

    def restore(self, generator: torch.Generator, state: torch.Tensor) -> None:
        """`generator.set_state(state)` was called, and is skipped."""

    def seed(self) -> None:
        """Another method that sets a generator was called.  It runs unless this raises."""

    def make(self, generator: torch.Generator) -> None:
        """`generator` was created."""


@contextlib.contextmanager
def generators_watched(watcher: Watcher) -> Iterator[None]:
    """Tell `watcher` what this thread, and no other, does to generators."""
    _WATCHED.enter()
    _WATCHED.watchers.append(watcher)
    try:
        yield
    finally:
        _WATCHED.watchers.pop()
        _WATCHED.leave()


def identity(generator: torch.Generator) -> int:
    """The same number for all Python objects of one generator; 0 for the default generators."""
    defaults = (torch.default_generator, *torch.cuda.default_generators)
    address = _address(generator)
    return 0 if address in [_address(default) for default in defaults] else address


def _address(generator: torch.Generator) -> int:
    address: int = generator._cdata  # type: ignore[attr-defined]
    return address


class _Watched:
    """Patches of the methods of generators, installed while some thread is watched."""

    def __init__(self) -> None:
        self._threads = 0
        self._lock = threading.Lock()
        self._changes = contextlib.ExitStack()
        self._own = threading.local()

    @property
    def watchers(self) -> list[Watcher]:
        """Of this thread, the innermost last."""
        found: list[Watcher] = self._own.__dict__.setdefault("watchers", [])
        return found

    def enter(self) -> None:
        with self._lock:
            if self._threads == 0:
                self._change()
            self._threads += 1

    def leave(self) -> None:
        with self._lock:
            self._threads -= 1
            if self._threads == 0:
                self._changes.close()

    def _change(self) -> None:
        methods = _methods()
        handlers: dict[str, Callable[..., object]]
        handlers = {"get_state": self._get_state, "set_state": self._set_state}
        handlers |= dict.fromkeys(_SET, self._seed) | dict.fromkeys(_MAKE, self._make)
        self._changes.callback(_methods_changed)
        for name, handler in handlers.items():
            self._put(methods, name, _method(handler, methods[name]))
        _methods_changed()
        # Before CUDA is initialized, torch queues calls that set its generators.
        later = functools.partial(self._later, torch.cuda._lazy_call)
        self._put(vars(cuda_random), "_lazy_call", later)
        self._put(vars(torch), "Generator", _generators_made_by(self._new))

    def _put(self, names: dict[str, object], name: str, value: object) -> None:
        self._changes.callback(names.__setitem__, name, names[name])
        names[name] = value

    def _get_state(
        self, generator: torch.Generator, method: Callable[..., torch.Tensor]
    ) -> torch.Tensor:
        state = method(generator)
        if watcher := self._watcher():
            watcher.read(generator, state)
        return state

    def _set_state(
        self, generator: torch.Generator, method: Callable[..., object], state: torch.Tensor
    ) -> object:
        if watcher := self._watcher():
            watcher.restore(generator, state)
            return generator
        return method(generator, state)

    def _seed(
        self, generator: torch.Generator, method: Callable[..., object], *args: object
    ) -> object:
        if watcher := self._watcher():
            watcher.seed()
        return method(generator, *args)

    def _later(self, call_later: Callable[..., None], *args: object, **kwargs: object) -> None:
        watcher = self._watcher()
        if watcher and not torch.cuda.is_initialized():
            watcher.seed()
        call_later(*args, **kwargs)

    def _make(
        self, generator: torch.Generator, method: Callable[..., torch.Generator]
    ) -> torch.Generator:
        return self._new(lambda: method(generator))

    def _new(self, make: Callable[[], torch.Generator]) -> torch.Generator:
        generator = make()
        if watcher := self._watcher():
            watcher.make(generator)
        return generator

    def _watcher(self) -> Watcher | None:
        return self.watchers[-1] if self.watchers else None


def _methods() -> dict[str, object]:
    """The dictionary of the methods of generators, below the read-only view of it."""
    (methods,) = gc.get_referents(vars(torch._C.Generator))
    assert isinstance(methods, dict)
    return methods


def _method(handler: Callable[..., object], original: object) -> Callable[..., object]:
    def method(generator: torch.Generator, *args: object) -> object:
        return handler(generator, original, *args)

    return method


def _methods_changed() -> None:
    """Clear Python's cache of method lookups."""
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(torch._C.Generator))


def _generators_made_by(make: Callable[..., torch.Generator]) -> type:
    """A stand-in for `torch.Generator` whose instances are created by `make`."""

    kind = type(torch._C.Generator)

    class StandIn(kind):  # type: ignore[misc, valid-type]
        def __call__(cls, *args: OpArgument, **kwargs: OpArgument) -> torch.Generator:
            return make(lambda: torch._C.Generator(*args, **kwargs))

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, torch._C.Generator)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, torch._C.Generator)

    stand_in: type = StandIn("Generator", (torch._C.Generator,), {"__module__": "torch"})
    return stand_in


_WATCHED = _Watched()
