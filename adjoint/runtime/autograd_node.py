"""The autograd node of a graph.

A graph with a derivative runs as one `autograd.Function` whose outputs include the saved values.
What its backward runs - a graph that is compiled now, or one that was exported - is a question to
its `NodeProgram`.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from adjoint.errors import DifferentiationError
from adjoint.graph.derivative import NodeLayout, Segments, picker
from adjoint.graph.evaluation import InOwnMemory, InputsWithHistory, detach_inputs
from adjoint.open_types import AutogradContext, TorchValue
from adjoint.runtime.calling import BetweenSegments
from adjoint.runtime.executable import Checker, Executable, Sizes
from adjoint.torch_private.autograd import (
    CAN_CLEAR_SAVED,
    ReachedNodes,
    apply_node,
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
    """A loaded backward graph; its inputs and outputs as positions in a run."""

    graph: BackwardGraph
    saved: list[int]
    """Positions of the saved values that it takes."""
    of: tuple[int, ...]
    """Positions of the outputs whose cotangents it takes."""
    zeros: list[int]
    """Positions of the gradients that it returns as None where eager returns zeros."""

    @functools.cached_property
    def take_saved(self) -> Callable[[Sequence[object]], Sequence[object]]:
        """Takes the saved values that it needs out of all."""
        return picker(self.saved)


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

    def __init__(self, layout: NodeLayout, wrt: tuple[int, ...]) -> None:
        self.layout = layout
        self.wrt = wrt
        self.following = ReachedNodes()
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
        cotangents: Sequence[tuple[int, object]],
        wanted: tuple[int, ...],
        error: DifferentiationError,
    ) -> list[object]:
        """The gradients by eager autograd, where `backward` failed; raises `error` if it cannot.

        `cotangents`: pairs of the position of an output and its cotangent.
        """
        raise error from error.__cause__

    def check(  # noqa: B027 - without a checker there is nothing to do
        self,
        kept: KeptInputs | None,
        cotangents: Sequence[tuple[int, object]],
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
            outputs = self.forward(inputs)
            set_grad_enabled(True)
            if self.layout.segments is not None:
                outputs = list(outputs) if between is None else between.separate(outputs)
                segments = self.layout.segments
                return self._in_segments(segments, list(inputs), outputs, sizes, between)
            traced = [inputs[index] for index in self.wrt]
            noted = apply_node(_Node, self, sizes, inputs, outputs, *traced)
        finally:
            set_grad_enabled(is_grad_enabled)
        results = noted[: self.layout.results]
        return InOwnMemory(results) if isinstance(outputs, InOwnMemory) else results

    def _in_segments(
        self,
        segments: Segments,
        inputs: list[object],
        outputs: list[object],
        sizes: Sizes,
        between: BetweenSegments | None,
    ) -> Sequence[object]:
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
        return outputs[: self.layout.results]

    def forward(self, inputs: Sequence[object]) -> Sequence[object]:
        """All outputs, saved values included."""
        loaded = self._forward or self._load()
        # Ops under `enable_grad` inside the graph must not record: this node has the derivative.
        given = InputsWithHistory(inputs)
        if not getattr(loaded, "forgets_histories", False):
            detach_inputs(given)
        return loaded(given)

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
        return self._kinds


class _Call(NamedTuple):
    """What one run of a graph leaves for its backward, besides the saved tensors."""

    program: NodeProgram
    sizes: Sizes
    kept: KeptInputs | None
    zeros: dict[int, tuple[torch.Size, torch.dtype, torch.device]]
    """For outputs that are not differentiable here: what a zero cotangent looks like."""
    numbers: list[tuple[int, object]]
    """Places of saved values that are no tensors, and the values."""


class _Node(torch.autograd.Function):
    """One run of a graph, as autograd sees it."""

    @staticmethod
    def forward(
        ctx: AutogradContext,
        program: NodeProgram,
        sizes: Sizes,
        inputs: Sequence[object],
        outputs: Sequence[TorchValue],
        *_: torch.Tensor,
    ) -> tuple[object, ...]:
        """The last arguments are the inputs that require grad: autograd has to see them."""
        saved = program.layout.saved_from(inputs, outputs)
        kinds = program.kinds(inputs, outputs, saved)
        kept = KeptInputs(inputs) if program.keeps_inputs else None
        # As `set_materialize_grads` and `save_for_backward`, which are functions in Python.
        ctx.materialize_grads = False
        if kinds.fixed:
            ctx.mark_non_differentiable(*[outputs[i] for i in kinds.fixed])
        # Torch forgets the shapes of outputs that are not differentiable.
        zeros = {i: (outputs[i].shape, outputs[i].dtype, outputs[i].device) for i in kinds.constant}
        numbers = [(place, saved[place]) for place in kinds.numbers]
        for place in kinds.numbers:
            saved[place] = None
        ctx.call = _Call(program, sizes, kept, zeros, numbers)
        ctx.to_save = tuple(saved)
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
        program = call.program
        given = tuple([index for index in program.layout.order if cotangents[index] is not None])
        if not given:
            return _NO_TENSORS + (None,) * len(program.wrt)
        wanted = program.following.that_run(ctx, given)
        try:
            ready, sizes = program.backward(given, wanted, call.sizes)
        except DifferentiationError as error:
            pairs = [(index, cotangents[index]) for index in given]
            return (*_NO_TENSORS, *program.in_eager(call.kept, pairs, wanted, error))
        arguments = _saved(ctx, call, ready)
        arguments += [
            _zero(ctx, index) if cotangents[index] is None else cotangents[index]
            for index in ready.of
        ]
        batched = any(map(is_batched_tensor, [cotangents[index] for index in given]))
        checked = [(i, cotangents[i]) for i in given] if program.checker and not batched else None
        del cotangents
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
            program.check(call.kept, checked, wanted, gradients)
        return (*_NO_TENSORS, *gradients)


run_backward_by(_Node, _Node.backward)

# Gradients of the arguments of `_Node.forward` that are not tensors.
_NO_TENSORS = (None,) * 4


def _zero(ctx: AutogradContext, index: int) -> torch.Tensor:
    """A zero cotangent for an output."""
    zeros = ctx.call.zeros
    if index in zeros:
        shape, dtype, device = zeros[index]
        return torch.zeros(shape, dtype=dtype, device=device)
    return zero_cotangent(ctx, index)


def tensors_in(values: Sequence[object]) -> list[int]:
    return [place for place, value in enumerate(values) if isinstance(value, torch.Tensor)]


def _saved(ctx: AutogradContext, call: _Call, ready: ReadyBackward) -> list[object]:
    """The saved values that a backward graph takes."""
    values = ctx.saved_tensors
    if call.numbers:
        values = list(values)
        for place, number in call.numbers:
            values[place] = number
    if CAN_CLEAR_SAVED:
        # Unless autograd retains the graph, saved tensors are freed while the backward graph runs.
        ctx.maybe_clear_saved_tensors()
    return list(ready.take_saved(values))
