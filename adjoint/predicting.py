"""Predicted memory: the footprints of programs, from their plans, before a kernel is compiled."""

from __future__ import annotations

from dataclasses import replace

from adjoint.graph.derivative import Backward, Derivative
from adjoint.loops.chain_footprint import ChainFootprint, Held
from adjoint.loops.footprint import Footprint, footprint
from adjoint.loops.plan import Plan
from adjoint.loops.runs import why_not_captured
from adjoint.runtime.cpu.program import this_processor
from adjoint.runtime.plans.layout import bytes_of_layout
from adjoint.target import Target
from adjoint.torch_private.symbols import Sizes


def footprint_of_plan(plan: Plan, target: Target, sizes: Sizes) -> Footprint:
    """The memory of the program of a plan; `sizes`: the values of its symbols."""
    processor = None if target.has_grid else this_processor()
    captured = target.captures_cuda_graphs and not why_not_captured(plan)
    made = footprint(plan, sizes, bytes_of_layout, processor, captured)
    return replace(made, shares_memory=target.shares_memory)


def footprint_of_pair(
    derivative: Derivative, forward: Footprint, backward: Footprint
) -> ChainFootprint:
    """The memory of a forward program and of the first backward program after it."""
    taken = freed(derivative, forward, derivative.first_backward)
    return ChainFootprint((forward, backward), ((None,) * len(forward.inputs), taken))


def freed(
    derivative: Derivative, forward: Footprint, backward: Backward, program: int = 0, until: int = 0
) -> tuple[Held | None, ...]:
    """The memory of the forward program that each input of a backward program has, and frees.

    `program`: the number of the forward program in its chain.  `until`: the number of the program
    after which the memory is freed.
    """
    places = derivative.freed
    slots = (forward.outputs[places[each]] if each in places else None for each in backward.inputs)
    return tuple(None if slot is None else Held(program, slot, until) for slot in slots)
