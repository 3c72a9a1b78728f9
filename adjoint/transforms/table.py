"""The table of programs: by what a function means, then by the kind of its arguments.

Functions that are defined again in every call, such as a lambda in a loop, share a code object.
The table refers to code objects weakly, and keeps a few programs for each.

Sizes are numbers in the first program of a kind.  A size that has another value in a later call is
a symbol from then on, except that 0 and 1 stay numbers.  Guards check what a program assumes of its
symbols; sizes that violate them get another program, up to a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

import torch

from adjoint.errors import CaptureError, OutsideLevelError
from adjoint.graph.boundary import location_of_function, warn_of_fallback
from adjoint.observing import Compilation, timed_compilation
from adjoint.open_types import TorchValue
from adjoint.runtime.specializations import MAX_SIZE_VERSIONS, Specializations
from adjoint.torch_private.dynamo import COMPILING
from adjoint.transforms.fingerprint import Fingerprint, owner_of
from adjoint.transforms.kinds import Call, Looks, Memory, look_at, without_sizes
from adjoint.transforms.reachable import Same

# Meanings of functions with one code object for which programs are kept.
MAX_MEANINGS = 8

# Kinds of arguments of one transform; beyond that, the one used longest ago is evicted.
MAX_ARGUMENT_KINDS = 32

# Exact keys of calls whose program is remembered without looking at guards.
MAX_CHOICES = 256

# Programs compiled in a row of which none was used twice; beyond that, none is compiled.
MAX_MISSES = 64


class TooManyPrograms(Exception):
    """Every call would need a program of its own: a bound of the table is reached."""


class Made(Protocol):
    """A program of the table."""

    memory: Memory
    """What it assumes about the memory of arguments and of tensors that it closes over."""
    is_shared: bool
    """Whether it serves all functions of the meaning, not only the one it was captured from."""

    def is_for(self, call: Call) -> bool:
        """Whether the program's guards on sizes hold for the call."""
        ...

    def __call__(self, call: Call) -> TorchValue:
        """The results for the call."""
        ...


Make = Callable[[Call, Callable[[torch.Tensor], Sequence[bool]]], Made]


class TransformPrograms:
    """The programs of one transform of functions that mean the same."""

    def __init__(self) -> None:
        self._kinds: Specializations[Hashable, _Kind] = Specializations(MAX_ARGUMENT_KINDS)
        self._chosen: Specializations[object, Made] = Specializations(MAX_CHOICES)
        self._usual: tuple[object, Made | None] = (None, None)
        """The last exact key and its program: a comparison is faster than a lookup."""
        self._memory = Memory.NOTHING
        """What any of the programs assumes about memory, which is part of every key."""
        self._are_shared = True
        """Whether all programs are shared; if not, the function is part of every key."""
        self._misses = 0
        self._last: Looks | None = None
        """The call that the latest program was made for."""

    def find(
        self,
        make: Make,
        look: Fingerprint,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        dynamic: bool | None,
    ) -> tuple[Made, Call]:
        """The program for a call, compiled if it is missing, and the call with its keys.

        `dynamic`: sizes are symbols from the first call on (True), never, or once they change.
        """
        call = self._look_at(look, args, kwargs)
        usual, program = self._usual
        if program is not None and call.exact == usual:
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

    def _look_at(
        self, look: Fingerprint, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Call:
        function = None if self._are_shared else Same(look.function)
        return look_at(args, kwargs, look.tensors, self._memory, function)

    def _find(self, make: Make, look: Fingerprint, call: Call, dynamic: bool | None) -> Made:
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
            with look.undone(), timed_compilation(self._compilation(look, kind, call)):
                program = kind.made(make, call)
        except CaptureError as error:
            if error.depends_on_data:
                kind.failed = error.with_traceback(None)
            raise
        self._misses += 1
        kind.programs.append(program)
        self._last = call.looks
        return program

    def _compilation(self, look: Fingerprint, kind: _Kind, call: Call) -> Compilation:
        """What those who watch are told of a program."""
        place = location_of_function(look.function)
        reason = "" if self._last is None else call.difference(self._last, kind.has_symbols)
        return Compilation(place.op, "transform", place.source, reason)

    def _kind(self, call: Call, dynamic: bool | None) -> _Kind:
        key = without_sizes(call)
        kind = self._kinds.get(key)
        if kind is None:
            kind = _Kind(call, dynamic)
            if self._kinds.add(key, kind) is not None:
                # Some of the remembered programs belong to the evicted kind.
                self._chosen.clear()
                self._usual = (None, None)
        return kind


class _Kind:
    """The programs for calls that differ in sizes alone."""

    def __init__(self, call: Call, dynamic: bool | None) -> None:
        self.programs: list[Made] = []
        self._first = [tuple(each.shape) for each in call.tensors]
        self._changing = [[dynamic is True] * len(shape) for shape in self._first]
        self._may_change = dynamic is not False
        self.failed: CaptureError | None = None
        """The refusal to capture a function that depends on data; it is raised again."""

    @property
    def has_symbols(self) -> bool:
        """Whether a size that has changed is a symbol in the next program."""
        return self._may_change

    def learn(self, call: Call) -> None:
        """Mark the sizes that differ from the first call's as symbols."""
        for tensor, first, changing in zip(call.tensors, self._first, self._changing, strict=True):
            for axis, (now, before) in enumerate(zip(tensor.shape, first, strict=True)):
                changing[axis] |= now != before

    def made(self, make: Make, call: Call) -> Made:
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
                # The function may need numbers for sizes.  If not, it fails again below.
                self._may_change = False
        return make(call, _no_axes)


def _no_axes(tensor: torch.Tensor) -> list[bool]:
    return [False] * tensor.dim()


class _Owned:
    """The programs of functions with one code object."""

    def __init__(self) -> None:
        self.programs: Specializations[Hashable, TransformPrograms] = Specializations(MAX_MEANINGS)
        self.misses = 0


_TABLE: WeakKeyDictionary[object, _Owned] = WeakKeyDictionary()


def programs_of(transform: Hashable, look: Fingerprint, function: object) -> TransformPrograms:
    """The programs of a transform of functions that mean what `function` means."""
    try:
        owned = _TABLE.setdefault(owner_of(function), _Owned())
        key = (transform, look.mark)
        found = owned.programs.get(key)
    except TypeError:  # Something cannot be hashed, or not be referred to weakly.
        return TransformPrograms()
    if found is not None:
        owned.misses = 0
        return found
    if owned.misses >= MAX_MISSES:
        raise TooManyPrograms(
            f"{MAX_MISSES} functions in a row with the same code were used once; "
            "pass what changes as tensors"
        )
    owned.misses += 1
    found = TransformPrograms()
    owned.programs.add(key, found)
    return found


_TOLD: WeakKeyDictionary[object, None] = WeakKeyDictionary()


def tell(function: object, error: Exception) -> None:
    """Warn once that a function is left to torch."""
    owner = owner_of(function)
    try:
        if owner in _TOLD:
            return
        _TOLD[owner] = None
    except TypeError:
        pass
    name = getattr(function, "__qualname__", type(function).__name__)
    message = f"torch.func takes over for {name}: {error}"
    warn_of_fallback(message, getattr(error, "source", None))
