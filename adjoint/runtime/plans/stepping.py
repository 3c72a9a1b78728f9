"""A plan run one step at a time, each step as a program of its own: for measuring, not for speed.

A step takes the tensors that it reads as inputs and returns those that it writes, so that the steps
of a call run on the data of that call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from adjoint.loops.plan import (
    Argument,
    Launch,
    LibraryCall,
    NativeStep,
    Plan,
    Product,
    RowTiles,
    Scratch,
    Slot,
    SlotKind,
    Step,
    arguments_of,
    operands_of,
)
from adjoint.open_types import TorchValue
from adjoint.runtime.plans.program import PlanProgram

# Makes the program of a plan that has a part of the steps.
Load: TypeAlias = Callable[[Plan], PlanProgram]


@dataclass(frozen=True)
class Portion:
    """A step, or several that share workspace, with the program that runs them alone."""

    steps: tuple[Step, ...]
    program: PlanProgram
    takes: tuple[int, ...]
    """The slots whose values it takes, after the inputs of the plan."""
    gives: tuple[int, ...]
    """The slots whose values it returns."""
    reads: frozenset[int]
    """The slots that it reads, inputs of the plan included."""

    def arguments(self, inputs: Sequence[object], values: Mapping[int, object]) -> list[object]:
        """What the program is called with."""
        return [*inputs, *(values[slot] for slot in self.takes)]

    def __call__(self, inputs: Sequence[object], values: dict[int, TorchValue]) -> None:
        """Run on the values of slots, and add what is written to them."""
        results = self.program(self.arguments(inputs, values))
        values.update(zip(self.gives, results, strict=True))


def portions_of(plan: Plan, load: Load) -> Iterator[Portion]:
    """The steps of a plan, in order."""
    known = set(plan.inputs)
    for steps in _groups(plan):
        one = _portion(plan, steps, known, load)
        known.update(one.gives)
        yield one


def _groups(plan: Plan) -> list[tuple[Step, ...]]:
    """Consecutive steps, with those together that share workspace."""
    groups: list[list[Step]] = []
    owners: dict[int, int] = {}
    """By the identity of a workspace: the group that uses it."""
    for step in plan.steps:
        spaces = [] if isinstance(step, LibraryCall) else operands_of(step)
        shared = [id(each) for each in spaces if isinstance(each, Scratch)]
        place = min((owners.get(each, len(groups)) for each in shared), default=len(groups))
        joined = [each for group in groups[place:] for each in group]
        groups[place:] = [[*joined, step]]
        owners = {each: min(owner, place) for each, owner in owners.items()}
        owners.update(dict.fromkeys(shared, place))
    return [tuple(group) for group in groups]


def _portion(plan: Plan, steps: tuple[Step, ...], known: set[int], load: Load) -> Portion:
    reads: dict[int, None] = {}
    writes: dict[int, None] = {}
    for step in steps:
        read, written = _slots_of(plan, step)
        reads.update(dict.fromkeys(each for each in read if each not in writes))
        writes.update(dict.fromkeys(written))
    # A slot that an earlier step wrote in part is taken, and stored to.
    again = [slot for slot in writes if slot in known]
    takes = tuple(slot for slot in dict.fromkeys((*reads, *again)) if slot not in plan.inputs)
    slots = [_unused(slot) for slot in plan.slots]
    for slot in (*plan.inputs, *takes):
        slots[slot] = replace(plan.slots[slot], kind=SlotKind.INPUT, replaces=None)
    results = {step.result for step in steps if isinstance(step, LibraryCall)}
    places = list(takes)
    for slot in writes:
        kind = SlotKind.RESULT if slot in results else SlotKind.OUTPUT
        slots[slot] = replace(plan.slots[slot], kind=kind)
        if slot in again:
            number = len(slots)
            slots.append(replace(plan.slots[slot], number=number, kind=SlotKind.INPUT))
            places[takes.index(slot)] = number
            slots[slot] = replace(slots[slot], replaces=number)
    alone = Plan(
        tuple(slots),
        (*plan.inputs, *places),
        plan.symbols,
        tuple(_unchecked(step) for step in steps),
        [Argument(slot) for slot in writes],
        plan.assumed,
        plan.gives_back,
        plan.streams,
    )
    return Portion(steps, load(alone), takes, tuple(writes), frozenset(reads))


def _unchecked(step: Step) -> Step:
    """A library call returns a tensor of its own, and its layout is not checked again."""
    return replace(step, writes=False, expected=()) if isinstance(step, LibraryCall) else step


def _unused(slot: Slot) -> Slot:
    """A slot that the step does not touch, unless it is local to it."""
    return slot if slot.kind is SlotKind.LOCAL else replace(slot, kind=SlotKind.TEMPORARY)


def _slots_of(plan: Plan, step: Step) -> tuple[list[int], list[int]]:
    """The slots that a step reads, and those that it writes."""
    if isinstance(step, LibraryCall):
        return list(dict.fromkeys(arguments_of(step))), [step.result]
    writes = dict.fromkeys(_written(step))
    reads = dict.fromkeys(each for each in operands_of(step) if isinstance(each, int))
    outer = [slot for slot in reads if plan.slots[slot].kind is not SlotKind.LOCAL]
    return [slot for slot in outer if slot not in writes], [s for s in outer if s in writes]


def _written(step: NativeStep) -> Iterator[int]:
    match step:
        case Launch(kernel, operands):
            for buffer, operand in zip(kernel.buffers, operands, strict=True):
                if buffer.written and isinstance(operand, int):
                    yield operand
        case Product(result=result):
            if isinstance(result, int):
                yield result
        case RowTiles(begin=begin, body=body):
            for each in (*begin, *body):
                yield from _written(each)
