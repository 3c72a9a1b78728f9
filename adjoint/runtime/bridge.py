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

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import torch
from torch import fx

from adjoint.errors import DifferentiationError, FallbackWarning
from adjoint.graph.evaluation import entry_mode, evaluate
from adjoint.graph.sizes import NotResizable, Renaming, Sizes, Sizing, renamed, resized
from adjoint.torch_private.batches import is_batched, over_batch
from adjoint.torch_private.dynamo import COMPILING
from adjoint.torch_private.fake import DATA_DEPENDENT
from adjoint.torch_private.modes import (
    functorch_is_active,
    has_tangent,
    will_run,
    without_autocast,
)

# Takes its inputs out of the list, so that each can be released after its last use.
Executable: TypeAlias = Callable[[list[Any]], Sequence[Any]]

# Backward graphs for this many patterns of missing cotangents; after that, zeros are made.
PATTERNS = 8

# Derivatives of one graph for this many sets of assumptions about sizes; after that, eager torch.
SIZINGS = 8


@dataclass(frozen=True)
class Reversed:
    """A backward graph for cotangents of the outputs `of`, and which saved values it takes."""

    graph_module: fx.GraphModule
    of: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    zeros: frozenset[int] = frozenset()
    """Which gradients are zero though the results depend on the input: eager gives zeros there."""


@dataclass(frozen=True)
class Recorded:
    """A graph made ready to be differentiated with respect to some of its inputs."""

    graph_module: fx.GraphModule
    results: int
    saved_inputs: tuple[int, ...]
    saved_outputs: tuple[int, ...]
    differentiable: frozenset[int]
    """Outputs that depend on those inputs."""
    first: Reversed
    """The backward graph that comes out of the sweep which decided what is saved."""
    requiring: frozenset[int] = frozenset()
    """Results that require grad, as eager's do, though they depend on none of those inputs."""

    # Asked for in every call.

    @functools.cached_property
    def order(self) -> tuple[int, ...]:
        """The outputs that cotangents are of."""
        return tuple(sorted(self.differentiable))

    @functools.cached_property
    def history(self) -> frozenset[int]:
        return self.differentiable | self.requiring

    @functools.cached_property
    def saved(self) -> tuple[tuple[str, int], ...]:
        """What is saved, in order."""
        inputs = [("input", i) for i in self.saved_inputs]
        return (*inputs, *(("output", i) for i in self.saved_outputs))


class Builder(Protocol):
    """What the bridge asks of the compiler."""

    def record(self, graph_module: fx.GraphModule, wrt: Sequence[int]) -> Recorded | None:
        """The graph with saved values; None if nothing it returns requires grad for `wrt`."""
        ...

    def reverse(self, recorded: Recorded, of: Sequence[int], wrt: Sequence[int]) -> Reversed:
        """The backward graph for cotangents of the outputs `of`."""
        ...

    def narrow(self, made: Reversed, places: frozenset[int]) -> Reversed:
        """The same without the gradients that are not in `places`."""
        ...

    def load(self, graph_module: fx.GraphModule) -> Executable:
        """The graph, ready to run."""
        ...

    def in_torch(self, graph_module: fx.GraphModule) -> fx.GraphModule:
        """The graph, to be run op by op where torch differentiates the ops."""
        ...


