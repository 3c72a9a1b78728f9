"""Runs the graphs of an exported program, and is their autograd node."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
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


class ProgramSource(Protocol):
    """The programs of a file."""

    def at(self, number: int) -> Executable:
        """What runs the program of this number."""
        ...


class ExportedGraph:
    """A graph that can be run, and differentiated by autograd to the order that was exported."""

    def __init__(self, record: GraphRecord, programs: ProgramSource, order: int = 0) -> None:
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
    and dropped.  The file has backward graphs for groups of outputs; those of the groups that have
    cotangents run, and their gradients are added.
    """

    def __init__(self, record: NodeRecord, programs: ProgramSource, order: int) -> None:
        super().__init__(record.layout, record.wrt)
        self.record = record
        self._programs = programs
        self.segments = [ExportedNode(each, programs, order) for each in record.segments]
        results = record.layout.results
        self._graphs = {
            # Saved values have cotangents where a derivative was differentiated.
            each.of: (each, ExportedGraph(each.graph, programs, order + (max(each.of) >= results)))
            for each in record.backwards
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
        """The backward graphs that together take cotangents of `of`, and of the fewest others."""
        ready = self._ready.get(of)
        if ready is None:
            ready = self._ready[of] = self._for(frozenset(of))
        return ready, sizes

    def _for(self, given: frozenset[int]) -> ReadyBackward:
        parts = [self._graphs[of] for of in covering(given, list(self._graphs))]
        depends = self.record.depends
        saved = sorted({place for record, _ in parts for place in record.saved})
        of = tuple(place for record, _ in parts for place in record.of)
        places = {place: n for n, place in enumerate(saved)}
        first = len(saved)
        terms: list[_Term] = []
        for record, graph in parts:
            taken = [places[place] for place in record.saved]
            taken += range(first, first + len(record.of))
            first += len(record.of)
            here = given & {*record.of}
            reached = [n for n, outputs in enumerate(depends) if outputs & here]
            terms.append(_Term(graph, taken, reached))
        zeros = {place for record, _ in parts for place in record.zeros}
        for (record, _), term in zip(parts, terms, strict=True):
            zeros -= {*term.reached} - {*record.zeros}
        return ReadyBackward(_Sum(terms), saved, of, sorted(zeros))


def covering(given: frozenset[int], groups: Sequence[tuple[int, ...]]) -> Sequence[tuple[int, ...]]:
    """Disjoint groups that together are `given`, or have as few others as can be."""
    found: list[tuple[int, ...]] = []
    left = set(given)
    for group in sorted(groups, key=len, reverse=True):
        if left and left.issuperset(group):
            found.append(group)
            left.difference_update(group)
    for group in sorted(groups, key=len):
        if left.intersection(group) and not any({*group} & {*each} for each in found):
            found.append(group)
            left.difference_update(group)
    if left:
        return [min((each for each in groups if given <= {*each}), key=len)]
    return found


@dataclass(frozen=True)
class _Term:
    """A backward graph whose gradients are added to those of others."""

    graph: ExportedGraph
    taken: Sequence[int]
    """The positions of its inputs among those of all."""
    reached: Sequence[int]
    """The gradients that its cotangents reach; the others are None."""


class _Sum:
    """The sum of the gradients of backward graphs."""

    def __init__(self, terms: Sequence[_Term]) -> None:
        self._terms = terms

    def backward(self, inputs: list[object], known: Sizes, batched: bool) -> Sequence[object]:
        """The gradients; clears `inputs`."""
        given = list(inputs)
        inputs.clear()
        total: list[torch.Tensor | None] = []
        for term in self._terms:
            taken = [given[place] for place in term.taken]
            found = term.graph.backward(taken, known, batched)
            total = total or [None] * len(found)
            for place in term.reached:
                before, now = total[place], found[place]
                if isinstance(now, torch.Tensor):
                    total[place] = now if before is None else before + now
        return total


def _ending(outputs: Sequence[object], inputs: Sequence[object], order: int) -> list[object]:
    """The outputs, with an autograd node that raises an error when it is differentiated."""
    floating = [place for place, each in enumerate(outputs) if is_floating(each)]
    traced = [each for each in inputs if requires_grad(each)]
    noted = _APPLY_END(order, [outputs[place] for place in floating], *traced)
    found = list(outputs)
    for place, each in zip(floating, noted, strict=True):
        found[place] = each
    return found


class _End(torch.autograd.Function):
    """An autograd node that raises an error in its backward: this order was not exported."""

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
