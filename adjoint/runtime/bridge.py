"""The autograd bridge: a compiled graph is a node of torch's autograd graph, at every order.

A graph whose inputs require grad runs as one `autograd.Function` (`grad_program.py`).  The saved
values are inputs or outputs of that function, so autograd knows their history.  The backward is a
graph again, and under `create_graph=True` it runs as such a function, too; cotangents of saved
values then flow back to the first function.

Under `torch.func` transforms and forward mode the graph runs op by op, because they differentiate
and batch each op themselves.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import fx

from adjoint.errors import DifferentiationError
from adjoint.graph.boundary import (
    differentiating,
    is_known_when_run,
    is_raised_in_user_code,
    location_of_graph,
    warn_of_failure,
    warn_of_fallback,
)
from adjoint.graph.derivative import picker
from adjoint.graph.evaluation import evaluate
from adjoint.graph.metadata import entry_mode, inputs_of, outputs_of, value_of
from adjoint.graph.operations import as_leaf
from adjoint.graph.sizes import NotResizable, Sizes, Sizing, resized
from adjoint.open_types import TorchValue
from adjoint.runtime.autograd_node import tensors_in
from adjoint.runtime.calling import BetweenSegments
from adjoint.runtime.checking import UnexpectedResult
from adjoint.runtime.executable import Derivatives, Executable
from adjoint.runtime.grad_program import GradProgram
from adjoint.runtime.specializations import (
    MAX_SIZE_VERSIONS,
    Full,
    SizeSpecializations,
    Specializations,
    Version,
    shown,
)
from adjoint.torch_private.autograd import has_tangent, set_grad_enabled
from adjoint.torch_private.batches import vmap_over_batch
from adjoint.torch_private.dynamo import compiling
from adjoint.torch_private.functorch import functorch_is_active
from adjoint.torch_private.modes import are_ops_observed

_requires_grad = operator.attrgetter("requires_grad")

# Recompilations of a graph because a library op returned something else than its fake predicted.
MAX_REMAKES = 16

# Derivatives of one graph, each for another set of inputs that require grad.
MAX_INPUT_SETS = 32

# For each set of inputs that require grad, the graph with its derivatives; None: no output requires
# grad.
_GradPrograms: TypeAlias = Specializations[tuple[int, ...], "tuple[GradProgram | None]"]


class _LastCall(NamedTuple):
    """The last differentiable call: most calls run the same program."""

    wrt: tuple[int, ...]
    version: Version[_GradPrograms]
    guards: Sequence[object]
    """If there are none, the version fits all sizes, by the symbols of the graph itself."""
    program: GradProgram


class DifferentiableGraph:
    """A graph that can be run, and differentiated by autograd any number of times."""

    def __init__(self, graph_module: fx.GraphModule, compiler: Derivatives) -> None:
        self.graph_module = self._captured = graph_module
        self.compiler = compiler
        self._records = entry_mode(graph_module).grad_enabled
        """Whether the graph was captured with grad mode on."""
        self._eager = False
        """Whether eager autograd differentiates the graph, because its derivative failed."""
        self._has_warned = False
        self._plain: Executable | None = None
        self._ops: fx.GraphModule | None = None
        self._sizing = Sizing(graph_module)
        self._is_sized = not self._sizing.is_known_by({})
        """Whether inputs have symbolic sizes."""
        tensors = tensors_in([value_of(node) for node in inputs_of(graph_module.graph)])
        self._tensors = tensors
        """Positions of the inputs that are tensors."""
        self._take_tensors = picker(tensors)
        self._makes_leaf = _makes_leaf(graph_module)
        self._remakes = 0
        self._versions = self._no_versions()
        self._versions.add(graph_module, None)
        self._last: _LastCall | None = None

    def _no_versions(self) -> SizeSpecializations[_GradPrograms]:
        return SizeSpecializations(
            self._captured,
            lambda _: Specializations(MAX_INPUT_SETS),
            MAX_SIZE_VERSIONS,
            "its derivative",
        )

    def __call__(
        self,
        inputs: Sequence[object],
        known: Sizes | None = None,
        between: BetweenSegments | None = None,
    ) -> Sequence[TorchValue]:
        """The outputs; `known`: the values of size symbols, some of which no input has.

        `between`: makes the inputs of later segments from outputs of earlier ones.
        """
        try:
            if are_ops_observed() and (functorch_is_active() or has_tangent(inputs)):
                return self._by_ops(inputs)
            wrt = self._inputs_of_interest(inputs)
            if self._makes_leaf and torch.is_grad_enabled():
                return self._from_a_leaf(inputs)
            if not wrt:
                return self._run(list(inputs), known)
            sizes = self._sizes(inputs, known) if self._is_sized else known or {}
            last = self._last
            if last is not None and last.wrt == wrt:
                own = last.version.fitted(sizes) if last.guards else sizes
                if own is not None:
                    return last.program(inputs, own, between)
            return self._called(inputs, wrt, sizes, between)
        except UnexpectedResult as error:
            self._remake(error, self._sizes(inputs, known))
        return self(inputs, known, between)

    def _from_a_leaf(self, inputs: Sequence[object]) -> Sequence[object]:
        """The outputs, one of which is a new leaf that others are computed from."""
        if not self._eager:
            self._eager, self._last = True, None
            place = location_of_graph(self.graph_module)
            message = f"{place.op} runs in eager torch: it returns a leaf and what depends on it"
            warn_of_fallback(message, place.source)
        return evaluate(self.graph_module, inputs)  # type: ignore[no-any-return]

    def saved_inputs(self, inputs: Sequence[object]) -> Collection[int]:
        """Positions of the inputs that autograd may save in a call with these."""
        wrt = self._inputs_of_interest(inputs)
        if not wrt:
            return ()
        everything = range(len(inputs))
        if (
            self._eager
            or self._makes_leaf
            or are_ops_observed()
            or self.compiler.options.unsupported == "eager"
        ):
            return everything
        try:
            with differentiating(self.graph_module):
                found = self._grad_program(wrt, self._sizes(inputs, None))
        except DifferentiationError:
            return everything  # Raised again, or handled, when the graph runs.
        if found is None:
            return everything
        return () if found[0] is None else found[0].saved_inputs

    def in_segments(self, inputs: Sequence[object], between: BetweenSegments) -> Sequence[object]:
        """The outputs; `between` replays views that other outputs are computed from."""
        return self(inputs, between=between)

    def _called(
        self,
        inputs: Sequence[object],
        wrt: tuple[int, ...],
        sizes: Sizes,
        between: BetweenSegments | None,
    ) -> Sequence[object]:
        """The outputs, where the last program does not fit."""
        found = None
        if not self._eager:
            try:
                with differentiating(self.graph_module):
                    found = self._grad_program(wrt, sizes)
            except DifferentiationError as error:
                self._leave_to_eager(error)
        if found is None:
            if between is not None:
                self._warn_of_lost_gradients()
            return evaluate(self.graph_module, inputs)  # type: ignore[no-any-return]
        grad_program, version = found
        if grad_program is None:
            return self.run(list(inputs), sizes)
        guards = version.sizing.assumptions if version.names is None else ("other symbols",)
        self._last = _LastCall(wrt, version, guards, grad_program)
        return grad_program(inputs, version.own(sizes), between)

    def _warn_of_lost_gradients(self) -> None:
        """Once: op by op, the views and writes that segments depend on come after all ops."""
        if not self._has_warned:
            self._has_warned = True
            place = location_of_graph(self.graph_module)
            warn_of_fallback(
                "where eager autograd takes over, results have no gradient with respect to inputs "
                "that the function writes to and views that it returns",
                place.source,
            )

    def run(self, inputs: list[object], known: Sizes | None = None) -> Sequence[object]:
        """The outputs, without autograd history; clears `inputs`."""
        if are_ops_observed() and (functorch_is_active() or has_tangent(inputs)):
            with torch.no_grad():
                return self._by_ops(inputs)
        return self._run(inputs, known)

    def _run(self, inputs: list[object], known: Sizes | None) -> Sequence[object]:
        """The same, where nothing has to see each op."""
        is_grad_enabled = torch.is_grad_enabled()
        if is_grad_enabled:
            set_grad_enabled(False)
        try:
            return (self._plain or self._load())(inputs)
        except UnexpectedResult as error:
            self._remake(error, self._sizes(inputs, known))
        finally:
            if is_grad_enabled:
                set_grad_enabled(True)
        return self._run(inputs, known)

    def _remake(self, error: UnexpectedResult, sizes: Sizes) -> None:
        """Recompile the graph with the layout that an op was observed to return.

        If that layout varies, or after too many recompilations, the graph runs op by op.
        """
        with compiling():
            self._remakes += 1
            if error.is_learned and self._remakes <= MAX_REMAKES:
                with contextlib.suppress(NotResizable):
                    self.graph_module, names = resized(self._captured, sizes)
                    self._versions = self._no_versions()
                    self._versions.add(self.graph_module, names)
                    self._plain = self._ops = self._last = None
                    return
            warn_of_failure(error, self.graph_module)
            self._eager, self._last = True, None
            self._plain = functools.partial(evaluate, self.graph_module)

    def _load(self) -> Executable:
        with compiling():
            if self._plain is None:
                self._plain = self.compiler.whole(self.graph_module)
            return self._plain

    def backward(self, inputs: list[object], known: Sizes, batched: bool) -> Sequence[object]:
        """The outputs of a backward graph, with a history under `create_graph=True`.

        `batched`: cotangents are batched (`is_grads_batched=True`).
        """
        if batched:
            return vmap_over_batch(self._by_ops, inputs)
        if torch.is_grad_enabled():
            return self(inputs, known)
        if are_ops_observed():
            return self.run(inputs, known)
        try:
            return (self._plain or self._load())(inputs)
        except UnexpectedResult as error:
            self._remake(error, self._sizes(inputs, known))
        return self._run(inputs, known)

    def _by_ops(self, inputs: Sequence[object]) -> Sequence[object]:
        """The outputs, op by op: `torch.func` or forward mode differentiates and batches each."""
        if self._ops is None:
            self._ops = self.compiler.composed(self.graph_module)
        return evaluate(self._ops, inputs)  # type: ignore[no-any-return]

    def grad_programs(self) -> list[GradProgram]:
        """The derivatives that have been compiled."""
        tables = [version.value for version in self._versions.versions]
        made = [each for table in tables for (each,) in table.values()]
        return [each for each in made if each is not None]

    def _sizes(self, inputs: Sequence[object], known: Sizes | None) -> Sizes:
        if known and self._sizing.is_known_by(known):
            return known
        found = self._sizing.of(inputs)
        return {**known, **found} if known else found

    def _grad_program(
        self, wrt: tuple[int, ...], sizes: Sizes
    ) -> tuple[GradProgram | None, Version[_GradPrograms]] | None:
        """The program for `sizes`, and the version that has it; None: eager autograd takes over."""
        for version in tuple(self._versions.versions):
            if version.violated(sizes) is None:
                made = self._made(version, wrt)
                # Compiling it may have added assumptions.
                if version.violated(sizes) is None:
                    return made, version
        with compiling():
            try:
                made_anew = self._versions.make(sizes)
            except Full as full:
                place = location_of_graph(self.graph_module)
                message = f"eager autograd takes over {place.op} for sizes {shown(sizes)}: {full}"
                warn_of_fallback(message, place.source)
                return None
            assert made_anew is not None, "a graph can be differentiated for all sizes"
            return self._made(made_anew, wrt), made_anew

    def _made(self, version: Version[_GradPrograms], wrt: tuple[int, ...]) -> GradProgram | None:
        found = version.value.get(wrt)
        if found is None:
            with compiling():
                found = version.value.get(wrt)
                if found is None:
                    derivative = self.compiler.derivative(version.graph_module, wrt, segmented=True)
                    make = functools.partial(DifferentiableGraph, compiler=self.compiler)
                    found = (
                        None
                        if derivative is None
                        else GradProgram(derivative, wrt, self.compiler, make),
                    )
                    version.value.add(wrt, found)
        return found[0]

    def _leave_to_eager(self, error: DifferentiationError) -> None:
        """Let eager autograd differentiate the graph, or raise `error` if that is not allowed.

        It is allowed if the user asked for it, or if the derivative depends on data or on an op for
        which none is registered.  It is also allowed if the user's own derivative raised: eager
        then raises at the same place as without adjoint.
        """
        falls_back = self.compiler.options.unsupported == "eager"
        cause = error.__cause__
        if not (falls_back or is_known_when_run(cause) or is_raised_in_user_code(cause)):
            raise error from cause
        warn_of_fallback(f"eager autograd takes over: {error}", error.source)
        self._eager, self._last = True, None

    def _inputs_of_interest(self, inputs: Sequence[object]) -> tuple[int, ...]:
        """Positions of the inputs that require grad; none if autograd is off."""
        if self._records and not torch.is_grad_enabled():
            return ()
        flags = map(_requires_grad, self._take_tensors(inputs))
        found = tuple(itertools.compress(self._tensors, flags))
        # Inference mode turns autograd off even under `enable_grad`.
        return () if found and torch.is_inference_mode_enabled() else found


def _makes_leaf(graph_module: fx.GraphModule) -> bool:
    """Whether the graph returns a new leaf (`requires_grad_()`) and uses it, too."""
    returned = set(outputs_of(graph_module.graph))
    leaves = graph_module.graph.find_nodes(op="call_function", target=as_leaf)
    return any(leaf in returned and len(leaf.users) > 1 for leaf in leaves)
