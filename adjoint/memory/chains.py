"""The programs that a function runs when it is differentiated, and the memory of all of them.

Order 0: the function alone.  Order 1: a forward program and a backward program.  Order 2: the
backward is differentiated, too.  Four programs then run one after the other: the forward; the first
derivative, which saves values itself; the derivative of that; and the backward of the forward,
which also takes the cotangents of its saved values.
"""

from __future__ import annotations

from collections.abc import Sequence

from adjoint.compiler import Compiler
from adjoint.graph.derivative import Backward, Derivative
from adjoint.graph.descriptors import Output, SavedInput, Tangent
from adjoint.graph.metadata import input_descriptors, outputs_of
from adjoint.loops.chain_footprint import ChainFootprint, Held
from adjoint.loops.footprint import Footprint
from adjoint.predicting import freed

# The number of the last of the four programs of a second derivative.
_LAST = 3


def second_derivative(
    compiler: Compiler, derivative: Derivative, wrt: Sequence[int], first: Sequence[int]
) -> ChainFootprint | None:
    """The memory of a second derivative; None: a program runs op by op.

    `wrt`: the inputs that the function is differentiated with respect to; `first`: those among
    them whose gradients are differentiated again.
    """
    wanted = frozenset(place for place, each in enumerate(wrt) if each in first)
    backward = compiler.narrowed(derivative.first_backward, wanted)
    again = compiler.derivative(backward.graph_module, _reached(derivative, backward, wrt), True)
    if again is None or again.first is None:
        return None
    last = compiler.backward(derivative, _with_cotangent(derivative, again.first), wrt)
    graphs = [derivative.runs, again.runs, again.first.graph_module, last.graph_module]
    programs = [made for each in graphs if (made := compiler.footprint_of(each)) is not None]
    if len(programs) < len(graphs):
        return None
    forward, second = programs[:2]
    takes = (
        (None,) * len(forward.inputs),
        freed(derivative, forward, backward, until=_LAST),
        freed(again, second, again.first, program=1),
        _cotangents(derivative, again.first, programs, last),
    )
    return ChainFootprint(tuple(programs), takes)


def _reached(derivative: Derivative, backward: Backward, wrt: Sequence[int]) -> list[int]:
    """Inputs of the backward graph that have a history: of the function, or what was saved."""
    inputs = input_descriptors(derivative.graph_module.graph)
    with_history = {inputs[place] for place in wrt}
    return [
        place
        for place, each in enumerate(backward.inputs)
        if each in with_history
        or (isinstance(each, SavedInput) and each.of.index in derivative.differentiable)
    ]


def _with_cotangent(derivative: Derivative, second: Backward) -> list[int]:
    """Outputs of the forward program with a cotangent: its results, and what was saved."""
    found = {place for place in derivative.differentiable if place < derivative.results}
    for gradient, value in zip(
        second.gradients, outputs_of(second.graph_module.graph), strict=True
    ):
        of = gradient.of
        if value is not None and isinstance(of, SavedInput):
            found.add(of.of.index)
    return sorted(found)


def _cotangents(
    derivative: Derivative, second: Backward, programs: Sequence[Footprint], last: Backward
) -> tuple[Held | None, ...]:
    """The memory that the inputs of the last program have: saved values, and their cotangents."""
    taken = list(freed(derivative, programs[0], last))
    slots = programs[2].outputs
    by_output: dict[Output, int | None] = {
        gradient.of.of: slots[place]
        for place, gradient in enumerate(second.gradients)
        if isinstance(gradient.of, SavedInput)
    }
    for place, each in enumerate(last.inputs[len(last.saved) :], len(last.saved)):
        assert isinstance(each, Tangent)
        slot = by_output.get(each.of)
        taken[place] = None if slot is None else Held(2, slot)
    return tuple(taken)
