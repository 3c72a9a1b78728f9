"""How long each kernel and library call of a program takes, on the data of its first call."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from adjoint.atlas.artefacts import KernelRecord
from adjoint.kernels import CompiledKernels
from adjoint.loops.footprint import number
from adjoint.loops.plan import Launch, LibraryCall, Plan, Product, RowTiles, Step
from adjoint.runtime.loading import load_program
from adjoint.runtime.plans.program import PlanProgram
from adjoint.runtime.plans.stepping import Portion, portions_of
from adjoint.target import Target

# Runs of a part; the fastest counts.
MEASURED_RUNS = 5


@dataclass(frozen=True)
class Timing:
    """A part of a program that was measured: kernels, matrix products, or a library call."""

    kind: str
    """`kernel`, `tiles` (kernels and products, some rows at a time), `product` or `call`."""
    name: str
    order: int
    seconds: float
    bytes: int
    """The bytes that it has to read and write: each tensor once."""
    flops: int
    kernels: tuple[str, ...]
    """The names of its kernels in the explanation."""
    lines: tuple[str, ...]
    """The user's lines that it computes."""

    @property
    def intensity(self) -> float:
        """Floating-point operations for each byte."""
        return self.flops / self.bytes if self.bytes else 0.0


def measured(
    program: PlanProgram,
    kernels: CompiledKernels,
    target: Target,
    inputs: Sequence[object],
    order: int,
    records: Mapping[Launch, KernelRecord],
    flops: Mapping[str, int],
) -> Iterator[Timing]:
    """The parts of a program, in order, each run alone on what it is given in this call.

    `flops`: of the nodes that kernels compute, by name.
    """
    plan = program.plan
    sizes = program._sizes(inputs)
    known = dict(zip((symbol for symbol, _, _ in plan.symbols), sizes, strict=True))
    values: dict[int, object] = {}
    load = partial(load_program, code=kernels.code, target=target)
    portions = list(portions_of(plan, load))
    last = {slot: place for place, each in enumerate(portions) for slot in each.takes}
    for place, portion in enumerate(portions):
        portion(inputs, values)
        best = min(_seconds(portion, inputs, values, program.device) for _ in range(MEASURED_RUNS))
        yield _timing(portion, plan, known, best, order, records, flops)
        for slot in portion.takes:
            if last[slot] == place:
                del values[slot]


def _seconds(
    portion: Portion, inputs: Sequence[object], values: dict[int, object], device: torch.device
) -> float:
    arguments = portion.arguments(inputs, values)
    _wait(device)
    begun = time.perf_counter()
    portion.program(arguments)
    _wait(device)
    return time.perf_counter() - begun


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _timing(
    portion: Portion,
    plan: Plan,
    known: Mapping[object, int],
    seconds: float,
    order: int,
    records: Mapping[Launch, KernelRecord],
    flops: Mapping[str, int],
) -> Timing:
    launches = [launch for step in portion.steps for launch in _launches(step)]
    names = tuple(records[each].name for each in launches if each in records)
    products = [product for step in portion.steps for product in _products(step)]
    count = sum(2 * _product(each.shape, known) for each in products)
    nodes = dict.fromkeys(name for launch in launches for name in launch.nodes)
    count += sum(flops.get(name, 0) for name in nodes)
    slots = {*portion.reads, *portion.gives}
    moved = sum(_bytes(plan, slot, known) for slot in slots)
    lines = [str(line) for launch in launches for line in launch.kernel.lines]
    lines += [str(product.line) for product in products if product.line]
    lines += [step.line for step in portion.steps if isinstance(step, LibraryCall) and step.line]
    known_lines = tuple(dict.fromkeys(lines))
    return Timing(*_named(portion), order, seconds, moved, count, names, known_lines)


def _named(portion: Portion) -> tuple[str, str]:
    step = max(portion.steps, key=lambda each: isinstance(each, RowTiles))
    match step:
        case LibraryCall():
            return "call", str(step.op or getattr(step.target, "__name__", step.target))
        case Product():
            return "product", "matrix product"
        case RowTiles():
            titles = dict.fromkeys(each.title for each in step.body if isinstance(each, Launch))
            return "tiles", " + ".join(titles)
        case Launch():
            return "kernel", step.title


def _launches(step: Step) -> Sequence[Launch]:
    match step:
        case Launch():
            return [step]
        case RowTiles():
            return [*step.begin, *(each for each in step.body if isinstance(each, Launch))]
        case LibraryCall() | Product():
            return []


def _products(step: Step) -> Sequence[Product]:
    match step:
        case Product():
            return [step]
        case RowTiles():
            return [each for each in step.body if isinstance(each, Product)]
        case LibraryCall() | Launch():
            return []


def _product(sizes: Sequence[object], known: Mapping[object, int]) -> int:
    total = 1
    for size in sizes:
        total *= number(size, known)
    return total


def _bytes(plan: Plan, place: int, known: Mapping[object, int]) -> int:
    slot = plan.slots[place]
    if slot.shape is None or slot.dtype is None:
        return 0
    return _product(slot.stored_shape, known) * slot.dtype.itemsize
