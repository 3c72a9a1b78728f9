"""The autograd node of a graph.

A graph with a derivative runs as one `autograd.Function` whose outputs include the saved values.
Its `NodeProgram` says what the backward runs: a graph that is compiled on demand, or one that was
exported.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch.autograd.graph import Node

from adjoint.errors import DifferentiationError
from adjoint.graph.derivative import NodeLayout, Segments, picker
from adjoint.graph.evaluation import InOwnMemory, InputsWithHistory, detach_inputs
from adjoint.open_types import AutogradContext, TorchValue
from adjoint.runtime.calling import BetweenSegments, in_own_memory
from adjoint.runtime.cpu.reached import reached_inputs
from adjoint.runtime.executable import Checker, Executable, PlacedCotangents, Sizes
from adjoint.torch_private.autograd import (
    CAN_CLEAR_SAVED,
    ReachedNodes,
    applying,
    run_backward_by,
    set_grad_enabled,
    zero_cotangent,
)
from adjoint.torch_private.batches import is_batched_tensor
from adjoint.torch_private.frames import left_alone_by_dynamo
from adjoint.torch_private.modes import is_autocast_enabled, without_autocast


class BackwardGraph(Protocol):
    """A backward graph that can be run, and differentiated by autograd."""

    def backward(self, inputs: list[object], known: Sizes, batched: bool) -> Sequence[object]:
        """The gradients; `known`: the values of size symbols, some of which no input has."""
        ...


@dataclass(frozen=True)
class ReadyBackward:
    """A loaded backward graph; numbers are positions among the values of a forward run."""

    graph: BackwardGraph
    saved: list[int]
    """Positions of the saved values that it takes."""
    of: tuple[int, ...]
    """Positions of the outputs whose cotangents it takes."""
    zeros: list[int]
    """Positions of the gradients that it returns as None where eager returns zeros."""

    @functools.cached_property
    def take_saved(self) -> Callable[[Sequence[object]], tuple[object, ...]]:
        """Takes the saved values that it needs out of all."""
        return picker(self.saved)

    @functools.cached_property
    def take_cotangents(self) -> Callable[[Sequence[object]], tuple[object, ...]]:
        """Takes the cotangents that it needs out of those of all outputs."""
        return picker(self.of)


@dataclass(frozen=True)
class Kinds:
    """Kinds of outputs and saved values: the same in all calls, so computed once."""

    fixed: list[int]
    """Outputs that are tensors but not differentiable."""
    numbers: list[int]
    """Saved values that are not tensors."""
    others: list[int]
    """Outputs of other segments."""
    constant: list[int] = field(default_factory=list)
    """Differentiable outputs that depend on none of the inputs that require grad."""

    @property
    def are_usual(self) -> bool:
        """Whether all outputs and saved values are tensors, and the outputs have histories."""
        return not (self.fixed or self.numbers or self.others or self.constant)


class KeptInputs:
    """The inputs of a run, kept so that eager autograd can run the graph again."""

    def __init__(self, inputs: Sequence[TorchValue]) -> None:
        self.inputs = tuple(inputs)
        self._versions = self._now()

    @property
    def have_changed(self) -> bool:
        return self._now() != self._versions

    def _now(self) -> list[int]:
        tensors = (each for each in self.inputs if isinstance(each, torch.Tensor))
        return [0 if each.is_inference() else each._version for each in tensors]


class NodeProgram(ABC):
    """A graph with its derivative, for one set of inputs that require grad.

    If the graph is divided into segments, each segment has a `NodeProgram` of its own.
    """

    keeps_inputs = False
    """Whether eager autograd may have to run the graph again."""
    checker: Checker | None = None
    is_usual = False
    """Whether a call keeps nothing but saved tensors: known after the first."""

    def __init__(self, layout: NodeLayout, wrt: tuple[int, ...]) -> None:
        self.layout = layout
        self.wrt = wrt
        self._take_traced = picker(wrt)
        self._following = ReachedNodes()
        self.segments: Sequence[NodeProgram] = ()
        self._kinds: Kinds | None = None
        self._forward: Executable | None = None

    @abstractmethod
    def _load(self) -> Executable:
        """What runs the forward graph."""

    @abstractmethod
    def backward(
        self, of: tuple[int, ...], wanted: tuple[int, ...], sizes: Sizes
    ) -> tuple[ReadyBackward, Sizes]:
        """The backward graph for cotangents of the outputs `of`, and `sizes` by its symbols.

        `wanted`: positions in `wrt` of the inputs whose gradients this backward pass needs.
        """

    def in_eager(
        self,
        kept: KeptInputs | None,
        cotangents: PlacedCotangents,
        wanted: tuple[int, ...],
        error: DifferentiationError,
    ) -> list[object]:
        """The gradients by eager autograd, where `backward` failed; raises `error` if it cannot."""
        raise error from error.__cause__

    def check(  # noqa: B027 - without a checker there is nothing to do
        self,
        kept: KeptInputs | None,
        cotangents: PlacedCotangents,
        wanted: tuple[int, ...],
        gradients: Sequence[object],
    ) -> None:
        """Compare gradients with those of eager autograd, if there is a checker."""

    def __call__(
        self, inputs: Sequence[object], sizes: Sizes, between: BetweenSegments | None = None
    ) -> Sequence[TorchValue]:
        is_grad_enabled = torch.is_grad_enabled()
        try:
            # Before the autograd node is made: a GPU computes meanwhile.
            set_grad_enabled(False)
            loaded = self._forward or self._load()
            # Ops under `enable_grad` inside the graph must not record: this node has the
            # derivative.
            given = InputsWithHistory(inputs)
            if not getattr(loaded, "forgets_histories", False):
                detach_inputs(given)
            outputs = loaded(given)
            if self.layout.segments is not None:
                segments = self.layout.segments
                return self._in_segments(segments, list(inputs), outputs, sizes, between)
            set_grad_enabled(True)
            noted = _APPLY((self, sizes, inputs, outputs), *self._take_traced(inputs))
        finally:
            set_grad_enabled(is_grad_enabled)
        results = noted[: self.layout.results]
        return InOwnMemory(results) if isinstance(outputs, InOwnMemory) else results

    def _in_segments(
        self,
        segments: Segments,
        inputs: list[object],
        computed: Sequence[TorchValue],
        sizes: Sizes,
        between: BetweenSegments | None,
    ) -> Sequence[object]:
        """The results, each with the autograd node of its segment; enables grad."""
        if between is None:
            # Now: a copy that is made after the node has a history of its own.
            cuts = [place for place in segments.cuts if place < self.layout.results]
            outputs = list(in_own_memory(cuts, inputs, computed))
        else:
            outputs = between.separate(computed)
        set_grad_enabled(True)
        count = len(inputs)
        of_output = segments.of_output
        inputs += [None] * len(segments.cuts)
        for number, segment in enumerate(self.segments):
            # Outputs of later segments are neither returned nor saved by this one.
            own = [n for n, each in enumerate(of_output) if each == number]
            there = [v if n <= number else None for v, n in zip(outputs, of_output, strict=True)]
            traced = [inputs[index] for index in segment.wrt]
            noted = _APPLY((segment, sizes, inputs, there), *traced)
            for place in own:
                outputs[place] = noted[place]
            for place, cut in enumerate(segments.cuts):
                if of_output[cut] == number:
                    found = outputs[cut] if between is None else between.at(cut, outputs)
                    inputs[count + place] = found
        return outputs[: self.layout.results]

    def wanted(self, node: Node, given: tuple[int, ...]) -> tuple[int, ...]:
        """Positions in `wrt` of the inputs whose gradients the current backward pass needs.

        It may include others, if torch has to be asked in Python.
        """
        reached = reached_inputs()
        if reached is not None:
            return reached(node, len(self.wrt))
        return self._following.that_run(node, given)

    def kinds(
        self, inputs: Sequence[object], outputs: Sequence[object], saved: Sequence[object]
    ) -> Kinds:
        """The kinds of outputs and saved values, found in the first call."""
        if self._kinds is None:
            history = self.layout.history
            own = self.layout.own
            self._kinds = Kinds(
                [i for i in tensors_in(outputs) if i in own and i not in history],
                sorted({*range(len(saved))} - {*tensors_in(saved)}),
                [i for i in range(len(outputs)) if i not in own],
            )
            self.is_usual = self._kinds.are_usual and not self.keeps_inputs
        return self._kinds


class _Unusual(NamedTuple):
    """What an unusual run of a graph leaves for its backward, besides the saved tensors."""

    kept: KeptInputs | None
    zeros: dict[int, tuple[torch.Size, torch.dtype, torch.device]]
    """For outputs that are not differentiable here: what a zero cotangent looks like."""
    numbers: list[tuple[int, object]]
    """Places of saved values that are no tensors, and the values."""


# The program that ran, and the values of its size symbols.
_Call: TypeAlias = tuple[NodeProgram, Sizes, _Unusual | None]


class _Node(torch.autograd.Function):
    """One run of a graph, as autograd sees it."""

    @staticmethod
    def forward(
        ctx: AutogradContext,
        run: tuple[NodeProgram, Sizes, Sequence[object], Sequence[TorchValue]],
        *_: torch.Tensor,
    ) -> tuple[object, ...]:
        """`run`: the program, the values of its size symbols, its inputs and its outputs.

        The last arguments are the inputs that require grad: autograd has to see them.
        """
        program, sizes, inputs, outputs = run
        layout = program.layout
        saved = layout.take_saved_inputs(inputs) + layout.take_saved_outputs(outputs)
        # As `set_materialize_grads` and `save_for_backward`, which are functions in Python.
        ctx.materialize_grads = False
        if program.is_usual:
            ctx.call = (program, sizes, None)
            ctx.to_save = saved
            return tuple(outputs)
        kinds = program.kinds(inputs, outputs, saved)
        kept = KeptInputs(inputs) if program.keeps_inputs else None
        if kinds.fixed:
            ctx.mark_non_differentiable(*[outputs[i] for i in kinds.fixed])
        # Torch forgets the shapes of outputs that are not differentiable.
        zeros = {i: (outputs[i].shape, outputs[i].dtype, outputs[i].device) for i in kinds.constant}
        numbers = [(place, saved[place]) for place in kinds.numbers]
        ctx.call = (program, sizes, _Unusual(kept, zeros, numbers))
        places = enumerate(saved)
        ctx.to_save = tuple([None if n in kinds.numbers else each for n, each in places])
        if not kinds.others:
            return tuple(outputs)
        returned = list(outputs)
        for place in kinds.others:
            returned[place] = None
        return tuple(returned)

    # A backward pass inside a frame that Dynamo compiles must not trace into this function.
    @staticmethod
    @left_alone_by_dynamo
    def backward(ctx: AutogradContext, *cotangents: object) -> tuple[object, ...]:
        call: _Call = ctx.call
        program, sizes, unusual = call
        kept = None if unusual is None else unusual.kept
        given = tuple([index for index in program.layout.order if cotangents[index] is not None])
        if not given:
            return (None,) * (1 + len(program.wrt))
        wanted = program.wanted(ctx, given)
        try:
            ready, sizes = program.backward(given, wanted, sizes)
        except DifferentiationError as error:
            pairs = [(index, cotangents[index]) for index in given]
            return (None, *program.in_eager(kept, pairs, wanted, error))
        saved = ctx.saved_tensors if unusual is None else _saved(ctx, unusual)
        if given == ready.of:
            taken = ready.take_cotangents(cotangents)
        else:
            taken = tuple([_zero(ctx, n) if (c := cotangents[n]) is None else c for n in ready.of])
        arguments = [*ready.take_saved(saved), *taken]
        if CAN_CLEAR_SAVED:
            # Unless autograd retains the graph, saved tensors are freed while the backward runs.
            ctx.maybe_clear_saved_tensors()
        batched = True in map(is_batched_tensor, taken)
        checked = [(i, cotangents[i]) for i in given] if program.checker and not batched else None
        del cotangents, saved, taken
        if is_autocast_enabled():
            with without_autocast():
                gradients = ready.graph.backward(arguments, sizes, batched)
        else:
            gradients = ready.graph.backward(arguments, sizes, batched)
        if ready.zeros:
            gradients = list(gradients)
            following = ctx.next_functions  # Builds a new tuple at each access.
            for place in ready.zeros:
                gradients[place] = zero_cotangent(*following[place])
        if checked is not None:
            program.check(kept, checked, wanted, gradients)
        # The first argument of `forward` is no tensor.
        return (None, *gradients)


run_backward_by(_Node, _Node.backward)

_APPLY = applying(_Node)


def _zero(ctx: AutogradContext, index: int) -> torch.Tensor:
    """A zero cotangent for an output."""
    _, _, unusual = ctx.call
    if unusual is not None and index in unusual.zeros:
        shape, dtype, device = unusual.zeros[index]
        return torch.zeros(shape, dtype=dtype, device=device)
    return zero_cotangent(ctx, index)


def tensors_in(values: Sequence[object]) -> list[int]:
    return [place for place, value in enumerate(values) if isinstance(value, torch.Tensor)]


def _saved(ctx: AutogradContext, unusual: _Unusual) -> Sequence[object]:
    """The saved values, with those that are no tensors."""
    values = list(ctx.saved_tensors)
    for place, number in unusual.numbers:
        values[place] = number
    return values
