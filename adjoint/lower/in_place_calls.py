"""Library calls that write to a part of a tensor, in the memory of that tensor.

`written(base, ...)` (`graph/partial_writes.py`) is a new value of `base`.  The call writes to the
memory of `base` itself, and so stores only what changes, if

* every step that reads `base`, or what may share its memory, can come before the call;
* the caller does not get the old value;
* the memory is the plan's own, or that of an input of which the caller wants the new value.

A call that fails must leave inputs as they were.  So a program keeps what it replaces in an input
until it has succeeded, and puts it back if it fails (`runtime/plans/writing.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from adjoint.graph.partial_writes import written, written_there
from adjoint.loops.plan import (
    Argument,
    HeldConstant,
    LibraryCall,
    Plan,
    Slot,
    SlotKind,
    Step,
    arguments_of,
    operands_of,
)
from adjoint.lower.sizes import is_one
from adjoint.torch_private import trees
from adjoint.torch_private.operators import OpOverload
from adjoint.torch_private.symbols import same_number


def write_in_place(plan: Plan, new_values: Sequence[tuple[int, int]]) -> Plan:
    """The plan with writes to parts of tensors done in place, where that is possible.

    `new_values`: slots of new values of inputs, which may be stored in these, with the inputs.
    """
    for result, source in new_values:
        plan = _overwriting(plan, result, source) or plan
    for call in [step for step in plan.steps if isinstance(step, LibraryCall)]:
        if _is_write(call) and not call.writes and _is_owned(plan, _base_of(call)):
            changed = replace(call, target=written_there, aliases=True, expected=())
            plan = _placed(plan, call, changed) or plan
    return plan


def _is_write(call: LibraryCall) -> bool:
    return call.op is written


def _overwriting(plan: Plan, result: int, source: int) -> Plan | None:
    """The plan in which all writes that lead to `result` are done in the memory of an input."""
    made: Plan | None = plan
    leaves = [leaf.slot for leaf in trees.leaves(plan.outputs) if isinstance(leaf, Argument)]
    calls = _calls_between(plan, source, result)
    if not calls or leaves.count(result) != 1:
        return None
    for call in calls:
        changed = replace(call, writes=True, expected=())
        made = None if made is None else _placed(made, call, changed, source)
    return made


def _calls_between(plan: Plan, source: int, result: int) -> list[LibraryCall]:
    """The calls that write to `source`, one after the other, to make `result`; empty: others do."""
    calls = {step.result: step for step in plan.steps if isinstance(step, LibraryCall)}
    found: list[LibraryCall] = []
    while result != source:
        call = calls.get(result)
        if call is None or not _is_write(call):
            return []
        found.append(call)
        result = _base_of(call)
    return found[::-1]


def _base_of(call: LibraryCall) -> int:
    base = call.args[0]
    assert isinstance(base, Argument)
    return base.slot


def _is_owned(plan: Plan, slot: int) -> bool:
    """Whether the memory of a slot belongs to the plan, and to no other slot."""
    kind = plan.slots[slot].kind
    if kind in (SlotKind.TEMPORARY, SlotKind.OUTPUT):
        return plan.slots[slot].replaces is None
    if kind is not SlotKind.RESULT:
        return False
    makers = [s for s in plan.steps if isinstance(s, LibraryCall) and s.result == slot]
    return all(
        not isinstance(maker.target, HeldConstant)
        and (_is_write(maker) or (isinstance(maker.op, OpOverload) and not maker.aliases))
        for maker in makers
    )


def _placed(
    plan: Plan, call: LibraryCall, changed: LibraryCall, source: int | None = None
) -> Plan | None:
    """The plan with `call` changed, after all that reads the old value; None if that is needed
    later, or the new value is to have other strides.

    `source`: the input in whose memory the result is.
    """
    base = _base_of(call)
    if not are_alike(plan.slots[call.result], plan.slots[base if source is None else source]):
        return None
    shared = _sharing(plan.steps, base)
    outputs = {leaf.slot for leaf in trees.leaves(plan.outputs) if isinstance(leaf, Argument)}
    values = [*arguments_of(call)]
    values.remove(base)
    if shared & {*outputs, *values}:
        return None
    steps = [step for step in plan.steps if step is not call]
    readers = [place for place, step in enumerate(steps) if shared & _used(step)]
    users = [place for place, step in enumerate(steps) if call.result in _used(step)]
    place = max([plan.steps.index(call), *(reader + 1 for reader in readers)])
    if users and place > min(users):
        return None
    slots = list(plan.slots)
    if source is not None:
        slots[call.result] = replace(slots[call.result], kind=SlotKind.OUTPUT, replaces=source)
    elif outputs & _sharing(steps, call.result):
        owner = _owner(steps, base)
        if slots[owner].kind is SlotKind.TEMPORARY:
            slots[owner] = replace(slots[owner], kind=SlotKind.OUTPUT)
    return replace(plan, slots=tuple(slots), steps=(*steps[:place], changed, *steps[place:]))


def _sharing(steps: Iterable[Step], slot: int) -> set[int]:
    """The slots that may share memory with one."""
    found = {slot}
    for step in steps:
        if isinstance(step, LibraryCall) and step.aliases and found & {*arguments_of(step)}:
            found.add(step.result)
    return found


def _owner(steps: Sequence[Step], slot: int) -> int:
    """The slot in whose memory calls have written a value."""
    calls = {step.result: step for step in steps if isinstance(step, LibraryCall)}
    while slot in calls and calls[slot].target is written_there:
        slot = _base_of(calls[slot])
    return slot


def _used(step: Step) -> set[object]:
    if isinstance(step, LibraryCall):
        return {step.result, *arguments_of(step)}
    return {*operands_of(step)}


def are_alike(one: Slot, other: Slot) -> bool:
    """Whether two slots have the same elements in the same places."""
    if one.shape is None or other.shape is None or one.dtype != other.dtype:
        return False
    if len(one.shape) != len(other.shape):
        return False
    axes = zip(one.shape, other.shape, one.strides, other.strides, strict=True)
    return all(same_number(a, b) and (is_one(a) or same_number(c, d)) for a, b, c, d in axes)
