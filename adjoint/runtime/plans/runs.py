"""Analyses of a plan: runs of kernels between library calls, fixed views, and last uses."""

from __future__ import annotations

from collections.abc import Container, Iterator

from adjoint.loops.plan import (
    Argument,
    LibraryCall,
    NativeStep,
    Number,
    Plan,
    SlotKind,
    arguments_of,
    operands_of,
)
from adjoint.torch_private import trees

# Slots whose memory belongs to the binding.
INNER = (SlotKind.TEMPORARY, SlotKind.LOCAL)


class Run:
    """Consecutive kernels, without a library call between them."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, NativeStep]] = []
        self.call_slots: list[int] = []
        """Slots whose address is known only in a call: inputs, results of calls and outputs."""


def runs_of(plan: Plan) -> list[Run]:
    """The plan's kernels, divided where a library call has to run between them."""
    runs: list[Run] = []
    open_run: Run | None = None
    fixed = {slot.number for slot in plan.slots if slot.kind is SlotKind.TEMPORARY}
    for place, step in enumerate(plan.steps):
        if isinstance(step, LibraryCall):
            if not is_fixed_view(step, fixed):
                open_run = None
            else:
                fixed.add(step.result)
            continue
        if open_run is None:
            open_run = Run()
            runs.append(open_run)
        open_run.steps.append((place, step))
        for operand in operands_of(step):
            if not isinstance(operand, int) or operand in open_run.call_slots:
                continue
            if plan.slots[operand].kind not in INNER and operand not in fixed:
                open_run.call_slots.append(operand)
    return runs


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
