"""Runs the graphs of an exported program, and is their autograd node."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import torch

from adjoint.errors import LoadError
from adjoint.exported.records import GraphRecord, NodeRecord
from adjoint.graph.leaves import is_floating, requires_grad
from adjoint.open_types import AutogradContext, TorchValue
from adjoint.runtime.autograd_node import Kinds, NodeProgram, ReadyBackward, tensors_in
from adjoint.runtime.calling import BetweenSegments
from adjoint.runtime.executable import Executable, Sizes
from adjoint.torch_private.autograd import applying, set_grad_enabled


class Programs(Protocol):
    """The programs of a file."""

    def at(self, number: int) -> Executable:
        """What runs the program of this number."""
        ...


class ExportedGraph:
    """A graph that can be run, and differentiated by autograd to the order that was exported."""

    def __init__(self, record: GraphRecord, programs: Programs, order: int = 0) -> None:
        """`order`: how often the exported function was differentiated to give this graph."""
        self.record = record
        self._programs = programs
        self._order = order
        node = record.node
        self._node = None if node is None else ExportedNode(node, programs, order + 1)

    def __call__(
        self, inputs: Sequence[object], between: BetweenSegments | None = None
    ) -> Sequence[object]:
        if not self._requiring(inputs):
            return self.run(list(inputs))
        if self.record.ends:
            return _ending(self.run(list(inputs)), inputs, self._order)
        if self._node is None:
            return self.run(list(inputs))
        return self._node(inputs, {}, between)

    def in_segments(self, inputs: Sequence[object], between: BetweenSegments) -> Sequence[object]:
        """The outputs; `between` replays views that other outputs are computed from."""
        return self(inputs, between)

    def saved_inputs(self, inputs: Sequence[object]) -> Collection[int]:
        """Positions of the inputs that autograd may save in a call with these."""
        if self._node is None or not self._requiring(inputs):
            return ()
        return self._node.saved_inputs

    def run(self, inputs: list[object]) -> Sequence[object]:
        """The outputs, without autograd history; clears `inputs`."""
        is_grad_enabled = torch.is_grad_enabled()
        set_grad_enabled(False)
        try:
            return self._programs.at(self.record.plain)(inputs)
        finally:
            set_grad_enabled(is_grad_enabled)

    def backward(self, inputs: list[object], known: Sizes, batched: bool) -> Sequence[object]:
        """The outputs of a backward graph, with a history under `create_graph=True`."""
        if batched:
            raise LoadError(
                "an exported program has no batched gradients (is_grads_batched=True, torch.vmap)"
            )
        return self(inputs) if torch.is_grad_enabled() else self.run(inputs)

    def _requiring(self, inputs: Sequence[object]) -> bool:
        """Whether a history is to be recorded."""
        if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            return False
        return any(isinstance(each, torch.Tensor) and each.requires_grad for each in inputs)


class ExportedNode(NodeProgram):
    """The autograd node of an exported graph.

    There is one for all sets of inputs that require grad: gradients that nothing needs are computed
    and dropped, and zeros are passed for missing cotangents.
    """

    def __init__(self, record: NodeRecord, programs: Programs, order: int) -> None:
        super().__init__(record.layout, record.wrt)
        self.record = record
        self._programs = programs
        self.segments = [ExportedNode(each, programs, order) for each in record.segments]
        self._graphs = {
            each.of: (each, ExportedGraph(each.graph, programs, order)) for each in record.backwards
        }
        self._ready: dict[tuple[int, ...], ReadyBackward] = {}
        self._kinds_of: dict[tuple[int, ...], Kinds] = {}

    @property
    def saved_inputs(self) -> frozenset[int]:
        """Positions of the inputs that autograd saves."""
        nodes = self.segments or [self]
        return frozenset(place for each in nodes for place in each.layout.saved_inputs)

    def _load(self) -> Executable:
        return self._programs.at(self.record.forward)

    def kinds(
        self, inputs: Sequence[TorchValue], outputs: Sequence[object], saved: Sequence[object]
    ) -> Kinds:
        """The kinds of outputs and saved values, for these inputs that require grad."""
        given = tuple([n for n, place in enumerate(self.wrt) if inputs[place].requires_grad])
        found = self._kinds_of.get(given)
        if found is None:
            history = frozenset[int]().union(*(self.record.depends[n] for n in given))
            own = self.layout.own
            found = Kinds(
                [i for i in tensors_in(outputs) if i in own and i not in history],
                sorted({*range(len(saved))} - {*tensors_in(saved)}),
                [i for i in range(len(outputs)) if i not in own],
                [i for i in self.layout.order if i in own and i not in history],
            )
            self._kinds_of[given] = found
        return found

    def backward(
        self, of: tuple[int, ...], wanted: tuple[int, ...], sizes: Sizes
    ) -> tuple[ReadyBackward, Sizes]:
        """The backward graph that takes cotangents of `of`, and of the fewest others."""
        ready = self._ready.get(of)
        if ready is None:
            ready = self._ready[of] = self._for(frozenset(of))
        return ready, sizes

    def _for(self, given: frozenset[int]) -> ReadyBackward:
        able = [taken for taken in self._graphs if given <= set(taken)]
        record, graph = self._graphs[min(able, key=len)]
        unused = [n for n, outputs in enumerate(self.record.depends) if not outputs & given]
        # Zeros stand for missing cotangents; the gradient of what they alone reach is None.
        made = _Reached(graph, unused) if unused else graph
        return ReadyBackward(made, list(record.saved), record.of, list(record.zeros))


class _Reached:
    """A backward graph without the gradients of inputs that no cotangent reaches."""

    def __init__(self, graph: ExportedGraph, unused: Sequence[int]) -> None:
        self._graph = graph
        self._unused = unused

    def backward(self, inputs: list[object], known: Sizes, batched: bool) -> Sequence[object]:
        """The gradients."""
        found = list(self._graph.backward(inputs, known, batched))
        for place in self._unused:
            found[place] = None
        return found


def _ending(outputs: Sequence[object], inputs: Sequence[object], order: int) -> list[object]:
    """The outputs with a history that cannot be differentiated."""
    floating = [place for place, each in enumerate(outputs) if is_floating(each)]
    traced = [each for each in inputs if requires_grad(each)]
    noted = _APPLY_END(order, [outputs[place] for place in floating], *traced)
    found = list(outputs)
    for place, each in zip(floating, noted, strict=True):
        found[place] = each
    return found


class _End(torch.autograd.Function):
    """Says that there is no further derivative, when it is asked for."""

    @staticmethod
    def forward(
        ctx: AutogradContext, order: int, outputs: list[torch.Tensor], *_: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.order = order
        return tuple(outputs)

    @staticmethod
    def backward(ctx: AutogradContext, *cotangents: object) -> tuple[object, ...]:
        raise LoadError(
            f"the program was exported with orders={ctx.order}, and its derivative of order "
            f"{ctx.order + 1} is asked for: export it with orders={ctx.order + 1}"
        )


_APPLY_END = applying(_End)
