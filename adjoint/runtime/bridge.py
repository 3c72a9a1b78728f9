"""The autograd bridge: a compiled graph is a node of torch's autograd graph, at every order.

A graph whose inputs require grad runs as one `autograd.Function`.  What its backward needs are
inputs and outputs of that function - values saved besides the results are outputs, too.  So its
backward, which is a graph again, can be applied as such a function in turn when autograd wants to
differentiate it (`create_graph=True`).  Cotangents that then reach saved values come back to the
first function.

Backward graphs are made when first needed, one for each pattern of cotangents that autograd leaves
out, and anew for sizes of which an assumption made on the way does not hold.  Where `torch.func` or
forward mode is at work, the graph runs op by op: they differentiate and batch ops.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from adjoint.errors import DifferentiationError
from adjoint.graph.boundary import (
    attempt,
    differentiating,
    location_of_graph,
    warn_of_failure,
    warn_of_fallback,
)
from adjoint.graph.evaluation import InputsWithHistory, detach_inputs, evaluate
from adjoint.graph.metadata import entry_mode
from adjoint.graph.purity import is_impure_graph
from adjoint.graph.sizes import NotResizable, Renaming, Sizes, Sizing, renamed, resized
from adjoint.runtime.calling import Standing
from adjoint.runtime.checking import UnexpectedResult
from adjoint.runtime.recorded import Builder, Executable, Recorded, Reversed, Stages
from adjoint.torch_private.batches import is_batched, vmap_over_batch
from adjoint.torch_private.dynamo import compiling
from adjoint.torch_private.fake import DATA_DEPENDENT
from adjoint.torch_private.modes import (
    ReachedNodes,
    functorch_is_active,
    has_tangent,
    is_autocast_enabled,
    without_autocast,
    zero_cotangent,
)

# Backward graphs for this many patterns of missing cotangents; after that, zeros are made.
PATTERNS = 8

# What an op returns may differ this often from what a graph was made for; after that, eager torch.
REMADE = 16

# Derivatives of one graph for this many sets of assumptions about sizes; after that, eager torch.
SIZINGS = 8


class Compiled:
    """A graph that runs, and can be differentiated by autograd any number of times."""

    def __init__(self, graph_module: fx.GraphModule, builder: Builder) -> None:
        self.graph_module = self._captured = graph_module
        self.builder = builder
        self._eager = False
        """The derivative cannot be built, and is left to eager autograd."""
        self._plain: Executable | None = None
        self._ops: fx.GraphModule | None = None
        self._sizing = Sizing(graph_module)
        self._sizings = [_Sized(graph_module, self._sizing)]
        self._remade = 0

    def __call__(
        self,
        inputs: Sequence[Any],
        known: Sizes | None = None,
        standing: Standing | None = None,
    ) -> Sequence[Any]:
        """The outputs; `known` are sizes that the inputs may not show.

        `standing`: what later stages take for outputs of earlier ones.
        """
        try:
            return self._called(inputs, known, standing)
        except UnexpectedResult as error:
            self._remake(error, self._sizes(inputs, known))
        return self(inputs, known, standing)

    def in_stages(self, inputs: Sequence[Any], standing: Standing) -> Sequence[Any]:
        """The outputs, where the caller makes views of some that others are computed from."""
        return self(inputs, standing=standing)

    def _called(
        self, inputs: Sequence[Any], known: Sizes | None, standing: Standing | None
    ) -> Sequence[Any]:
        if functorch_is_active() or has_tangent(inputs):
            return self._by_ops(inputs)
        wrt = self._recorded_inputs(inputs)
        if not wrt:
            return self.run(list(inputs), known)
        found = None
        if not self._eager:
            try:
                with differentiating(self.graph_module):
                    found = self._recording(wrt, self._sizes(inputs, known))
            except DifferentiationError as error:
                self._leave_to_eager(error)
        if found is None:
            return evaluate(self.graph_module, inputs)  # type: ignore[no-any-return]
        recording, sizes = found
        if recording is None:
            return self.run(list(inputs), known)
        return recording(inputs, sizes, standing)

    def run(self, inputs: list[Any], known: Sizes | None = None) -> Sequence[Any]:
        """The outputs, without a history; `inputs` is empty then."""
        if functorch_is_active() or has_tangent(inputs):
            with torch.no_grad():
                return self._by_ops(inputs)
        loaded = self._plain or self._load()
        try:
            with torch.no_grad():
                return loaded(inputs)
        except UnexpectedResult as error:
            self._remake(error, self._sizes(inputs, known))
        return self.run(inputs, known)

    def _remake(self, error: UnexpectedResult, sizes: Sizes) -> None:
        """The graph once more, with what an op was seen to return; its derivatives come anew.

        If that cannot be known beforehand, it runs op by op from now on.
        """
        with compiling():
            self._remade += 1
            if error.is_learned and self._remade <= REMADE:
                with contextlib.suppress(NotResizable):
                    self.graph_module, names = resized(self._captured, sizes)
                    sizing = Sizing(self.graph_module)
                    self._sizings = [_Sized(self.graph_module, sizing, names)]
                    self._plain = self._ops = None
                    return
            warn_of_failure(error, self.graph_module)
            self._eager = True
            self._plain = functools.partial(evaluate, self.graph_module)

    def _load(self) -> Executable:
        with compiling():
            if self._plain is None:
                self._plain = self.builder.load(self.graph_module)
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
            self._ops = self.builder.in_torch(self.graph_module)
        return evaluate(self._ops, inputs)  # type: ignore[no-any-return]

    def recordings(self) -> list[Recording]:
        """The derivatives there are."""
        made = [each for sized in self._sizings for each in sized.recordings.values()]
        return [recording for recording in made if recording is not None]

    def _sizes(self, inputs: Sequence[Any], known: Sizes | None) -> Sizes:
        return {**(known or {}), **self._sizing.of(inputs)}

    def _recording(
        self, wrt: tuple[int, ...], sizes: Sizes
    ) -> tuple[Recording | None, Sizes] | None:
        """The recording that holds for `sizes`, with these in its terms; None: there is none."""
        for sized in tuple(self._sizings):
            if sized.holds(sizes):
                recording = self._recorded(sized, wrt)
                # To make it, more may have been assumed.
                if sized.holds(sizes):
                    return recording, renamed(sizes, sized.names)
        with compiling():
            made = self._sized_anew(sizes)
            if made is None:
                return None
            return self._recorded(made, wrt), renamed(sizes, made.names)

    def _sized_anew(self, sizes: Sizes) -> _Sized | None:
        why = f"its derivative was built {SIZINGS} times for sizes of different kinds"
        if len(self._sizings) < SIZINGS:
            try:
                graph_module, names = resized(self._captured, sizes)
            except NotResizable as error:
                why = f"its derivative assumes {self._sizings[0].violated(sizes)}, and {error}"
            else:
                self._sizings.append(_Sized(graph_module, Sizing(graph_module), names))
                return self._sizings[-1]
        shown = ", ".join(f"{symbol}={size}" for symbol, size in sizes.items())
        place = location_of_graph(self.graph_module)
        warn_of_fallback(
            f"eager autograd takes over {place.op} for sizes {shown}: {why}", place.source
        )
        return None

    def _recorded(self, sized: _Sized, wrt: tuple[int, ...]) -> Recording | None:
        if wrt not in sized.recordings:
            with compiling():
                if wrt not in sized.recordings:
                    recorded = self.builder.record(sized.graph_module, wrt, True)
                    made = None if recorded is None else Recording(recorded, wrt, self.builder)
                    sized.recordings[wrt] = made
        return sized.recordings[wrt]

    def _leave_to_eager(self, error: DifferentiationError) -> None:
        """What depends on data no graph can say; for the rest, the user has to ask for it."""
        if not (self.builder.falls_back or isinstance(error.__cause__, DATA_DEPENDENT)):
            raise error from error.__cause__
        warn_of_fallback(f"eager autograd takes over: {error}", error.source)
        self._eager = True

    def _recorded_inputs(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        if torch.is_inference_mode_enabled():
            return ()  # There autograd is off, also in regions that enable grad.
        if entry_mode(self.graph_module).grad_enabled and not torch.is_grad_enabled():
            return ()
        places = enumerate(inputs)
        return tuple([i for i, v in places if isinstance(v, torch.Tensor) and v.requires_grad])


@dataclass(frozen=True)
class _Sized:
    """A graph whose derivatives hold for some sizes."""

    graph_module: fx.GraphModule
    sizing: Sizing
    names: Renaming | None = None
    """Its symbols, by those of the graph that it is a copy of."""
    recordings: dict[tuple[int, ...], Recording | None] = field(default_factory=dict)

    def violated(self, sizes: Sizes) -> str | None:
        return self.sizing.violated(renamed(sizes, self.names))

    def holds(self, sizes: Sizes) -> bool:
        return self.violated(sizes) is None


@dataclass(frozen=True)
class _Ready:
    """A backward graph, to be run."""

    made: Reversed
    compiled: Compiled
    taken: list[int]
    """Which of the values saved it takes."""


@dataclass(frozen=True)
class _Backward:
    """A backward graph that holds for some sizes."""

    whole: _Ready
    sizing: Sizing
    names: Renaming | None = None
    narrowed: dict[tuple[int, ...], _Ready] = field(default_factory=dict)
    """For some of the gradients only."""


@dataclass(frozen=True)
class _Kinds:
    """What is the same in all calls, so that it is looked at once."""

    fixed: list[int]
    """Outputs that are tensors without a history."""
    numbers: list[int]
    """Saved values that are no tensors."""
    others: list[int]
    """Outputs of other stages."""


class _Kept:
    """The inputs of a run, for eager autograd to run it again."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        self.inputs = tuple(inputs)
        self._versions = self._now()

    @property
    def have_changed(self) -> bool:
        return self._now() != self._versions

    def _now(self) -> list[int]:
        tensors = (each for each in self.inputs if isinstance(each, torch.Tensor))
        return [0 if each.is_inference() else each._version for each in tensors]