class Compiled:
    """A graph that runs, and can be differentiated by autograd any number of times."""

    def __init__(self, graph_module: fx.GraphModule, builder: Builder) -> None:
        self.graph_module = graph_module
        self.builder = builder
        self._eager = False
        """The derivative of some op depends on data, so that no graph can say it."""
        self._plain: Executable | None = None
        self._ops: fx.GraphModule | None = None
        self._sizings = [_Sized(graph_module, Sizing(graph_module))]

    def __call__(self, inputs: Sequence[Any], known: Sizes | None = None) -> Sequence[Any]:
        """The outputs; `known` are sizes that the inputs may not show."""
        if functorch_is_active() or has_tangent(inputs):
            return self._by_ops(inputs)
        wrt = self._recorded_inputs(inputs)
        if not wrt:
            return self.run(list(inputs))
        found = None if self._eager else self._recording(wrt, self._sizes(inputs, known))
        if found is None or self._eager:
            return evaluate(self.graph_module, inputs)  # type: ignore[no-any-return]
        recording, sizes = found
        return self.run(list(inputs)) if recording is None else recording(inputs, sizes)

    def run(self, inputs: list[Any]) -> Sequence[Any]:
        """The outputs, without a history; `inputs` is empty then."""
        if functorch_is_active() or has_tangent(inputs):
            with torch.no_grad():
                return self._by_ops(inputs)
        loaded = self._plain or self._load()
        with torch.no_grad():
            return loaded(inputs)

    def _load(self) -> Executable:
        with COMPILING:
            if self._plain is None:
                self._plain = self.builder.load(self.graph_module)
            return self._plain

    def backward(self, inputs: list[Any], known: Sizes, batched: bool) -> Sequence[Any]:
        """The outputs of a backward graph, with a history if autograd is to differentiate them.

        `batched`: for a batch of cotangents.
        """
        if batched:
            return over_batch(self._by_ops, inputs)
        return self(inputs, known) if torch.is_grad_enabled() else self.run(inputs)

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
        return {**(known or {}), **self._sizings[0].sizing.of(inputs)}

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
        with COMPILING:
            made = self._sized_anew(sizes)
            if made is None:
                return None
            return self._recorded(made, wrt), renamed(sizes, made.names)

    def _sized_anew(self, sizes: Sizes) -> _Sized | None:
        why = f"its derivative was built {SIZINGS} times for sizes of different kinds"
        if len(self._sizings) < SIZINGS:
            try:
                graph_module, names = resized(self.graph_module, sizes)
            except NotResizable as error:
                why = f"its derivative assumes {self._sizings[0].violated(sizes)}, and {error}"
            else:
                self._sizings.append(_Sized(graph_module, Sizing(graph_module), names))
                return self._sizings[-1]
        shown = ", ".join(f"{symbol}={size}" for symbol, size in sizes.items())
        warnings.warn(
            f"eager autograd takes over for sizes {shown}: {why}", FallbackWarning, stacklevel=2
        )
        return None

    def _recorded(self, sized: _Sized, wrt: tuple[int, ...]) -> Recording | None:
        if wrt not in sized.recordings:
            with COMPILING:
                if wrt not in sized.recordings:
                    recorded = self._record(sized.graph_module, wrt)
                    made = None if recorded is None else Recording(recorded, wrt, self.builder)
                    sized.recordings[wrt] = made
        return sized.recordings[wrt]

    def _record(self, graph_module: fx.GraphModule, wrt: tuple[int, ...]) -> Recorded | None:
        try:
            return self.builder.record(graph_module, wrt)
        except DifferentiationError as error:
            if not isinstance(error.__cause__, DATA_DEPENDENT):
                raise
            warnings.warn(f"eager autograd takes over: {error}", FallbackWarning, stacklevel=2)
            self._eager = True
            return None

    def _recorded_inputs(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        if torch.is_inference_mode_enabled():
            return ()  # There autograd is off, also in regions that enable grad.
        if entry_mode(self.graph_module).grad_enabled and not torch.is_grad_enabled():
            return ()
        return tuple(
            index
            for index, value in enumerate(inputs)
            if isinstance(value, torch.Tensor) and value.requires_grad
        )


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
class _Backward:
    """A backward graph that holds for some sizes."""

    made: Reversed
    compiled: Compiled
    sizing: Sizing
    names: Renaming | None = None
    narrowed: dict[frozenset[int], tuple[Reversed, Compiled]] = field(default_factory=dict)
    """For some of the gradients only."""


class Recording:
    """A graph with its backward graphs, for one choice of inputs that require grad."""

    def __init__(self, recorded: Recorded, wrt: tuple[int, ...], builder: Builder) -> None:
        self.recorded = recorded
        self.wrt = wrt
        self.builder = builder
        self._sizing = Sizing(recorded.graph_module)
        self.edges: dict[int, int] | None = None
        """For each input that is a tensor: which of the node's edges it is, once there is one."""
        self._forward: Executable | None = None
        self._backwards: dict[tuple[int, ...], list[_Backward]] = {}
        self._backwards[recorded.first.of] = [self._made(recorded.first, self._sizing)]

    def __call__(self, inputs: Sequence[Any], sizes: Sizes) -> Sequence[Any]:
        # First, so that a device is at work while autograd takes note.
        with torch.no_grad():
            outputs = self.forward(inputs)
        with torch.enable_grad():
            noted = _Node.apply(self, sizes, outputs, *map(gated, inputs))  # type: ignore[no-untyped-call]
        return noted[: self.recorded.results]  # type: ignore[no-any-return]

    def forward(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """All outputs, saved values included."""
        loaded = self._forward or self._load()
        # Regions that enable grad inside the graph have nothing to record: this node is the record.
        bare = [each.detach() if isinstance(each, torch.Tensor) else each for each in inputs]
        return loaded(bare)

    def _load(self) -> Executable:
        with COMPILING:
            if self._forward is None:
                self._forward = self.builder.load(self.recorded.graph_module)
            return self._forward

    def backward(
        self, of: tuple[int, ...], wanted: frozenset[int], sizes: Sizes
    ) -> tuple[Reversed, Compiled, Sizes]:
        """The backward graph for cotangents of the outputs `of`, and `sizes` in its terms.

        `wanted`: the inputs whose gradients someone waits for.
        """
        found = self._find(of, sizes)
        if found is None:
            with COMPILING:
                found = self._find(of, sizes) or self._reverse(of, sizes)
        made, compiled = self._narrowed(found, wanted)
        return made, compiled, renamed(sizes, found.names)

    def _narrowed(self, found: _Backward, wanted: frozenset[int]) -> tuple[Reversed, Compiled]:
        if wanted.issuperset(self.wrt):
            return found.made, found.compiled
        if wanted not in found.narrowed:
            with COMPILING:
                if len(found.narrowed) == PATTERNS:
                    return found.made, found.compiled
                places = frozenset(i for i, index in enumerate(self.wrt) if index in wanted)
                made = self.builder.narrow(found.made, places)
                found.narrowed[wanted] = (made, Compiled(made.graph_module, self.builder))
        return found.narrowed[wanted]

    def _find(self, of: tuple[int, ...], sizes: Sizes) -> _Backward | None:
        for each in self._backwards.get(of, ()):
            if each.sizing.violated(renamed(sizes, each.names)) is None:
                return each
        return None

    def _reverse(self, of: tuple[int, ...], sizes: Sizes) -> _Backward:
        known = self._backwards.setdefault(of, [])
        if not known:
            made = self.builder.reverse(self.recorded, of, self.wrt)
            known.append(self._made(made, self._sizing))
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
        return _Backward(made, Compiled(made.graph_module, self.builder), sizing, names)

    def pattern(self, given: tuple[int, ...]) -> tuple[int, ...]:
        """`given`, or all outputs once there are many patterns."""
        if given in self._backwards or len(self._backwards) < PATTERNS:
            return given
        return self.recorded.order


class _Node(torch.autograd.Function):
    """One run of a graph, as autograd sees it."""

    @staticmethod
    def forward(
        ctx: Any, recording: Recording, sizes: Sizes, outputs: Sequence[Any], *inputs: Any
    ) -> Any:
        recorded = recording.recorded
        fixed = [
            value
            for index, value in enumerate(outputs)
            if index not in recorded.history and isinstance(value, torch.Tensor)
        ]
        ctx.recording, ctx.sizes = recording, sizes
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*fixed)
        saved = [inputs[i] for i in recorded.saved_inputs]
        saved += [outputs[i] for i in recorded.saved_outputs]
        ctx.save_for_backward(*(v if isinstance(v, torch.Tensor) else None for v in saved))
        ctx.numbers = [None if isinstance(v, torch.Tensor) else v for v in saved]
        ctx.count = len(inputs)
        ctx.inputs = {index: _like(inputs[index]) for index in recording.wrt}
        ctx.outputs = {index: _like(outputs[index]) for index in recorded.order}
        if recording.edges is None:
            places = [n for n, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
            recording.edges = {index: edge for edge, index in enumerate(places)}
        return tuple(outputs)

    # A frame that Dynamo compiles may call autograd, and this; it is no part of the user's program.
    @staticmethod
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *cotangents: Any) -> Any:
        recording: Recording = ctx.recording
        recorded = recording.recorded
        given = tuple(index for index in recorded.order if cotangents[index] is not None)
        if not given:
            return (None,) * (ctx.count + 3)
        of = recording.pattern(given)
        wanted = _waited_for(ctx, recording.wrt)
        made, compiled, sizes = recording.backward(of, wanted, ctx.sizes)
        saved = _saved(ctx, recorded)
        arguments = [
            *(saved["input", i] for i in made.inputs),
            *(saved["output", i] for i in made.outputs),
            *(_zeros(ctx.outputs[i]) if cotangents[i] is None else cotangents[i] for i in of),
        ]
        batched = any(is_batched(cotangents[index]) for index in given)
        del saved, cotangents
        with without_autocast():
            gradients = compiled.backward(arguments, sizes, batched)
        by_input = dict(zip(recording.wrt, gradients, strict=True))
        for place in (recording.wrt[i] for i in made.zeros):
            by_input[place] = _zeros(ctx.inputs[place])
        return (None, None, None, *(by_input.get(index) for index in range(ctx.count)))


def gated(value: Any) -> Any:
    """A leaf behind a node of its own, which autograd can be asked about."""
    if isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf:
        # Its backward hands on the very tensor it is given, which autograd copies where others have
        # it, too; that of a view would hand on another tensor over the same memory.
        return torch.ops.aten.alias.default(value) if value.layout is torch.strided else value
    return value


def _waited_for(ctx: Any, wrt: Sequence[int]) -> frozenset[int]:
    """The inputs among `wrt` to which this run of autograd goes on."""
    following = ctx.next_functions  # Each time it is asked for, all of them are made.
    edges = [(index, following[ctx.recording.edges[index]][0]) for index in wrt]
    return frozenset(index for index, edge in edges if edge is None or will_run(edge))


def _saved(ctx: Any, recorded: Recorded) -> dict[tuple[str, int], Any]:
    values = [n if t is None else t for t, n in zip(ctx.saved_tensors, ctx.numbers, strict=True)]
    if hasattr(ctx, "maybe_clear_saved_tensors"):
        # Unless the graph is retained, what is saved is released as the backward graph uses it.
        ctx.maybe_clear_saved_tensors()
    return dict(zip(recorded.saved, values, strict=True))


def _like(value: Any) -> Any:
    """What zeros need to be like `value`; it must not be kept for that."""
    return (value.shape, value.dtype, value.device) if isinstance(value, torch.Tensor) else None


def _zeros(like: Any) -> torch.Tensor:
    shape, dtype, device = like
    return torch.zeros(shape, dtype=dtype, device=device)
