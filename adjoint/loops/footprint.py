"""The memory that a plan uses while it runs, predicted from the lifetimes of its slots.

A program reserves memory for all of its temporaries together.  The results of library calls are
freed after their last use, and outputs outlive the program.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import sympy
import torch
from typing_extensions import assert_never

from adjoint.host_memory import STAGING_BUFFERS, from_host, to_host
from adjoint.loops.plan import (
    Argument,
    Launch,
    LibraryCall,
    Plan,
    Product,
    RowTiles,
    Scratch,
    Size,
    SlotKind,
    Step,
    arguments_of,
    operands_of,
)
from adjoint.loops.runs import runs_of
from adjoint.torch_private import trees


@dataclass(frozen=True)
class Block:
    """The memory of one slot, from the step that writes it to the last step that uses it."""

    slot: int
    kind: SlotKind
    bytes: int
    first: int
    """-1: it is an input."""
    last: int
    """The number of steps: it outlives the program."""
    is_pooled: bool = False
    """It is an output in memory that the program may keep for its next call."""
    made_by: str = ""
    """The nodes of the kernel that writes it, or the operator and the user's line."""


@dataclass(frozen=True)
class Footprint:
    """The memory of a plan for one set of sizes."""

    steps: int
    blocks: tuple[Block, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]
    """The slot of each output; None: it is a constant."""
    reserved: int
    """Bytes of memory that all temporaries share."""
    gives_back: bool = False
    """Memory is given back after each call."""
    shares_memory: bool = False
    """Temporaries are in memory that programs share (`Target.shares_memory`)."""

    def profile(self, *kinds: SlotKind) -> list[int]:
        """The bytes of slots of these kinds that are in use at each step."""
        spans = ((b.first, b.last, b.bytes) for b in self.blocks if b.kind in kinds)
        return profile(self.steps, spans)

    @property
    def returned(self) -> int:
        """The bytes of outputs."""
        return sum(block.bytes for block in self.blocks if block.kind is SlotKind.OUTPUT)

    @property
    def peak(self) -> int:
        """The most bytes that a run allocates: temporaries, results of library calls, outputs."""
        allocated = self.profile(SlotKind.RESULT, SlotKind.OUTPUT)
        return self.reserved + max(allocated, default=self.returned)


def profile(count: int, spans: Iterable[tuple[int, int, int]]) -> list[int]:
    """The bytes in use at each of `count` places; a span has a first place, a last, and bytes."""
    changes = [0] * (count + 2)
    for first, last, size in spans:
        changes[max(first, 0)] += size
        changes[min(last, count) + 1] -= size
    return list(accumulate(changes))[:count]


@dataclass(frozen=True)
class Processor:
    """The properties of a CPU on which the memory of a plan depends."""

    threads: int
    """How many parts the workspaces of kernels have."""
    tile_bytes: int
    """The target size of all values that a thread computes for one tile of rows."""
    min_tile_rows: int
    """The fewest rows of a tile."""


# The bytes that hold values with lifetimes: first step, last step and bytes of each.
Layout: TypeAlias = Callable[[Sequence[tuple[int, int, int]]], int]