class Recording:
    """A graph with its backward graphs, for one choice of inputs that require grad.

    A graph in stages has those of each stage, in recordings of their own.
    """

    def __init__(self, recorded: Recorded, wrt: tuple[int, ...], builder: Builder) -> None:
        self.recorded = recorded
        self.wrt = wrt
        self.builder = builder
        self._sizing = Sizing(recorded.graph_module)
        self.following = ReachedNodes()
        self._has_failed = False
        """A backward graph could not be built, and the user was told."""
        self._kinds: _Kinds | None = None
        self._forward: Executable | None = None
        self._backwards: dict[tuple[int, ...], list[_Backward]] = {}
        if recorded.first.of:
            self._backwards[recorded.first.of] = [self._made(recorded.first, self._sizing)]
        self.stages: list[Recording] = []
        if recorded.stages is not None:
            levels = range(len(recorded.stages.uses))
            self.stages = [Recording(*recorded.stage(level), builder) for level in levels]

    def __call__(
        self, inputs: Sequence[Any], sizes: Sizes, standing: Standing | None = None
    ) -> Sequence[Any]:
        # First, so that a device is at work while autograd takes note.
        with torch.no_grad():
            outputs = self.forward(inputs)
        if self.recorded.stages is not None:
            outputs = list(outputs) if standing is None else standing.separate(outputs)
            return self._in_stages(self.recorded.stages, list(inputs), outputs, sizes, standing)
        with torch.enable_grad():
            traced = [inputs[index] for index in self.wrt]
            noted = _Node.apply(self, sizes, inputs, outputs, *traced)  # type: ignore[no-untyped-call]
        return noted[: self.recorded.results]  # type: ignore[no-any-return]

    def _in_stages(
        self,
        stages: Stages,
        inputs: list[Any],
        outputs: list[Any],
        sizes: Sizes,
        standing: Standing | None,
    ) -> Sequence[Any]:
        """The results, each with the history of its stage."""
        count = len(inputs)
        inputs += [None] * len(stages.cuts)
        with torch.enable_grad():
            for level, stage in enumerate(self.stages):
                # Those of later stages are no outputs of this one, nor saved for it.
                own = [n for n, each in enumerate(stages.levels) if each == level]
                there = [
                    v if n <= level else None for v, n in zip(outputs, stages.levels, strict=True)
                ]
                traced = [inputs[index] for index in stage.wrt]
                noted = _Node.apply(stage, sizes, inputs, there, *traced)  # type: ignore[no-untyped-call]
                for place in own:
                    outputs[place] = noted[place]
                for place, cut in enumerate(stages.cuts):
                    if stages.levels[cut] == level:
                        found = outputs[cut] if standing is None else standing.at(cut, outputs)
                        inputs[count + place] = found
        return outputs[: self.recorded.results]

    def forward(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """All outputs, saved values included."""
        loaded = self._forward or self._load()
        # Regions that enable grad inside the graph have nothing to record: this node is the record.
        given = InputsWithHistory(inputs)
        if not getattr(loaded, "forgets_histories", False):
            detach_inputs(given)
        return loaded(given)

    def _load(self) -> Executable:
        with compiling():
            if self._forward is None:
                self._forward = self.builder.load(self.recorded.runs)
            return self._forward

    def kinds(self, outputs: Sequence[Any], saved: Sequence[Any]) -> _Kinds:
        """Which of these are tensors, in this and in every call."""
        if self._kinds is None:
            history = self.recorded.history
            own = self.recorded.own
            self._kinds = _Kinds(
                [i for i in _tensors(outputs) if i in own and i not in history],
                sorted({*range(len(saved))} - {*_tensors(saved)}),
                [i for i in range(len(outputs)) if i not in own],
            )
        return self._kinds

    def backward(
        self, of: tuple[int, ...], wanted: tuple[int, ...], sizes: Sizes
    ) -> tuple[_Ready, Sizes]:
        """The backward graph for cotangents of the outputs `of`, and `sizes` in its terms.

        `wanted`: places in `wrt` of the inputs whose gradients someone waits for.
        """
        with differentiating(self.recorded.graph_module):
            found = self._find(of, sizes)
            if found is None:
                with compiling():
                    found = self._find(of, sizes) or self._reverse(of, sizes)
            return self._narrowed(found, wanted), renamed(sizes, found.names)

    def _narrowed(self, found: _Backward, wanted: tuple[int, ...]) -> _Ready:
        if len(wanted) == len(self.wrt):
            return found.whole
        if wanted not in found.narrowed:
            with compiling():
                if len(found.narrowed) == PATTERNS:
                    return found.whole
                whole = found.whole.made
                narrowed = attempt(
                    lambda: self._ready(self.builder.narrow(whole, frozenset(wanted))),
                    whole.graph_module,
                    "computes gradients that nobody waits for",
                )
                found.narrowed[wanted] = narrowed or found.whole
        return found.narrowed[wanted]

    def _find(self, of: tuple[int, ...], sizes: Sizes) -> _Backward | None:
        for each in self._backwards.get(of, ()):
            if each.sizing.violated(renamed(sizes, each.names)) is None:
                return each
        return None

    def _reverse(self, of: tuple[int, ...], sizes: Sizes) -> _Backward:
        known = self._backwards.get(of, [])
        if not known:
            made = self.builder.reverse(self.recorded, of, self.wrt)
            known = self._backwards[of] = [self._made(made, self._sizing)]
        wrong = self._sizing.violated(sizes)
        if wrong is None:
            return known[0]
        shown = ", ".join(f"{symbol}={size}" for symbol, size in sizes.items())
        why = f"its derivative was built assuming {wrong}, and now sizes are {shown}"
        if len(known) == SIZINGS:
            raise DifferentiationError("a function of symbolic sizes", 1, why)
        try:
            graph_module, names = resized(self.recorded.graph_module, sizes)
        except NotResizable as error:
            why = f"{why}; {error}"
            raise DifferentiationError("a function of symbolic sizes", 1, why) from error
        # No pattern is empty: what came with the first recording holds for other sizes.
        first = replace(self.recorded.first, of=())
        again = replace(self.recorded, graph_module=graph_module, first=first)
        made = self.builder.reverse(again, of, self.wrt)
        known.append(self._made(made, Sizing(graph_module), names))
        return known[-1]

    def _made(self, made: Reversed, sizing: Sizing, names: Renaming | None = None) -> _Backward:
        return _Backward(self._ready(made), sizing, names)

    def _ready(self, made: Reversed) -> _Ready:
        compiled = Compiled(made.graph_module, self.builder)
        return _Ready(made, compiled, self.recorded.taken_by(made))

    def in_eager(
        self,
        kept: _Kept | None,
        cotangents: Sequence[tuple[int, Any]],
        wanted: tuple[int, ...],
        error: DifferentiationError,
    ) -> list[Any]:
        """The gradients by eager autograd, which runs the graph again, if its inputs are `kept`.

        `cotangents` have the places of the outputs that they are of.
        """
        graph_module = self.recorded.graph_module
        if kept is None or kept.have_changed or is_impure_graph(graph_module.graph):
            raise error from error.__cause__
        if not self._has_failed:
            warn_of_fallback(f"eager autograd takes over: {error}", error.source)
            self._has_failed = True
        with torch.enable_grad():
            # Autograd stops at these, and not where one input was computed from another.
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

    def pattern(self, given: tuple[int, ...]) -> tuple[int, ...]:
        """`given`, or all outputs once there are many patterns."""
        if given in self._backwards or len(self._backwards) < PATTERNS:
            return given
        return self.recorded.order


class _Node(torch.autograd.Function):
    """One run of a graph, as autograd sees it."""

    @staticmethod
    def forward(
        ctx: Any,
        recording: Recording,
        sizes: Sizes,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        *_: torch.Tensor,
    ) -> Any:
        """The last arguments are what autograd differentiates with respect to."""
        recorded = recording.recorded
        saved = [inputs[i] for i in recorded.saved_inputs]
        saved += [outputs[i] for i in recorded.saved_outputs]
        kinds = recording.kinds(outputs, saved)
        ctx.recording, ctx.sizes = recording, sizes
        ctx.kept = _Kept(inputs) if recording.builder.falls_back else None
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[outputs[i] for i in kinds.fixed])
        ctx.numbers = [(place, saved[place]) for place in kinds.numbers]
        for place in kinds.numbers:
            saved[place] = None
        ctx.save_for_backward(*saved)
        returned = list(outputs)
        for place in kinds.others:
            returned[place] = None
        return tuple(returned)

    # A frame that Dynamo compiles may call autograd, and this; it is no part of the user's program.
    @staticmethod
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *cotangents: Any) -> Any:
        recording: Recording = ctx.recording
        order = recording.recorded.order
        given = tuple([index for index in order if cotangents[index] is not None])
        if not given:
            return _NO_TENSORS + (None,) * len(recording.wrt)
        of = recording.pattern(given)
        following = ctx.next_functions  # Each time it is asked for, all of them are made.
        wanted = recording.following.that_run([node for node, _ in following])
        try:
            ready, sizes = recording.backward(of, wanted, ctx.sizes)
        except DifferentiationError as error:
            pairs = [(index, cotangents[index]) for index in given]
            return (*_NO_TENSORS, *recording.in_eager(ctx.kept, pairs, wanted, error))
        saved = _saved(ctx)
        arguments = [saved[place] for place in ready.taken]
        arguments += [
            zero_cotangent(ctx, index) if cotangents[index] is None else cotangents[index]
            for index in ready.made.of
        ]
        batched = any(map(is_batched, [cotangents[index] for index in given]))
        del saved, cotangents
        if is_autocast_enabled():
            with without_autocast():
                gradients = ready.compiled.backward(arguments, sizes, batched)
        else:
            gradients = ready.compiled.backward(arguments, sizes, batched)
        if ready.made.zeros:
            gradients = list(gradients)
            for place in ready.made.zeros:
                gradients[place] = zero_cotangent(*following[place])
        return (*_NO_TENSORS, *gradients)


# Gradients of what `_Node` is given besides tensors.
_NO_TENSORS = (None,) * 4


def _tensors(values: Sequence[Any]) -> list[int]:
    return [place for place, value in enumerate(values) if isinstance(value, torch.Tensor)]


def _saved(ctx: Any) -> list[Any]:
    values = list(ctx.saved_tensors)
    for place, number in ctx.numbers:
        values[place] = number
    if hasattr(ctx, "maybe_clear_saved_tensors"):
        # Unless the graph is retained, what is saved is released as the backward graph uses it.
        ctx.maybe_clear_saved_tensors()
    return values
