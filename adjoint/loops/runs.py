"""Analyses of a plan: runs of kernels between library calls, fixed views, and last uses."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

from adjoint.loops.plan import (
    Argument,
    LibraryCall,
    NativeStep,
    Number,
    Plan,
    Slot,
    SlotKind,
    arguments_of,
    operands_of,
)
from adjoint.torch_private import trees

# Slots whose memory belongs to the binding.
INNER = (SlotKind.TEMPORARY, SlotKind.LOCAL)

# Smaller tensors are not freed before the end of a run, nor allocated after its beginning.
MIN_FREED_BYTES = 1 << 14


class Run:
    """Consecutive kernels that one native call runs."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, NativeStep]] = []
        self.call_slots: list[int] = []
        """Slots whose address is known only in a call: inputs, results of calls and outputs."""


def runs_of(plan: Plan) -> list[Run]:
    """The plan's kernels, divided where a library call has to run between them.

    Tensors are allocated before a run and freed after it.  A plan that gives memory back is also
    divided where a large input was read last, or a large output is written first.
    """
    runs: list[Run] = []
    open_run: Run | None = None
    pauses = _pauses(plan) if plan.gives_back else frozenset[int]()
    fixed = {slot.number for slot in plan.slots if slot.kind is SlotKind.TEMPORARY}
    for place, step in enumerate(plan.steps):
        if isinstance(step, LibraryCall):
            if not is_fixed_view(step, fixed):
                open_run = None
            else:
                fixed.add(step.result)
            continue
        if open_run is None or place in pauses:
            open_run = Run()
            runs.append(open_run)
        open_run.steps.append((place, step))
        for operand in operands_of(step):
            if not isinstance(operand, int) or operand in open_run.call_slots:
                continue
            if plan.slots[operand].kind not in INNER and operand not in fixed:
                open_run.call_slots.append(operand)
    return runs


def _pauses(plan: Plan) -> frozenset[int]:
    """Steps before which memory is freed or allocated."""
    large = {each.number for each in plan.slots if each.kind not in INNER and may_be_large(each)}
    found = {1 + place for slot, place in last_uses(plan).items() if slot in large}
    seen: set[int] = set()
    for place, step in enumerate(plan.steps):
        if not isinstance(step, LibraryCall):
            new = {operand for operand in operands_of(step) if isinstance(operand, int)} - seen
            seen |= new
            if any(plan.slots[slot].kind is SlotKind.OUTPUT for slot in new & large):
                found.add(place)
    return frozenset(found)


def freeing_early(plan: Plan) -> Plan:
    """The plan with large temporaries in memory of their own, freed after their last use."""
    slots = tuple(
        replace(each, kind=SlotKind.OUTPUT)
        if each.kind is SlotKind.TEMPORARY and may_be_large(each)
        else each
        for each in plan.slots
    )
    return replace(plan, slots=slots)


def may_be_large(slot: Slot) -> bool:
    """Whether the slot is worth freeing while a plan runs, as far as its size is known."""
    if slot.shape is None or slot.dtype is None:
        return False
    known = [size for size in slot.shape if isinstance(size, int)]
    is_known = len(known) == len(slot.shape)
    return not is_known or math.prod(known) * slot.dtype.itemsize >= MIN_FREED_BYTES


def read_by_kernels(plan: Plan, runs: Sequence[Run]) -> set[int]:
    """Slots, other than temporaries, whose strides have to be those that the plan expects."""
    read = {operand for run in runs for operand in run.call_slots}
    read |= {slot.replaces for slot in plan.slots if slot.replaces is not None}
    return read | {
        slot
        for step in plan.steps
        if isinstance(step, LibraryCall) and step.reads_layout
        for slot in arguments_of(step)
        if plan.slots[slot].shape is not None
    }


def is_fixed_view(step: LibraryCall, fixed: Container[int]) -> bool:
    """Whether the step is a view of tensors that the binding owns: made once, not in every call."""
    return step.is_view and all(slot in fixed for slot in arguments_of(step))


def numbers_of(plan: Plan) -> Iterator[Number]:
    for step in plan.steps:
        if isinstance(step, LibraryCall):
            yield from numbers_in(step)


def numbers_in(step: LibraryCall) -> Iterator[Number]:
    for leaf in trees.leaves((step.args, step.kwargs)):
        if isinstance(leaf, Number):
            yield leaf


def has_new_results(plan: Plan) -> bool:
    """Whether kernels write all results, each in memory of its own, and each is returned once.

    The new value of an input may be in the memory of that input.
    """
    if not isinstance(plan.outputs, (list, tuple)):
        return False
    given = [each for each in plan.outputs if each is not None]
    slots = [each.slot for each in given if isinstance(each, Argument)]
    return len(set(slots)) == len(given) and all(
        plan.slots[slot].kind is SlotKind.OUTPUT for slot in slots
    )


def last_uses(plan: Plan) -> dict[int, int]:
    """For each slot, the last step that uses it or a slot that may alias it."""
    last: dict[int, int] = {}
    sources: dict[int, list[int]] = {}
    for place, step in enumerate(plan.steps):
        if isinstance(step, LibraryCall):
            used = arguments_of(step)
            if step.aliases:
                sources[step.result] = used
            work = [*used, step.result]
        else:
            work = [operand for operand in operands_of(step) if isinstance(operand, int)]
        while work:
            slot = work.pop()
            if last.get(slot) != place:
                last[slot] = place
                work += sources.get(slot, ())
    for leaf in trees.leaves(plan.outputs):
        if isinstance(leaf, Argument):
            last[leaf.slot] = len(plan.steps)
            replaced = plan.slots[leaf.slot].replaces
            if replaced is not None:
                last[replaced] = len(plan.steps)
    return last


def why_not_captured(plan: Plan) -> str:
    """Why calls of the plan are not captured as a CUDA graph; empty if they are."""
    if plan.gives_back:
        return "it frees memory while it runs, and a replay holds all inputs and results to its end"
    for step in plan.steps:
        if isinstance(step, LibraryCall) and step.uncapturable:
            return f"{step.uncapturable}, from {step.line}" if step.line else step.uncapturable
    return ""
