"""Results that overwrite inputs: the new value of an input is stored where the old one was.

A program that writes to its inputs - the step of an optimizer - returns their new values, and its
caller copies them.  A kernel that computes a new value from the old one, element by element, can
store it in the input at once, if

* it loads each element before it stores that element, and nothing reads the input later;
* no library call comes after it, because a call that fails must leave the inputs as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import fx
from typing_extensions import assert_never

from adjoint.graph.descriptors import InputMutation
from adjoint.graph.metadata import input_descriptors, output_descriptors
from adjoint.loops.expressions import Expression, Load, Name, substituted
from adjoint.loops.expressions import walk as walk_expression
from adjoint.loops.plan import (
    Argument,
    Launch,
    LibraryCall,
    NativeStep,
    Plan,
    Product,
    RowTiles,
    SlotKind,
    operands_of,
)
from adjoint.loops.show import identity_of
from adjoint.loops.statements import (
    Assign,
    Kernel,
    Loop,
    Merge,
    Statement,
    Store,
    body_of,
    expressions,
    walk,
    with_expressions,
)
from adjoint.loops.verify import verify
from adjoint.lower.in_place_calls import are_alike
from adjoint.torch_private import trees
from adjoint.torch_private.symbols import same_number


def overwrite_inputs(plan: Plan, new: Sequence[tuple[int, int]]) -> Plan:
    """The plan with new values of inputs stored in the inputs by kernels, where that is possible.

    `new`: the slots of new values of inputs, each with the slot of its input.
    """
    for result, source in new:
        plan = _overwriting(plan, result, source) or plan
    return plan


def new_values(plan: Plan, graph: fx.Graph) -> list[tuple[int, int]]:
    """The slots of new values of inputs, each with the slot of its input."""
    slots = dict(zip(input_descriptors(graph), plan.inputs, strict=False))
    pairs = zip(plan.outputs, output_descriptors(graph), strict=True)
    return [
        (leaf.slot, slots[each.of])
        for leaf, each in pairs
        if isinstance(each, InputMutation) and isinstance(leaf, Argument) and each.of in slots
    ]


def _overwriting(plan: Plan, result: int, source: int) -> Plan | None:
    """The plan with `result` in the memory of the input `source`; None if that is not possible."""
    if not _are_alike(plan, result, source) or not _are_independent(plan, result, source):
        return None
    users = [place for place, step in enumerate(plan.steps) if result in _used(step)]
    if len(users) != 1:
        return None
    place = users[0]
    step = plan.steps[place]
    later = plan.steps[place + 1 :]
    if isinstance(step, LibraryCall) or any(_hinders(each, source) for each in later):
        return None
    changed = _changed(step, result, source)
    if changed is None:
        return None
    slots = list(plan.slots)
    slots[result] = replace(slots[result], replaces=source)
    return replace(plan, slots=tuple(slots), steps=(*plan.steps[:place], changed, *later))


def _are_alike(plan: Plan, result: int, source: int) -> bool:
    """Whether both slots have the same elements in the same places."""
    one, other = plan.slots[result], plan.slots[source]
    if one.kind is not SlotKind.OUTPUT or other.kind is not SlotKind.INPUT:
        return False
    return one.replaces is None and are_alike(one, other)


def _are_independent(plan: Plan, result: int, source: int) -> bool:
    """Whether the caller gets the new value once, and the old one not even through a view."""
    leaves = [leaf.slot for leaf in trees.leaves(plan.outputs) if isinstance(leaf, Argument)]
    if leaves.count(result) != 1 or source in leaves:
        return False
    return not any(
        isinstance(step, LibraryCall) and (step.aliases or step.is_view) and source in _used(step)
        for step in plan.steps
    )


def _used(step: NativeStep | LibraryCall) -> list[object]:
    if not isinstance(step, LibraryCall):
        return list(operands_of(step))
    leaves = trees.leaves((step.args, step.kwargs))
    return [step.result, *(leaf.slot for leaf in leaves if isinstance(leaf, Argument))]


def _hinders(step: NativeStep | LibraryCall, source: int) -> bool:
    """Whether a later step needs the old value, or may fail."""
    return isinstance(step, LibraryCall) or source in operands_of(step)


def _changed(step: NativeStep, result: int, source: int) -> NativeStep | None:
    """The step with both slots in one memory; None if it needs an element after storing it."""
    match step:
        case Launch():
            return _launch(step, result, source)
        case Product():
            return None if source in operands_of(step) else step
        case RowTiles():
            return _row_tiles(step, result, source)
        case _:
            assert_never(step)


def _row_tiles(tiles: RowTiles, result: int, source: int) -> RowTiles | None:
    places = [i for i, each in enumerate(tiles.body) if result in operands_of(each)]
    if not places:
        return None
    place = places[0]
    outside = [*tiles.begin, *tiles.body[place + 1 :]]
    if any(slot in operands_of(each) for each in outside for slot in (result, source)):
        return None
    strides = [tiles.strides.get(slot) for slot in (result, source)]
    if source in operands_of(tiles) and (None in strides or not same_number(*strides)):
        return None
    part = tiles.body[place]
    changed = _changed(part, result, source)
    if changed is None:
        return None
    assert isinstance(changed, Launch | Product)
    body = (*tiles.body[:place], changed, *tiles.body[place + 1 :])
    changed_tiles = replace(tiles, body=body)
    used = operands_of(changed_tiles)
    kept = {slot: stride for slot, stride in tiles.strides.items() if slot in used}
    return replace(changed_tiles, strides=kept)


def _launch(launch: Launch, result: int, source: int) -> Launch | None:
    if source not in launch.operands:
        return launch
    names = dict(zip(launch.operands, launch.kernel.buffers, strict=True))
    kernel = _in_one_buffer(launch.kernel, names[result].name, names[source].name)
    if kernel is None:
        return None
    operands = tuple(each for each in launch.operands if each != source)
    return replace(launch, kernel=kernel, operands=operands)


def _in_one_buffer(kernel: Kernel, written: str, read: str) -> Kernel | None:
    """The kernel with the element of `read` loaded from `written`, once, before it is stored.

    None unless the same block of statements has the only store, and all loads are of its element.
    """
    statements = list(walk(kernel.body))
    stores = [s for s in statements if isinstance(s, Store | Merge) and s.buffer == written]
    loads = [load for each in statements for load in _loads(each, {read, written})]
    if len(stores) != 1 or isinstance(stores[0], Merge):
        return None
    offset = stores[0].offset
    key = identity_of(offset)
    if any(load.buffer == written or identity_of(load.offset) != key for load in loads):
        return None
    block = next(b for b in _blocks(kernel.body) if any(each is stores[0] for each in b))
    outside = [each for each in statements if not any(each is one for one in block)]
    if any(_loads(each, {read}) for each in outside):
        return None
    first = next((place for place, each in enumerate(block) if _loads(each, {read})), None)
    if first is None or any(each is stores[0] for each in block[:first]):
        return None
    dtype = loads[0].dtype
    old = Name(f"old.{read}", dtype)
    memo: dict[int, Expression] = {}

    def old_of(part: Expression) -> Expression | None:
        return old if isinstance(part, Load) and part.buffer == read else None

    def changed(expression: Expression) -> Expression:
        return substituted(expression, old_of, memo)

    new = (
        *block[:first],
        Assign(old.name, Load(written, offset, dtype)),
        *(with_expressions(each, changed) for each in block[first:]),
    )
    return verify(
        replace(
            kernel,
            body=_with_block(kernel.body, block, new),
            buffers=tuple(each for each in kernel.buffers if each.name != read),
        )
    )


def _loads(statement: Statement, buffers: set[str]) -> list[Load]:
    seen: set[int] = set()
    parts = [part for each in expressions(statement) for part in walk_expression(each, seen)]
    return [part for part in parts if isinstance(part, Load) and part.buffer in buffers]


def _blocks(body: tuple[Statement, ...]) -> list[tuple[Statement, ...]]:
    """The statements of a kernel and of each of its loops."""
    inner = [block for each in body if body_of(each) for block in _blocks(body_of(each))]
    return [body, *inner]


def _with_block(
    body: tuple[Statement, ...], block: tuple[Statement, ...], new: tuple[Statement, ...]
) -> tuple[Statement, ...]:
    if body is block:
        return new
    return tuple(
        replace(each, body=_with_block(each.body, block, new)) if isinstance(each, Loop) else each
        for each in body
    )
