"""The autograd node of a graph, and its backward graphs.

A backward graph is compiled when autograd first needs it: for each pattern of missing cotangents,
and again for sizes that violate an assumption of the existing ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import fx

from adjoint.errors import DifferentiationError
from adjoint.graph.boundary import (
    attempt,
    differentiating,
    is_raised_in_user_code,
    warn_of_fallback,
)
from adjoint.graph.derivative import Backward, Derivative, Segments
from adjoint.graph.evaluation import InOwnMemory, InputsWithHistory, detach_inputs, evaluate
from adjoint.graph.metadata import inputs_of
from adjoint.graph.purity import is_impure_graph
from adjoint.graph.sizes import Sizes, Sizing
from adjoint.runtime.calling import BetweenSegments
from adjoint.runtime.executable import Derivatives, Executable
from adjoint.runtime.specializations import (
    Full,
    SizeSpecializations,
    Specializations,
    shown,
)
from adjoint.torch_private.autograd import (
    ReachedNodes,
    apply_node,
    set_grad_enabled,
    zero_cotangent,
)
from adjoint.torch_private.batches import is_batched
from adjoint.torch_private.dynamo import compiling, left_alone_by_dynamo
from adjoint.torch_private.modes import is_autocast_enabled, without_autocast

# Patterns of missing cotangents that get a backward graph; for others, zeros are passed instead.
MAX_PATTERNS = 8

# Backward passes that are remembered: a step with second derivatives has two kinds, and sizes vary.
MAX_RECENT = 4

# Backward graphs of one pattern, each for other assumptions about sizes.
MAX_SIZE_VERSIONS = 8


class BackwardGraph(Protocol):
    """A backward graph that can be run, and differentiated by autograd."""

    def backward(self, inputs: list[Any], known: Sizes, batched: bool) -> Sequence[Any]:
        """The gradients; `known`: the values of size symbols, some of which no input has."""
        ...


@dataclass(frozen=True)
class _Ready:
    """A loaded backward graph; its inputs and outputs as positions in a run."""

    backward: Backward
    graph: BackwardGraph
    saved: list[int]
    """Positions of the saved values that it takes."""
    of: tuple[int, ...]
    """Positions of the outputs whose cotangents it takes."""
    zeros: list[int]
    """Positions of the gradients that it returns as None where eager returns zeros."""


@dataclass(frozen=True)
class _Version:
    """A backward graph for some sizes: with all gradients, and with subsets of them."""

    whole: _Ready
    narrowed: Specializations[tuple[int, ...], _Ready]


class _RecentBackward(NamedTuple):
    """The key of a recent backward, and the graph it ran: checked before the tables."""

    key: tuple[tuple[int, ...], tuple[int, ...], Sizes, int]
    """Outputs with cotangents, needed gradients, sizes, and the number of assumptions then."""
    sizing: Sizing
    ready: _Ready
    own_sizes: Sizes


@dataclass(frozen=True)
class _Kinds:
    """Kinds of outputs and saved values: the same in all calls, so computed once."""

    fixed: list[int]
    """Outputs that are tensors but not differentiable."""
    numbers: list[int]
    """Saved values that are not tensors."""
    others: list[int]
    """Outputs of other segments."""


class _KeptInputs:
    """The inputs of a run, kept so that eager autograd can run the graph again."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        self.inputs = tuple(inputs)
        self._versions = self._now()

    @property
    def have_changed(self) -> bool:
        return self._now() != self._versions

    def _now(self) -> list[int]:
        tensors = (each for each in self.inputs if isinstance(each, torch.Tensor))
        return [0 if each.is_inference() else each._version for each in tensors]