def footprint(
    plan: Plan,
    sizes: Mapping[sympy.Symbol, int],
    layout: Layout,
    processor: Processor | None = None,
    captured: bool = False,
) -> Footprint:
    """The memory of a plan for these values of its symbols.

    `processor`: it runs on a CPU.  `captured`: it is replayed as a CUDA graph, before which all
    outputs are allocated, and after which inputs are freed.  What library calls return is freed
    while it is captured, as in any other call.
    """
    threads = processor.threads if processor else 1
    bytes_of = {slot.number: _bytes(slot.shape, slot.dtype, sizes) for slot in plan.slots}
    owners: dict[int, set[int]] = {slot.number: {slot.number} for slot in plan.slots}
    spans: dict[int | Scratch, tuple[int, int]] = dict.fromkeys(plan.inputs, (-1, -1))
    for place, step in enumerate(plan.steps):
        used = _operands(step)
        if isinstance(step, LibraryCall):
            if _shares(step, owners):
                owners[step.result] = set().union(*(owners[n] for n in used if isinstance(n, int)))
            used.append(step.result)
        for operand in used:
            for owner in owners[operand] if isinstance(operand, int) else (operand,):
                spans[owner] = (spans.get(owner, (place, place))[0], place)
    end = len(plan.steps)
    outputs: list[int | None] = []
    for leaf in trees.leaves(plan.outputs):
        outputs.append(min(owners[leaf.slot]) if isinstance(leaf, Argument) else None)
        if isinstance(leaf, Argument):
            for owner in owners[leaf.slot]:
                spans[owner] = (spans.get(owner, (end, end))[0], end)
    begin_of, end_of = _runs(plan)
    blocks = tuple(
        Block(
            each.number,
            _kind(each.kind, last, end),
            bytes_of[each.number],
            _begin(each.kind, first, end, begin_of, captured),
            _end(each.kind, last, end, end_of, captured),
            each.kind is SlotKind.OUTPUT,
            _maker(plan.steps[first]) if 0 <= first < end else "",
        )
        for each in plan.slots
        if each.number in spans and each.kind is not SlotKind.LOCAL
        for first, last in (spans[each.number],)
    )
    reserved = [(b.first, b.last, b.bytes) for b in blocks if b.kind is SlotKind.TEMPORARY]
    for operand, span in spans.items():
        if isinstance(operand, Scratch):
            count = number(operand.count, sizes) * threads
            reserved.append((*span, count * operand.dtype.itemsize))
    if processor is not None:
        for place, step in enumerate(plan.steps):
            if isinstance(step, RowTiles):
                reserved.append((place, place, threads * _tile(plan, step, sizes, processor)))
            elif isinstance(step, LibraryCall):
                count = _workspace(step, bytes_of)
                if count:
                    made_by = f"workspace of {step.op}"
                    copies = Block(-1, SlotKind.RESULT, count, place, place, made_by=made_by)
                    blocks = (*blocks, copies)
    most = layout(reserved) + (0 if processor else _staged(plan, bytes_of))
    return Footprint(end, blocks, plan.inputs, tuple(outputs), most, plan.gives_back)


def _staged(plan: Plan, bytes_of: Mapping[int, int]) -> int:
    """The bytes of the buffers on a GPU through which values are copied to and from the host."""
    largest = 0
    for step in plan.steps:
        if isinstance(step, LibraryCall) and step.op in (to_host, from_host):
            # One of them is in host memory, which is not counted.
            largest = max(largest, *(bytes_of[slot] for slot in (*arguments_of(step), step.result)))
    return STAGING_BUFFERS * largest


def _begin(kind: SlotKind, first: int, end: int, begin_of: Sequence[int], captured: bool) -> int:
    """The step at which a slot's memory is allocated; `begin_of` is that of the step's run."""
    if kind is not SlotKind.OUTPUT or first >= end:
        return first
    return min(first, 0) if captured else begin_of[first]


def _end(kind: SlotKind, last: int, end: int, end_of: Sequence[int], captured: bool) -> int:
    """The step after which a slot's memory is free; `end_of` is that of the step's run."""
    if kind is SlotKind.TEMPORARY or not 0 <= last < end:
        return last
    return end - 1 if captured and kind is SlotKind.INPUT else end_of[last]


def _runs(plan: Plan) -> tuple[list[int], list[int]]:
    """For each step, the first and the last of the steps that one native call runs.

    Outputs are allocated before the call, and what it reads is freed after it.
    """
    begin_of, end_of = list(range(len(plan.steps))), list(range(len(plan.steps)))
    for run in runs_of(plan):
        places = [place for place, _ in run.steps]
        for place in places:
            begin_of[place], end_of[place] = places[0], places[-1]
    return begin_of, end_of


