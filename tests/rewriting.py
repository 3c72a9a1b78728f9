"""What tests of rewriting share: functions captured, rewritten, compared with what they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

import adjoint
from adjoint.graph.evaluation import evaluate
from adjoint.graph.show import show
from adjoint.graph.verify import verify
from adjoint.observing import Sighting
from adjoint.pipeline import JOINT, PASS_NAMES, POST, primal
from adjoint.rewrite.engine import Rewriting, rewriting
from adjoint.rewrite.matching import match_at
from adjoint.rewrite.rules import Rule
from adjoint.rewrite.tracing import pattern_of


def graph_of(function: Callable[..., Any], *args: Any, dynamic: bool = False) -> fx.GraphModule:
    return adjoint.capture(function, *args, dynamic=dynamic).graph_module


def targets(graph_module: fx.GraphModule) -> list[Any]:
    """The operators of a graph, in order."""
    return [node.target for node in graph_module.graph.nodes if node.op == "call_function"]


def calls(graph_module: fx.GraphModule, op: Any) -> int:
    return targets(graph_module).count(op)


def assert_same(before: fx.GraphModule, after: fx.GraphModule, *inputs: Any) -> None:
    """The graphs compute the same bits, in tensors of the same strides."""
    expected, actual = evaluate(before, inputs), evaluate(after, inputs)
    assert len(expected) == len(actual)
    for one, other in zip(expected, actual, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(other, one, rtol=0, atol=0, equal_nan=True)
        signs = [torch.signbit(each) & ~each.isnan() for each in (one, other)]
        assert torch.equal(*signs), "signs of zeros"


class Growth:
    """An observer of the nodes of each graph before and after all passes of a place.

    The passes before lowering are not among them: `decompose` writes operators out for kernels.
    """

    def __init__(self) -> None:
        self.graphs: list[tuple[str, int, int]] = []
        """For each graph: the place, and the nodes before and after its passes."""
        self._names = {
            place: [each.name for each in passes]
            for place, passes in (("primal", primal(())), ("joint", JOINT), ("post", POST))
        }
        self._next: list[str] = []

    def __call__(self, event: object) -> None:
        if not isinstance(event, Sighting) or event.nodes is None or event.stage not in PASS_NAMES:
            return
        before, after = event.nodes
        if self._next[:1] == [event.stage]:
            place, first, last = self.graphs[-1]
            assert last == before, "a graph is changed by passes alone"
            self.graphs[-1] = (place, first, after)
            self._next = self._next[1:]
            return
        self._next = []
        for place, names in self._names.items():
            if names[0] == event.stage:
                self.graphs.append((place, before, after))
                self._next = names[1:]

    @property
    def larger(self) -> list[tuple[str, int, int]]:
        """The graphs that have more nodes afterwards."""
        return [each for each in self.graphs if each[2] > each[1]]


def rewritten(
    rules: Sequence[Rule], function: Callable[..., Any], *inputs: Any, dynamic: bool = False
) -> Rewriting:
    """The graph of `function` with `rules` applied, which computes the same; the graph that was
    given is as it was."""
    module = graph_of(function, *inputs, dynamic=dynamic)
    before = show(module)
    made = rewriting(module, rules, "tested")
    assert show(module) == before
    verify(made.graph_module)
    assert_same(module, made.graph_module, *inputs)
    return made


def matched(pattern: Any, examples: list[Any], function: Any, *inputs: Any, **options: Any) -> int:
    """How often a function traced with `examples`, as a pattern, matches in another."""
    found = pattern_of(pattern, examples)
    graph = graph_of(function, *inputs, **options).graph
    return sum(
        each.has_right_sizes(match)
        for each in found
        for node in graph.nodes
        for match in match_at(each.outputs, node)
    )
