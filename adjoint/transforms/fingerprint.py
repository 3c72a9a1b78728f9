"""What a function depends on besides its arguments, as far as Python shows it.

A program serves all functions that mean the same: same code, equal numbers and containers.  The
tensors that a function closes over are inputs of the program, like its arguments.  So a lambda made
in a loop is captured once.

A traversal takes milliseconds for a large module, so its result is kept.  It holds as long as the
same containers hold the same objects.  Dictionaries, of which modules are made, have a version
that changes when they are written to; usually only that is compared.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType

from adjoint.errors import CaptureError
from adjoint.graph.boundary import location_of_function
from adjoint.transforms.reachable import Reachable, Transformed
from adjoint.transforms.restoring import GeneratorStates, are_same


def fingerprint(function: Callable[..., object]) -> object:
    """A value that is the same as long as `function` means the same."""
    return Fingerprint(function).mark


def owner_of(function: object) -> object:
    """The object whose lifetime bounds that of programs of `function`: usually its code object."""
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
    """What a function depends on, as found by one traversal."""

    def __init__(self, function: Callable[..., object]) -> None:
        reachable = Reachable()
        self.mark = (reachable.mark(function), *reachable.classes())
        """Functions with equal marks mean the same, except for their tensors."""
        reachable.end()
        self.tensors = reachable.tensors()
        """The tensors that the function may use besides its arguments, each once."""
        self.function = function
        self._reachable = reachable
        self._versions, self._held = reachable.versions(), list(reachable.held())
        self._same, self._equal = list(reachable.same()), reachable.equal()

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """A context that restores what the function has changed besides its arguments, and raises
        `CaptureError` if there was such a change.
        """
        put_back = self._reachable.snapshot()
        drawn = GeneratorStates()
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

    def holds(self, function: object) -> bool:
        """Whether `function` is that function, and nothing it depended on has been changed."""
        if function is not self.function:
            return False
        now = self._reachable
        try:
            if now.equal() != self._equal or not are_same(now.same(), self._same):
                return False
            versions = now.versions()
            if versions != self._versions:
                if not are_same(now.held(), self._held):
                    return False
                self._versions = versions
            return True
        except (ValueError, RuntimeError):  # A cell is empty now; a dictionary is being changed.
            return False
