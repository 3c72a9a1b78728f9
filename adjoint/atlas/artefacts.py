"""What the compiler makes of a function, as an observer sees it, kept as plain data.

Graphs change in place after they were shown, so each is read at once.
"""

from __future__ import annotations

import difflib
import math
import os
from dataclasses import dataclass, field

from torch import fx

from adjoint.errors import SourceLine
from adjoint.graph.captured import CapturedProgram
from adjoint.graph.derivative import Backward, Derivative, Joint
from adjoint.graph.metadata import (
    describe_value,
    descriptor_of,
    grad_of,
    has_descriptor,
    has_output_descriptors,
    has_value,
    inputs_of,
    output_descriptors,
    outputs_of,
    source_of,
    value_of,
)
from adjoint.graph.origins import origins_of
from adjoint.graph.show import show, show_call
from adjoint.loops.plan import Launch, LibraryCall, Plan, RowTiles, Scratch, Size
from adjoint.loops.show import short
from adjoint.loops.show import show as show_kernel
from adjoint.loops.statements import Loop, walk
from adjoint.observing import Sighting
from adjoint.rules.costs import cost_of


@dataclass(frozen=True)
class Value:
    """A node of a graph."""

    name: str
    operation: str
    type: str
    line: SourceLine | None
    origins: frozenset[int]
    """The values that it computes, by the numbers of their origins."""
    grad_of: tuple[str, int] | None = None
    """The node in whose derivative it is, and the order of that derivative."""
    flops: int = 0
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Port:
    """An input or output of a graph."""

    name: str
    type: str
    meaning: str
    """Its descriptor."""


@dataclass(frozen=True)
class Version:
    """A graph at one moment."""

    text: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Touch:
    """A pass that ran on a graph, with the lines of the graph's text that it added and removed."""

    name: str
    added: int
    removed: int
    seconds: float = 0.0
    changes: tuple[str, ...] = ()
    """These lines: removed ones begin with -, added ones with +."""


@dataclass(frozen=True)
class Operand:
    """A buffer of a kernel."""

    name: str
    dtype: str
    written: bool
    shape: str
    """What it is a buffer of; the workspace of a chunk has no shape."""
    size: str
    """In bytes."""


@dataclass(frozen=True)
class KernelRecord:
    """A kernel, and what one launch of it reads and writes."""

    name: str
    text: str
    lines: tuple[SourceLine, ...]
    operands: tuple[Operand, ...]
    loops: tuple[str, ...]
    nodes: tuple[str, ...]
    """Nodes of the graph as it was lowered."""
    read: str
    """In bytes."""
    written: str
    title: str = ""
    """Its name in profiles, after the user's operators."""
    remarks: tuple[str, ...] = ()
    """Decisions of lowering and their reasons."""


@dataclass(eq=False)
class GraphHistory:
    """A graph, with all that became of it."""

    number: int
    role: str
    order: int
    first: Version
    last: Version
    touches: list[Touch] = field(default_factory=list)
    saved: tuple[str, ...] = ()
    """Descriptors of the values that it saves for a backward graph."""
    kernels: list[KernelRecord] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    """Library calls of its plan."""
    is_lowered: bool = False

    @property
    def title(self) -> str:
        which = "of the program" if self.order == 0 else f"of order {self.order}"
        return f"{self.role} graph {which}"

    def computed_by(self) -> dict[str, list[KernelRecord]]:
        """The kernels that compute each value of the graph, by the origins of lowered nodes."""
        origins = {value.name: value.origins for value in self.last.values}
        by_name: dict[str, list[KernelRecord]] = {}
        by_origin: dict[int, list[KernelRecord]] = {}
        for kernel in self.kernels:
            for name in kernel.nodes:
                by_name.setdefault(name, []).append(kernel)
                for number in origins.get(name, ()):
                    by_origin.setdefault(number, []).append(kernel)
        return {
            value.name: list(
                dict.fromkeys(
                    kernel
                    for group in (
                        by_name.get(value.name, ()),
                        *(by_origin.get(number, ()) for number in sorted(value.origins)),
                    )
                    for kernel in group
                )
            )
            for value in self.first.values
        }