def _workspace(call: LibraryCall, bytes_of: Mapping[int, int]) -> int:
    """The bytes that a library allocates for itself: copies of tensors in a layout of its own."""
    operands = [bytes_of[each.slot] for each in call.args if isinstance(each, Argument)]
    if call.op is torch.ops.aten.convolution.default:
        return max(operands[0], bytes_of[call.result])
    if call.op is torch.ops.aten.convolution_backward.default:
        # The gradient of the input has that layout, too.
        return operands[0] + (2 if _wants_gradient_of_input(call) else 1) * operands[1]
    if call.op is torch.ops.aten.native_batch_norm_backward.default:
        return operands[0]
    return 0


def _wants_gradient_of_input(call: LibraryCall) -> bool:
    """Whether a backward of a convolution computes the gradient of its input."""
    mask = call.args[-1]
    return not isinstance(mask, (list, tuple)) or bool(mask[0])


def _tile(
    plan: Plan, tiles: RowTiles, sizes: Mapping[sympy.Symbol, int], processor: Processor
) -> int:
    """The bytes of a thread's values that exist only tile by tile."""
    spans: dict[int, tuple[int, int]] = {}
    for place, step in enumerate(tiles.body):
        for operand in operands_of(step):
            if isinstance(operand, int) and plan.slots[operand].kind is SlotKind.LOCAL:
                spans[operand] = (spans.get(operand, (place, place))[0], place)
    row = {
        slot: _bytes((stride,), plan.slots[slot].dtype, sizes)
        for slot, stride in tiles.strides.items()
    }
    local = max(profile(len(tiles.body), ((*span, row[n]) for n, span in spans.items())), default=0)
    # As `CpuHost.tile_rows` has it: what is streamed through the cache once is counted half.
    streamed = sum(each // 2 for slot, each in row.items() if slot not in spans)
    fitting = max(processor.tile_bytes // max(local + streamed, 1), processor.min_tile_rows)
    return local * min(fitting, max(number(tiles.rows, sizes), 1))


def number(size: Size, sizes: Mapping[sympy.Symbol, int]) -> int:
    """The value of a size."""
    return size if isinstance(size, int) else int(size.subs(sizes))


def _bytes(
    shape: Sequence[Size] | None, dtype: torch.dtype | None, sizes: Mapping[sympy.Symbol, int]
) -> int:
    if shape is None or dtype is None:
        return 0
    return dtype.itemsize * math.prod(number(size, sizes) for size in shape)


def _kind(kind: SlotKind, last: int, end: int) -> SlotKind:
    """A slot that is returned is an output; one that is freed in between is a result."""
    allocated = (SlotKind.RESULT, SlotKind.OUTPUT)
    if kind not in allocated:
        return kind
    return SlotKind.OUTPUT if last == end else SlotKind.RESULT


def _shares(call: LibraryCall, owners: Mapping[int, set[int]]) -> bool:
    """Whether the result of a call has no memory of its own.

    An item of what an operator with several results returns has its own, and is freed for itself,
    unless they are views.
    """
    if call.target is not operator.getitem:
        return call.is_view or call.aliases
    (several,) = (leaf.slot for leaf in trees.leaves(call.args) if isinstance(leaf, Argument))
    return owners[several] != {several}


def _maker(step: Step) -> str:
    """What a step computes, for a reader."""
    match step:
        case Launch(nodes=nodes):
            return ", ".join(nodes)
        case RowTiles(body=body):
            return ", ".join(filter(None, map(_maker, body)))
        case Product():
            return f"a matrix product at {step.line}" if step.line else "a matrix product"
        case LibraryCall():
            return f"{step.op} at {step.line}" if step.line else str(step.op)
        case _:
            assert_never(step)


def _operands(step: Step) -> list[int | Scratch]:
    """The slots and workspaces that a step uses, except for the result of a call."""
    return [*arguments_of(step)] if isinstance(step, LibraryCall) else operands_of(step)
