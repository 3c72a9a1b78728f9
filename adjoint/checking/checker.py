"""The option `check`: eager torch runs beside compiled code, and its results are compared."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from weakref import WeakSet

import torch
from torch import fx

from adjoint.checking.comparing import Mismatch, compare, tolerance_of
from adjoint.checking.copies import copied_inputs, same_draws
from adjoint.checking.locating import Culprit, KernelSearch, PassSearch
from adjoint.checking.locating_derivatives import DerivativeSearch
from adjoint.compiler import Compiler
from adjoint.errors import MismatchError
from adjoint.graph.derivative import Derivative, order_of_graph
from adjoint.graph.leaves import detached
from adjoint.graph.metadata import descriptor_of, inputs_of
from adjoint.options import Options
from adjoint.runtime.calling import graph_inputs
from adjoint.runtime.entry import EntryPoint
from adjoint.runtime.executable import PlacedCotangents
from adjoint.torch_private import trees

CHECKS = logging.getLogger("adjoint.checks")


class Checker:
    """Compares the results and gradients of one compiled function with eager's."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._checked: WeakSet[object] = WeakSet()

    def wants(self, subject: object) -> bool:
        """Whether the next call of `subject` is compared; it counts as compared from then on."""
        if self.options.check == "first-call" and subject in self._checked:
            return False
        self._checked.add(subject)
        return True

    def beside(self, entry: EntryPoint, eager: Callable[..., object]) -> Callable[..., object]:
        """The compiled function, with eager beside it."""

        def checked(*inputs: object) -> object:
            if not self.wants(entry):
                return entry(*inputs)
            before, theirs = copied_inputs(inputs), copied_inputs(inputs)
            with same_draws():
                expected = eager(*theirs)
            found = entry(*inputs)
            self._compare(entry, before, [found, *inputs], [expected, *theirs])
            return found

        return checked

    def _compare(
        self, entry: EntryPoint, before: Sequence[object], found: object, expected: object
    ) -> None:
        mine, theirs = trees.leaves(found), trees.leaves(expected)
        mismatch = compare(mine, theirs, tolerance_of(entry.first.graph_module))
        if mismatch is None:
            return
        count = len(mine) - len(before)
        place = mismatch.place
        what = f"result[{place}]" if place < count else f"input {place - count}, after the call,"
        culprit = self._located(lambda: self._of_call(entry, before))
        raise _error(what, mismatch, culprit)

    def _of_call(self, entry: EntryPoint, before: Sequence[object]) -> Culprit | None:
        captured = entry.first
        graph_module = captured.graph_module
        inputs = graph_inputs(captured.calling, captured.leaves(before))
        wrt = [i for i, each in enumerate(inputs) if getattr(each, "requires_grad", False)]
        return self._of_graph(graph_module, inputs, wrt if torch.is_grad_enabled() else [])

    def _of_graph(
        self, graph_module: fx.GraphModule, inputs: Sequence[object], wrt: Sequence[int]
    ) -> Culprit | None:
        """What makes the program of a graph wrong."""
        run = graph_module
        if wrt:
            compiler = Compiler(replace(self.options, check=None, progress=False))
            derivative = compiler.derivative(graph_module, wrt, segmented=True)
            run = graph_module if derivative is None else derivative.runs
        found = KernelSearch(run, inputs, self.options).culprit()
        return found or PassSearch(graph_module, inputs, wrt, self.options).culprit()

    def of_transform(
        self,
        graph_module: fx.GraphModule,
        inputs: Callable[[], Sequence[object]],
        found: object,
        expected: object,
    ) -> None:
        """Raise an error if a transform is not what `torch.func` computes.

        `graph_module`: its program.  `inputs`: what that was given.
        """
        tolerance = tolerance_of(graph_module)
        mismatch = compare(trees.leaves(found), trees.leaves(expected), tolerance)
        if mismatch is not None:
            culprit = self._located(lambda: self._of_graph(graph_module, inputs(), ()))
            raise _error(f"result[{mismatch.place}]", mismatch, culprit)

    def gradients(
        self,
        derivative: Derivative,
        wrt: Sequence[int],
        inputs: Sequence[object],
        cotangents: PlacedCotangents,
        found: Sequence[object],
        eager: Callable[[], Sequence[object]],
    ) -> None:
        """Raise an error if the gradients `found` are not those that `eager` returns."""
        try:
            expected = eager()
        except RuntimeError as error:
            CHECKS.info("gradients are not compared, because eager cannot compute them: %s", error)
            return
        pairs = [_both(*pair) for pair in zip(found, expected, strict=True)]
        mine, theirs = [one for one, _ in pairs], [other for _, other in pairs]
        mismatch = compare(mine, theirs, tolerance_of(derivative.graph_module))
        if mismatch is None:
            return
        graph = derivative.graph_module.graph
        placeholder = inputs_of(graph)[wrt[mismatch.place]]
        order = 1 + order_of_graph(graph)
        what = f"the gradient of {descriptor_of(placeholder).describe()}, of order {order},"
        data = [detached(each) for each in inputs]
        given = [(place, detached(each)) for place, each in cotangents]
        located = DerivativeSearch(derivative, wrt, data, given, theirs, self.options)
        raise _error(what, mismatch, self._located(located.culprit))

    def _located(self, find: Callable[[], Culprit | None]) -> Culprit | None:
        """What is found; that a search fails must not hide the difference."""
        try:
            return find()
        except Exception as error:
            if not isinstance(error, (RuntimeError, AssertionError, LookupError, ValueError)):
                raise
            CHECKS.warning("the op that differs was not found: %s: %s", type(error).__name__, error)
            return None


def _error(what: str, mismatch: Mismatch, culprit: Culprit | None) -> MismatchError:
    said = f"{what} is {mismatch} (relative difference {mismatch.difference:.2g})"
    if culprit is None:
        return MismatchError(said, "neither an op, nor a pass, nor a kernel alone explains it")
    error = MismatchError(said, culprit.why, culprit.op, culprit.source)
    error.reproduction = culprit.reproduction
    return error


def _both(one: object, other: object) -> tuple[object, object]:
    """Two gradients; one that is missing is zero if the other is not missing."""
    if one is None and isinstance(other, torch.Tensor):
        return torch.zeros_like(other), other
    if other is None and isinstance(one, torch.Tensor):
        return one, torch.zeros_like(one)
    return one, other
