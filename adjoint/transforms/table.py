"""Where programs are found again: by the meaning of a function, then by the kind of arguments.

Functions that are made anew in every call, such as a lambda in a loop, have their code in common.
Programs are kept for as long as that lives, a few for each code, and by the transforms that use
them.

Sizes are numbers in the first program of a kind.  Those that have another value in a later call are
symbols from then on, except that 0 and 1 are always numbers.  What a program assumes of its symbols
is checked; for sizes of which it does not hold the program is made anew, up to a bound.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch

from adjoint.errors import CaptureError, FallbackWarning, OutsideLevelError
from adjoint.runtime.specializations import Specializations
from adjoint.torch_private.dynamo import COMPILING
from adjoint.transforms.fingerprint import Fingerprint, owner_of
from adjoint.transforms.kinds import Call, Memory, look_at, without_sizes
from adjoint.transforms.reachable import Same

# Functions of one code that read different values, for which programs are kept.
MAX_MEANINGS = 8

# Kinds of arguments of one transform; after that, the kind used longest ago is forgotten.
MAX_ARGUMENT_KINDS = 32
MAX_SIZE_VERSIONS = 8

# Calls for which the choice of a program is remembered.
MAX_CHOICES = 256

# Programs made in a row of which none was used again; after that, no more are made.
MAX_MISSES = 64


class TooManyPrograms(Exception):
    """A function means something else in every call, or has sizes of another kind."""


class Made(Protocol):
    """A program."""

    memory: Memory
    """What it takes for granted of its arguments, and of tensors that the function holds."""
    is_shared: bool
    """It is for all functions of the meaning, not only for the one that it was captured from."""

    def is_for(self, call: Call) -> bool:
        """Whether the sizes in the call are of those that the program is for."""
        ...


Make = Callable[[Call, Callable[[torch.Tensor], Sequence[bool]]], Any]


class Programs:
    """The programs of one transform of functions that mean the same."""

    def __init__(self) -> None:
        self._kinds: Specializations[Hashable, _Kind] = Specializations(MAX_ARGUMENT_KINDS)
        self._chosen: Specializations[Any, Any] = Specializations(MAX_CHOICES)
        self._usual: tuple[Any, Any] = (None, None)
        """The last key and its program: to compare with one takes less than to look it up."""
        self._memory = Memory.NOTHING
        """What any of them takes for granted of memory is part of the kind."""
        self._are_shared = True
        """All of them are for all functions of the meaning; else the function is part of the kind.
        """
        self._misses = 0

    def find(
        self, make: Make, look: Fingerprint, args: Any, kwargs: Any, dynamic: bool | None
    ) -> tuple[Any, Call]:
        """The program for a call, made if it is missing, and the call as it sees it.

        `dynamic`: sizes are symbols at once, or never; None: once they change.
        """
        call = self._look_at(look, args, kwargs)
        usual, program = self._usual
        if call.exact == usual:
            return program, call
        program = self._chosen.get(call.exact)
        if program is None:
            with COMPILING:
                program = self._find(make, look, call, dynamic)
                if program.memory & ~self._memory or program.is_shared < self._are_shared:
                    self._memory |= program.memory
                    self._are_shared &= program.is_shared
                    self._chosen.clear()
                    self._kinds.clear()
                    call = self._look_at(look, args, kwargs)
                    self._kind(call, dynamic).programs.append(program)
            self._chosen.add(call.exact, program)
        self._usual = (call.exact, program)
        return program, call

    def _look_at(self, look: Fingerprint, args: Any, kwargs: Any) -> Call:
        function = None if self._are_shared else Same(look.function)
        return look_at(args, kwargs, look.tensors, self._memory, function)

    def _find(self, make: Make, look: Fingerprint, call: Call, dynamic: bool | None) -> Any:
        kind = self._kind(call, dynamic)
        kind.learn(call)
        for program in kind.programs:
            if program.is_for(call):
                self._misses = 0
                return program
        if self._misses >= MAX_MISSES:
            raise TooManyPrograms(
                f"{MAX_MISSES} programs in a row were used once; pass what changes as tensors"
            )
        if len(kind.programs) >= MAX_SIZE_VERSIONS:
            raise TooManyPrograms(f"{MAX_SIZE_VERSIONS} programs are for other sizes")
        if kind.failed is not None:
            raise kind.failed
        try:
            with look.undone():
                program = kind.made(make, call)
        except CaptureError as error:
            if error.depends_on_data:
                kind.failed = error.with_traceback(None)
            raise
        self._misses += 1
        kind.programs.append(program)
        return program

    def _kind(self, call: Call, dynamic: bool | None) -> _Kind:
        key = without_sizes(call)
        kind = self._kinds.get(key)
        if kind is None:
            kind = _Kind(call, dynamic)
            if self._kinds.add(key, kind) is not None:
                # Some of what was chosen went with the kind that was forgotten.
                self._chosen.clear()
                self._usual = (None, None)
        return kind


class _Kind:
    """The programs for arguments that differ in sizes alone."""

    def __init__(self, call: Call, dynamic: bool | None) -> None:
        self.programs: list[Any] = []
        self._first = [tuple(each.shape) for each in call.tensors]
        self._changing = [[dynamic is True] * len(shape) for shape in self._first]
        self._may_change = dynamic is not False
        self.failed: CaptureError | None = None
        """Why there is no program: it would depend on data."""

    def learn(self, call: Call) -> None:
        """Take note of the sizes that have changed."""
        for tensor, first, changing in zip(call.tensors, self._first, self._changing, strict=True):
            for axis, (now, before) in enumerate(zip(tensor.shape, first, strict=True)):
                changing[axis] |= now != before

    def made(self, make: Make, call: Call) -> Any:
        """A program for a call."""
        axes = {
            id(tensor): [
                changes and size > 1 for size, changes in zip(tensor.shape, each, strict=True)
            ]
            for tensor, each in zip(call.tensors, self._changing, strict=True)
        }
        if self._may_change and any(map(any, axes.values())):
            try:
                return make(call, lambda tensor: axes.get(id(tensor), [False] * tensor.dim()))
            except OutsideLevelError:
                raise
            except (RuntimeError, TypeError):
                # What needs numbers for sizes is captured with numbers, and fails again if that
                # was not the reason.
                self._may_change = False
        return make(call, _no_axes)


def _no_axes(tensor: torch.Tensor) -> list[bool]:
    return [False] * tensor.dim()


class _Owned:
    """The programs of functions with one code."""

    def __init__(self) -> None:
        self.programs: Specializations[Hashable, Programs] = Specializations(MAX_MEANINGS)
        self.misses = 0


_TABLE: WeakKeyDictionary[Any, _Owned] = WeakKeyDictionary()


def programs_of(transform: Hashable, look: Fingerprint, function: Any) -> Programs:
    """The programs of a transform of functions that mean what `function` means."""
    try:
        owned = _TABLE.setdefault(owner_of(function), _Owned())
        key = (transform, look.mark)
        found = owned.programs.get(key)
    except TypeError:  # Something cannot be hashed, or not be referred to weakly.
        return Programs()
    if found is not None:
        owned.misses = 0
        return found
    if owned.misses >= MAX_MISSES:
        raise TooManyPrograms(
            f"{MAX_MISSES} functions in a row with the same code were used once; "
            "pass what changes as tensors"
        )
    owned.misses += 1
    found = Programs()
    owned.programs.add(key, found)
    return found


_TOLD: WeakKeyDictionary[Any, None] = WeakKeyDictionary()


def tell(function: Any, error: Exception) -> None:
    """Say once that a function is left to torch."""
    owner = owner_of(function)
    try:
        if owner in _TOLD:
            return
        _TOLD[owner] = None
    except TypeError:
        pass
    name = getattr(function, "__qualname__", type(function).__name__)
    warnings.warn(
        f"torch.func takes over for {name}: {error}",
        FallbackWarning,
        stacklevel=3,
    )
