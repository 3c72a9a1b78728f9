"""The autograd bridge: a compiled graph is a node of torch's autograd graph, at every order.

A graph whose inputs require grad runs as one `autograd.Function` (`autograd_node.py`).  What its
backward needs are inputs and outputs of that function: values saved besides the results are among
its outputs.  So its backward, which is a graph again, can be applied as such a function in turn
when autograd wants to differentiate it (`create_graph=True`).  Cotangents that then reach saved
values come back to the first function.

Where `torch.func` or forward mode is at work the graph runs op by op: they differentiate and batch
each op.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import fx

from adjoint.errors import DifferentiationError
from adjoint.graph.boundary import (
    differentiating,
    is_raised_in_user_code,
    location_of_graph,
    warn_of_failure,
    warn_of_fallback,
)
from adjoint.graph.evaluation import evaluate
from adjoint.graph.metadata import entry_mode
from adjoint.graph.sizes import NotResizable, Sizes, Sizing, resized
from adjoint.runtime.autograd_node import GradProgram
from adjoint.runtime.calling import Standing
from adjoint.runtime.checking import UnexpectedResult
from adjoint.runtime.executable import Derivatives, Executable
from adjoint.runtime.specializations import (
    Full,
    SizeSpecializations,
    Specializations,
    Version,
    shown,
)
from adjoint.torch_private.autograd import has_tangent, set_grad_enabled
from adjoint.torch_private.batches import vmap_over_batch
from adjoint.torch_private.dynamo import compiling
from adjoint.torch_private.fake import DATA_DEPENDENT
from adjoint.torch_private.functorch import functorch_is_active
from adjoint.torch_private.modes import are_ops_observed

# How often a graph is compiled anew because a library op returned something else than its fake.
MAX_REMAKES = 16

# Derivatives of one graph for this many sets of assumptions about sizes; after that, eager torch.
MAX_SIZE_VERSIONS = 8

# Sets of inputs that require grad for which the derivatives of one graph are kept.
MAX_INPUT_SETS = 32

# For each set of inputs that require grad, the graph with its derivatives; None: nothing requires
# grad then.
_GradPrograms: TypeAlias = Specializations[tuple[int, ...], "tuple[GradProgram | None]"]


class _LastCall(NamedTuple):
    """What the last call that autograd follows was for, and what it led to."""

    wrt: tuple[int, ...]
    sizes: Sizes
    program: GradProgram
    own_sizes: Sizes
    sizing: Sizing
    assumed: int

    @property
    def holds(self) -> bool:
        """Nothing more has been assumed since."""
        return self.sizing.count == self.assumed


class DifferentiableGraph:
    """A graph that runs, and can be differentiated by autograd any number of times."""

    def __init__(self, graph_module: fx.GraphModule, compiler: Derivatives) -> None:
        self.graph_module = self._captured = graph_module
        self.compiler = compiler
        self._eager = False
        """The derivative cannot be built, and is left to eager autograd."""
        self._plain: Executable | None = None
        self._ops: fx.GraphModule | None = None
        self._sizing = Sizing(graph_module)
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
        inputs: Sequence[Any],
        known: Sizes | None = None,
        standing: Standing | None = None,
    ) -> Sequence[Any]:
        """The outputs; `known` are sizes that the inputs may not show.

        `standing`: what later segments take for outputs of earlier ones.
        """
        try:
            return self._called(inputs, known, standing)
        except UnexpectedResult as error:
            self._remake(error, self._sizes(inputs, known))
        return self(inputs, known, standing)

    def in_segments(self, inputs: Sequence[Any], standing: Standing) -> Sequence[Any]:
        """The outputs, where the caller makes views of some that others are computed from."""
        return self(inputs, standing=standing)

    def _called(
        self, inputs: Sequence[Any], known: Sizes | None, standing: Standing | None
    ) -> Sequence[Any]:
        if are_ops_observed() and (functorch_is_active() or has_tangent(inputs)):
            return self._by_ops(inputs)
        wrt = self._inputs_of_interest(inputs)
        if not wrt:
            return self.run(list(inputs), known)
        found, sizes = None, self._sizes(inputs, known)
        if not self._eager:
            last = self._last
            if last is not None and last.wrt == wrt and last.sizes == sizes and last.holds:
                return last.program(inputs, last.own_sizes, standing)
            try:
                with differentiating(self.graph_module):
                    found = self._grad_program(wrt, sizes)
            except DifferentiationError as error:
                self._leave_to_eager(error)
        if found is None:
            return evaluate(self.graph_module, inputs)  # type: ignore[no-any-return]
        grad_program, version = found
        if grad_program is None:
            return self.run(list(inputs), known)
        own_sizes = version.own(sizes)
        self._last = _LastCall(
            wrt, sizes, grad_program, own_sizes, version.sizing, version.sizing.count
        )
        return grad_program(inputs, own_sizes, standing)

    def run(self, inputs: list[Any], known: Sizes | None = None) -> Sequence[Any]:
        """The outputs, without a history; `inputs` is empty then."""
        is_grad_enabled = torch.is_grad_enabled()
        if is_grad_enabled:
            set_grad_enabled(False)
        try:
            if are_ops_observed() and (functorch_is_active() or has_tangent(inputs)):
                return self._by_ops(inputs)
            return (self._plain or self._load())(inputs)
        except UnexpectedResult as error:
            self._remake(error, self._sizes(inputs, known))
        finally:
            if is_grad_enabled:
                set_grad_enabled(True)
        return self.run(inputs, known)

    def _remake(self, error: UnexpectedResult, sizes: Sizes) -> None:
        """Compile the graph anew with what an op was seen to return, and its derivatives later.

        If that cannot be known beforehand, the graph runs op by op from now on.
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
                self._plain = self.compiler.program(self.graph_module)
            return self._plain

    def backward(self, inputs: list[Any], known: Sizes, batched: bool) -> Sequence[Any]:
        """The outputs of a backward graph, with a history if autograd is to differentiate them.

        `batched`: for a batch of cotangents.
        """
        if batched:
            return vmap_over_batch(self._by_ops, inputs)
        return self(inputs, known) if torch.is_grad_enabled() else self.run(inputs, known)

    def _by_ops(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The outputs, where `torch.func` or forward mode differentiates and batches each op."""
        if self._ops is None:
            self._ops = self.compiler.composed(self.graph_module)
        return evaluate(self._ops, inputs)  # type: ignore[no-any-return]

    def grad_programs(self) -> list[GradProgram]:
        """The derivatives there are."""
        tables = [version.value for version in self._versions.versions]
        made = [each for table in tables for (each,) in table.values()]
        return [each for each in made if each is not None]

    def _sizes(self, inputs: Sequence[Any], known: Sizes | None) -> Sizes:
        found = self._sizing.of(inputs)
        return {**known, **found} if known else found

    def _grad_program(
        self, wrt: tuple[int, ...], sizes: Sizes
    ) -> tuple[GradProgram | None, Version[_GradPrograms]] | None:
        """What is differentiated for `sizes`, and the version it is of; None: eager autograd is."""
        for version in tuple(self._versions.versions):
            if version.violated(sizes) is None:
                made = self._made(version, wrt)
                # To make it, more may have been assumed.
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
        """What depends on data no graph can say, and a derivative of the user's that raises is to
        raise where eager would; for the rest, the user has to ask for it.
        """
        falls_back = self.compiler.options.unsupported == "eager"
        cause = error.__cause__
        if not (falls_back or isinstance(cause, DATA_DEPENDENT) or is_raised_in_user_code(cause)):
            raise error from cause
        warn_of_fallback(f"eager autograd takes over: {error}", error.source)
        self._eager = True

    def _inputs_of_interest(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        """Positions of the inputs that autograd differentiates with respect to."""
        if not torch.is_grad_enabled() and entry_mode(self.graph_module).grad_enabled:
            return ()
        places = enumerate(inputs)
        found = tuple([i for i, v in places if isinstance(v, torch.Tensor) and v.requires_grad])
        # In inference mode autograd is off, also in regions that enable grad.
        return () if found and torch.is_inference_mode_enabled() else found