class Artefacts:
    """The observer that keeps graphs, kernels and saved values."""

    def __init__(self) -> None:
        self.graphs: list[GraphHistory] = []
        self._latest: GraphHistory | None = None
        self.of_launch: dict[Launch, KernelRecord] = {}
        self._objects: dict[int, tuple[object, GraphHistory]] = {}
        """Each graph that was shown, which is kept alive so that no other has its number."""

    @property
    def latest(self) -> GraphHistory | None:
        """The graph that was shown last."""
        return self._latest

    def __call__(self, sighting: Sighting) -> None:
        match sighting.value:
            case CapturedProgram(graph_module=module):
                self._open("captured", sighting.order, module)
            case Joint(graph_module=module):
                self._open("joint", sighting.order, module)
            case Derivative():
                derivative = sighting.value
                record = self._open("forward", sighting.order - 1, derivative.runs)
                self._objects[id(derivative.graph_module)] = (derivative.graph_module, record)
                record.saved = tuple(each.describe() for each in derivative.saved)
                if derivative.first is not None:
                    self._open("backward", sighting.order, derivative.first.graph_module)
            case Backward(graph_module=module):
                self._open("backward", sighting.order, module)
            case fx.GraphModule() as module:
                self._touch(sighting, module)
            case Plan() as plan:
                self._lower(plan)
            case _:
                pass

    def _open(self, role: str, order: int, module: fx.GraphModule) -> GraphHistory:
        version = version_of(module)
        record = GraphHistory(len(self.graphs), role, order, version, version)
        self.graphs.append(record)
        self._objects[id(module)] = (module, record)
        self._latest = record
        return record

    def _touch(self, sighting: Sighting, module: fx.GraphModule) -> None:
        """Record a pass with the graph it was given, or else the latest of its order."""
        known = self._objects.get(id(module))
        candidates = [each for each in reversed(self.graphs) if each.order == sighting.order]
        record = known[1] if known is not None else next(iter(candidates), None)
        if record is None:
            return
        # Most passes change nothing, and reading a large graph takes a while.
        is_same = show(module) == record.last.text
        version = record.last if is_same else version_of(module)
        changes = () if is_same else _difference(record.last.text, version.text)
        added = sum(each.startswith("+") for each in changes)
        touch = Touch(sighting.stage, added, len(changes) - added, sighting.seconds, changes)
        record.touches.append(touch)
        record.last = version
        self._objects[id(module)] = (module, record)
        self._latest = record

    def _lower(self, plan: Plan) -> None:
        record = self._latest
        if record is None:
            return
        record.is_lowered = True
        for launch in plan.launches:
            name = f"{record.number}-{len(record.kernels)}-{launch.kernel.name}"
            record.kernels.append(_kernel(name, launch, plan))
            self.of_launch[launch] = record.kernels[-1]
        for step in plan.steps:
            for each in step.body if isinstance(step, RowTiles) else (step,):
                if isinstance(each, Launch):
                    continue
                name = "matrix product"
                if isinstance(each, LibraryCall):
                    name = str(each.op or getattr(each.target, "__name__", each.target))
                record.calls.append(f"{name} ({each.line})" if each.line else name)


def version_of(module: fx.GraphModule) -> Version:
    """A graph as it is now."""
    graph = module.graph
    inputs = tuple(
        Port(node.name, _type(node), descriptor_of(node).describe() if has_descriptor(node) else "")
        for node in inputs_of(graph)
    )
    described = output_descriptors(graph) if has_output_descriptors(graph) else ()
    outputs = tuple(
        Port(
            value.name if isinstance(value, fx.Node) else str(value),
            _type(value) if isinstance(value, fx.Node) else "",
            described[place].describe() if place < len(described) else "",
        )
        for place, value in enumerate(outputs_of(graph))
    )
    values = tuple(_value(node) for node in graph.nodes if node.op not in {"placeholder", "output"})
    return Version(show(module), inputs, outputs, values)


def _value(node: fx.Node) -> Value:
    numbers = frozenset(each.number for each in origins_of(node))
    owner = grad_of(node)
    return Value(
        node.name,
        show_call(node),
        _type(node),
        source_of(node),
        numbers,
        None if owner is None else (owner.node, owner.order),
        cost_of(node).flops if has_value(node) else 0,
        tuple(each.name for each in node.all_input_nodes),
    )


def _type(node: fx.Node) -> str:
    return describe_value(value_of(node)) if has_value(node) else ""


def _difference(before: str, after: str) -> tuple[str, ...]:
    """The lines that differ; names of files and places of lines are left out."""
    if before == after:
        return ()
    lines = difflib.unified_diff(before.split("\n"), after.split("\n"), lineterm="", n=0)
    return tuple(each for each in lines if not each.startswith(("---", "+++", "@@")))


def _kernel(name: str, launch: Launch, plan: Plan) -> KernelRecord:
    kernel = launch.kernel
    operands: list[Operand] = []
    read: list[Size] = []
    written: list[Size] = []
    for buffer, operand in zip(kernel.buffers, launch.operands, strict=True):
        if isinstance(operand, Scratch):
            shape, count = "workspace of each chunk", operand.count
        else:
            slot = plan.slots[operand]
            sizes = slot.shape or ()
            shape = f"{short(buffer.dtype)}[{', '.join(map(str, sizes))}], {slot.kind.value}"
            count = math.prod(slot.stored_shape)
        size = count * buffer.dtype.itemsize
        (written if buffer.written else read).append(size)
        operands.append(Operand(buffer.name, short(buffer.dtype), buffer.written, shape, str(size)))
    loops = tuple(
        f"{each.mapping.value} loop over {each.counter}"
        for each in walk(kernel.body)
        if isinstance(each, Loop)
    )
    return KernelRecord(
        name,
        show_kernel(kernel).replace(os.getcwd() + os.sep, ""),
        kernel.lines,
        tuple(operands),
        loops,
        launch.nodes,
        str(sum(read)),
        str(sum(written)),
        launch.title,
        kernel.remarks,
    )
