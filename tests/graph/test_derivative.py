from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import adjoint
from adjoint.compiler import Compiler
from adjoint.graph.derivative import Derivative
from adjoint.graph.descriptors import Argument, Gradient, Result, SavedInput
from tests.parity import leaf


def derivative(function: Any, *args: Tensor, segmented: bool = False) -> Derivative:
    graph = adjoint.capture(function, *args).graph_module
    made = Compiler().derivative(graph, range(len(args)), segmented)
    assert made is not None
    return made


def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return (x.sin() @ y).exp(), y > 0


def chain(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    first = (x * y).sin()
    return first, first * x.exp()


def test_positions_are_read_off_descriptors() -> None:
    made = derivative(two, leaf(3, 3), leaf(3, 3))
    backward = made.first_backward
    assert made.results == 2
    # The mask has no derivative; values that are saved may have one.
    assert made.order[0] == 0
    assert 1 not in made.order
    assert made.described([0]) == (Result(0, "result[0]"),)
    assert made.cotangents_of(backward) == (0,)
    assert backward.gradients == (
        Gradient(Argument(0, "args[0]")),
        Gradient(Argument(1, "args[1]")),
    )
    # Inputs come before outputs, and each saved output is the one at its index.
    count = len(made.saved_inputs)
    assert len(made.saved) == count + len(made.saved_outputs)
    assert all(isinstance(each, SavedInput) for each in made.saved[count:])
    assert [made.saved[place] for place in made.saved_for(backward)] == list(backward.saved)


def test_a_graph_runs_as_it_is_unless_something_else_is_said() -> None:
    made = derivative(two, leaf(3, 3), leaf(3, 3))
    assert made.own == frozenset(range(len(made._outputs)))
    assert made.runs is made.executed


def test_a_segment_has_its_own_outputs_and_inputs() -> None:
    made = derivative(chain, leaf(3), leaf(3), segmented=True)
    assert made.segments is not None
    first, second = (made.segment(number) for number in range(2))
    # Saved values are outputs as well, of the segment that computes them.
    assert first[0].own & {0, 1} == {0}
    assert second[0].own & {0, 1} == {1}
    assert first[0].own | second[0].own == made.own
    assert first[1] == (0, 1)
    # The second takes what the first computed as inputs of its own, after those of the graph.
    assert made.segments.cuts
    assert set(second[1]) & set(range(2, 2 + len(made.segments.cuts)))
    assert second[0].segments is None
    assert second[0].first is None
    assert torch.equal(torch.tensor(second[0].order), torch.tensor([1]))