class GradProgram:
    """A graph with its backward graphs, for one set of inputs that require grad.

    If the graph is divided into segments, each segment has a `GradProgram` of its own.
    """

    def __init__(
        self,
        derivative: Derivative,
        wrt: tuple[int, ...],
        compiler: Derivatives,
        make: Callable[[fx.GraphModule], BackwardGraph],
    ) -> None:
        """`make` loads a backward graph, so that autograd can run and differentiate it."""
        self.derivative = derivative
        self.wrt = wrt
        self.compiler = compiler
        self.checker = compiler.checker
        self.keeps_inputs = compiler.checker is not None or self.falls_back
        """Whether eager autograd may have to run the graph again."""
        self.following = ReachedNodes()
        self._make = make
        self._has_failed = False
        """A backward graph could not be compiled, and the user was warned."""
        self._kinds: _Kinds | None = None
        self._recent: list[_RecentBackward] = []
        self._forward: Executable | None = None
        self._backwards: Specializations[tuple[int, ...], SizeSpecializations[_Version]]
        # One entry more: the graph that takes all cotangents, given zeros for missing ones.
        self._backwards = Specializations(MAX_PATTERNS + 1, evicts=False)
        if derivative.first is not None:
            self._versions(derivative.cotangents_of(derivative.first)).add(
                derivative.graph_module, None
            )
        self.segments: list[GradProgram] = []
        if derivative.segments is not None:
            for number in range(len(derivative.segments.inputs)):
                segment, inputs = derivative.segment(number)
                self.segments.append(GradProgram(segment, inputs, compiler, make))

    @property
    def falls_back(self) -> bool:
        """Whether eager autograd takes over what cannot be differentiated."""
        return self.compiler.options.unsupported == "eager"

    @property
    def saved_inputs(self) -> frozenset[int]:
        """Positions of the inputs that autograd saves."""
        segments = self.derivative.segments
        if segments is None:
            return frozenset(self.derivative.saved_inputs)
        # Later inputs of a segment are outputs of earlier ones.
        count = len(inputs_of(self.derivative.graph_module.graph))
        count -= len(segments.cuts)
        saved = {place for each in self.segments for place in each.derivative.saved_inputs}
        return frozenset(place for place in saved if place < count)

    def __call__(
        self, inputs: Sequence[Any], sizes: Sizes, between: BetweenSegments | None = None
    ) -> Sequence[Any]:
        is_grad_enabled = torch.is_grad_enabled()
        try:
            # Before the autograd node is made: a GPU computes meanwhile.
            set_grad_enabled(False)
            outputs = self.forward(inputs)
            set_grad_enabled(True)
            if self.derivative.segments is not None:
                outputs = list(outputs) if between is None else between.separate(outputs)
                segments = self.derivative.segments
                return self._in_segments(segments, list(inputs), outputs, sizes, between)
            traced = [inputs[index] for index in self.wrt]
            noted = apply_node(_Node, self, sizes, inputs, outputs, *traced)
        finally:
            set_grad_enabled(is_grad_enabled)
        results = noted[: self.derivative.results]
        return InOwnMemory(results) if isinstance(outputs, InOwnMemory) else results

    def _in_segments(
        self,
        segments: Segments,
        inputs: list[Any],
        outputs: list[Any],
        sizes: Sizes,
        between: BetweenSegments | None,
    ) -> Sequence[Any]:
        """The results, each with the autograd node of its segment; grad is enabled."""
        count = len(inputs)
        of_output = segments.of_output
        inputs += [None] * len(segments.cuts)
        for number, segment in enumerate(self.segments):
            # Outputs of later segments are neither returned nor saved by this one.
            own = [n for n, each in enumerate(of_output) if each == number]
            there = [v if n <= number else None for v, n in zip(outputs, of_output, strict=True)]
            traced = [inputs[index] for index in segment.wrt]
            noted = apply_node(_Node, segment, sizes, inputs, there, *traced)
            for place in own:
                outputs[place] = noted[place]
            for place, cut in enumerate(segments.cuts):
                if of_output[cut] == number:
                    found = outputs[cut] if between is None else between.at(cut, outputs)
                    inputs[count + place] = found
        return outputs[: self.derivative.results]

    def forward(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """All outputs, saved values included."""
        loaded = self._forward or self._load()
        # Ops under `enable_grad` inside the graph must not record: this node has the derivative.
        given = InputsWithHistory(inputs)
        if not getattr(loaded, "forgets_histories", False):
            detach_inputs(given)
        return loaded(given)

    def _load(self) -> Executable:
        with compiling():
            if self._forward is None:
                self._forward = self.compiler.program(self.derivative.runs)
            return self._forward

    def kinds(self, outputs: Sequence[Any], saved: Sequence[Any]) -> _Kinds:
        """The kinds of outputs and saved values, found in the first call."""
        if self._kinds is None:
            history = self.derivative.history
            own = self.derivative.own
            self._kinds = _Kinds(
                [i for i in _tensors(outputs) if i in own and i not in history],
                sorted({*range(len(saved))} - {*_tensors(saved)}),
                [i for i in range(len(outputs)) if i not in own],
            )
        return self._kinds

    # Backward graphs

    def backward(
        self, of: tuple[int, ...], wanted: tuple[int, ...], sizes: Sizes
    ) -> tuple[_Ready, Sizes]:
        """The backward graph for cotangents of the outputs `of`, and `sizes` by its symbols.

        `wanted`: positions in `wrt` of the inputs whose gradients this backward pass needs.
        """
        for recent in self._recent:
            if recent.key == (of, wanted, sizes, recent.sizing.count):
                return recent.ready, recent.own_sizes
        with differentiating(self.derivative.graph_module):
            versions = self._backwards.get(of)
            found = None if versions is None else versions.find(sizes)
            if found is None:
                with compiling():
                    versions = self._versions(of)
                    try:
                        found = versions.find(sizes) or versions.make(sizes)
                        assert found is not None, "there is a backward graph for all sizes"
                    except Full as full:
                        why = f"{full}; now sizes are {shown(sizes)}"
                        op = "a function of symbolic sizes"
                        raise DifferentiationError(op, 1, why) from full.__cause__
            ready, own_sizes = self._narrowed(found.value, wanted), found.own(sizes)
        key = (of, wanted, sizes, found.sizing.count)
        recent = _RecentBackward(key, found.sizing, ready, own_sizes)
        self._recent = [recent, *self._recent[: MAX_RECENT - 1]]
        return ready, own_sizes

    def _versions(self, of: tuple[int, ...]) -> SizeSpecializations[_Version]:
        versions = self._backwards.get(of)
        if versions is None:
            versions = SizeSpecializations(
                self.derivative.graph_module,
                lambda graph_module: self._version(graph_module, of),
                MAX_SIZE_VERSIONS,
                "its derivative",
            )
            self._backwards.add(of, versions)
        return versions

    def _version(self, graph_module: fx.GraphModule, of: tuple[int, ...]) -> _Version:
        derivative = self.derivative
        if graph_module is not derivative.graph_module:
            # The first backward graph assumes other sizes.
            derivative = replace(derivative, graph_module=graph_module, first=None)
        made = self.compiler.backward(derivative, of, self.wrt)
        return _Version(self._ready(made), Specializations(MAX_PATTERNS, evicts=False))

    def _narrowed(self, version: _Version, wanted: tuple[int, ...]) -> _Ready:
        if len(wanted) == len(self.wrt):
            return version.whole
        found = version.narrowed.get(wanted)
        if found is None:
            with compiling():
                if version.narrowed.is_full:
                    return version.whole
                whole = version.whole.backward
                found = attempt(
                    lambda: self._ready(self.compiler.narrowed(whole, frozenset(wanted))),
                    whole.graph_module,
                    "computes gradients that nobody waits for",
                )
                found = found or version.whole
                version.narrowed.add(wanted, found)
        return found

    def _ready(self, backward: Backward) -> _Ready:
        zeros = enumerate(backward.gradients)
        return _Ready(
            backward,
            self._make(backward.graph_module),
            self.derivative.saved_for(backward),
            self.derivative.cotangents_of(backward),
            [place for place, each in zeros if each.of in backward.zeros],
        )

    def pattern(self, given: tuple[int, ...]) -> tuple[int, ...]:
        """The pattern to compile for: `given`, or all outputs if there are too many patterns."""
        if given in self._backwards or len(self._backwards) < MAX_PATTERNS:
            return given
        return self.derivative.order

    def in_eager(
        self,
        kept: _KeptInputs | None,
        cotangents: Sequence[tuple[int, Any]],
        wanted: tuple[int, ...],
        error: DifferentiationError,
    ) -> list[Any]:
        """The gradients by eager autograd, which runs the graph again on the `kept` inputs.

        Raises `error` if they were not kept, or if another run might give other values.
        `cotangents`: pairs of the position of an output and its cotangent.
        """
        graph_module = self.derivative.graph_module
        if kept is None or kept.have_changed or is_impure_graph(graph_module.graph):
            cause = error.__cause__
            if cause is not None and is_raised_in_user_code(cause):
                raise cause
            raise error from cause
        if not self._has_failed:
            warn_of_fallback(f"eager autograd takes over: {error}", error.source)
            self._has_failed = True
        return self._eager_gradients(graph_module, kept, cotangents, wanted)

    def check(
        self,
        kept: _KeptInputs | None,
        cotangents: Sequence[tuple[int, Any]],
        wanted: tuple[int, ...],
        gradients: Sequence[Any],
    ) -> None:
        """Compare gradients with those of eager autograd, if it can run the graph again."""
        graph_module = self.derivative.graph_module
        if self.checker is None or not self.checker.wants(self):
            return
        if kept is None or kept.have_changed or is_impure_graph(graph_module.graph):
            return

        def eager() -> list[Any]:
            composed = self.compiler.composed(graph_module)
            found = self._eager_gradients(composed, kept, cotangents, wanted)
            return [found[place] for place in wanted]

        wrt = [self.wrt[place] for place in wanted]
        found = [gradients[place] for place in wanted]
        self.checker.gradients(self.derivative, wrt, kept.inputs, cotangents, found, eager)

    def _eager_gradients(
        self,
        graph_module: fx.GraphModule,
        kept: _KeptInputs,
        cotangents: Sequence[tuple[int, Any]],
        wanted: tuple[int, ...],
    ) -> list[Any]:
        with torch.enable_grad():
            # Views, so that autograd stops here even if one input was computed from another.
            inputs = list(kept.inputs)
            places = [self.wrt[place] for place in wanted]
            for place in places:
                inputs[place] = inputs[place].view_as(inputs[place])
            outputs = evaluate(graph_module, inputs)
        found = torch.autograd.grad(
            [outputs[place] for place, _ in cotangents],
            [inputs[place] for place in places],
            [cotangent for _, cotangent in cotangents],
            create_graph=torch.is_grad_enabled(),
            allow_unused=True,
        )
        gradients: list[Any] = [None] * len(self.wrt)
        for place, gradient in zip(wanted, found, strict=True):
            gradients[place] = gradient
        return gradients


class _Node(torch.autograd.Function):
    """One run of a graph, as autograd sees it."""

    @staticmethod
    def forward(
        ctx: Any,
        program: GradProgram,
        sizes: Sizes,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        *_: torch.Tensor,
    ) -> Any:
        """The last arguments are the inputs that require grad: autograd has to see them."""
        derivative = program.derivative
        saved = derivative.saved_from(inputs, outputs)
        kinds = program.kinds(outputs, saved)
        ctx.program, ctx.sizes = program, sizes
        ctx.kept = _KeptInputs(inputs) if program.keeps_inputs else None
        ctx.set_materialize_grads(False)
        if kinds.fixed:
            ctx.mark_non_differentiable(*[outputs[i] for i in kinds.fixed])
        ctx.numbers = [(place, saved[place]) for place in kinds.numbers]
        for place in kinds.numbers:
            saved[place] = None
        ctx.save_for_backward(*saved)
        if not kinds.others:
            return tuple(outputs)
        returned = list(outputs)
        for place in kinds.others:
            returned[place] = None
        return tuple(returned)

    # A backward pass inside a frame that Dynamo compiles must not trace into this function.
    @staticmethod
    @left_alone_by_dynamo
    def backward(ctx: Any, *cotangents: Any) -> Any:
        program: GradProgram = ctx.program
        order = program.derivative.order
        given = tuple([index for index in order if cotangents[index] is not None])
        if not given:
            return _NO_TENSORS + (None,) * len(program.wrt)
        of = program.pattern(given)
        following = ctx.next_functions  # Builds a new tuple at each access.
        wanted = program.following.that_run([node for node, _ in following], given)
        try:
            ready, sizes = program.backward(of, wanted, ctx.sizes)
        except DifferentiationError as error:
            pairs = [(index, cotangents[index]) for index in given]
            return (*_NO_TENSORS, *program.in_eager(ctx.kept, pairs, wanted, error))
        saved = _saved(ctx)
        arguments = [saved[place] for place in ready.saved]
        arguments += [
            zero_cotangent(ctx, index) if cotangents[index] is None else cotangents[index]
            for index in ready.of
        ]
        batched = any(map(is_batched, [cotangents[index] for index in given]))
        checked = [(i, cotangents[i]) for i in given] if program.checker and not batched else None
        del saved, cotangents
        if is_autocast_enabled():
            with without_autocast():
                gradients = ready.graph.backward(arguments, sizes, batched)
        else:
            gradients = ready.graph.backward(arguments, sizes, batched)
        if ready.zeros:
            gradients = list(gradients)
            for place in ready.zeros:
                gradients[place] = zero_cotangent(*following[place])
        if checked is not None:
            program.check(ctx.kept, checked, wanted, gradients)
        return (*_NO_TENSORS, *gradients)


# Gradients of the arguments of `_Node.forward` that are not tensors.
_NO_TENSORS = (None,) * 4


def _tensors(values: Sequence[Any]) -> list[int]:
    return [place for place, value in enumerate(values) if isinstance(value, torch.Tensor)]


def _saved(ctx: Any) -> list[Any]:
    values = list(ctx.saved_tensors)
    for place, number in ctx.numbers:
        values[place] = number
    if hasattr(ctx, "maybe_clear_saved_tensors"):
        # Unless autograd retains the graph, saved tensors are freed while the backward graph runs.
        ctx.maybe_clear_saved_tensors()
    return values
