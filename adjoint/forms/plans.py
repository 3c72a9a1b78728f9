"""Serializing plans and kernels, and reading them back.

Constants and the user's lines are written as names and numbers of the graph that the plan was
lowered from (`graphs.Ground`), library calls by the names of their operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

import sympy
import torch

from adjoint.errors import SourceLine
from adjoint.forms.constants import constant_of, elements_of
from adjoint.forms.form import (
    Form,
    Malformed,
    Reading,
    Tree,
    Unwritable,
    Writing,
    malformed_if_it_fails,
    require,
)
from adjoint.forms.vocabulary import GRAPH_FUNCTIONS
from adjoint.graph.convolutions import convolution_into
from adjoint.graph.evaluation import eager_callable
from adjoint.graph.operations import require_within
from adjoint.graph.partial_writes import written, written_there
from adjoint.loops import expressions as e
from adjoint.loops import plan as p
from adjoint.loops import statements as s
from adjoint.loops.teams import Tile
from adjoint.torch_private import trees
from adjoint.torch_private.learned_fakes import returns_argument

PLAN_FORM = Form(
    [
        *(p.Slot, p.SlotKind, p.Scratch, p.Grid, p.Launch, p.Argument, p.Number, p.ExpectedTensor),
        *(p.LibraryCall, p.Matrix, p.Product, p.RowTiles, p.Plan),
        *(s.Loop, s.Assign, s.Accumulator, s.Update, s.Store, s.Merge, s.TeamMemory, s.Mapping),
        *(s.Buffer, s.Kernel, Tile, SourceLine),
    ],
    shared=[
        *(e.Constant, e.Extent, e.Counter, e.Name, e.Load, e.Apply, e.Cast, e.Guarded),
    ],
    functions={
        **GRAPH_FUNCTIONS,
        "require_within": require_within,
        "convolution_into": convolution_into,
        "written": written,
        "written_there": written_there,
        **{f"torch.{name}": getattr(torch, name) for name in ("mm", "bmm", "addmm")},
    },
)


class PlanGround(Protocol):
    """What a plan is written relative to: a graph, or a file that holds its constants."""

    @property
    def lines(self) -> Mapping[SourceLine, int]:
        """The user's lines that are written as numbers."""
        ...

    def held(self, name: str) -> object:
        """The constant of this name; None: there is none."""
        ...


class PlanWriting(Writing):
    def __init__(self, ground: PlanGround | None = None) -> None:
        super().__init__(PLAN_FORM)
        self.ground = ground
        self._lines = {} if ground is None else ground.lines
        self._texts = {str(line): place for line, place in self._lines.items()}

    def special(self, value: object) -> Tree | None:
        match value:
            case SourceLine() if value in self._lines:
                return ["line", self._lines[value]]
            case p.LibraryCall():
                fields = {name: getattr(value, name) for name in _CALL_FIELDS}
                trees = {name: self.tree(fields[name]) for name in _CALL_FIELDS if name != "target"}
                trees["target"] = self._target(value)
                if value.line in self._texts:
                    trees["line"] = ["text of line", self._texts[value.line]]
                return ["LibraryCall", *(trees[name] for name in _CALL_FIELDS)]
            case _:
                return None

    def _target(self, call: p.LibraryCall) -> Tree:
        if isinstance(call.target, p.HeldConstant):
            held = call.target
            if self.ground is None:
                raise Unwritable("a constant without its graph")
            if self.ground.held(held.name) is held.value:
                return ["held", held.name]
            # A pass made the constant, so the ground does not have it.
            if not isinstance(held.value, torch.Tensor):
                raise Unwritable(f"{held.name} is no constant of the graph")
            return ["constant", held.name, *elements_of(held.value)[1:]]
        op = call.op
        is_eager = op is not None and (returns_argument(op) or eager_callable(op) is call.target)
        if is_eager and not call.writes:
            return ["eager", self.tree(op)]
        return self.tree(call.target)


_CALL_FIELDS = tuple(p.LibraryCall.__dataclass_fields__)


class PlanReading(Reading):
    def __init__(self, ground: PlanGround | None = None) -> None:
        super().__init__(PLAN_FORM)
        self.ground = ground
        lines = {} if ground is None else ground.lines
        self._lines = {place: line for line, place in lines.items()}

    def special(self, tag: str, parts: list[Tree]) -> object:
        match tag:
            case "line":
                return self._lines[parts[0]]
            case "text of line":
                return str(self._lines[parts[0]])
            case "eager":
                (op,) = self._values(parts)
                if not callable(op) or isinstance(op, type):
                    raise Malformed("only operators are called")
                return eager_callable(op)
            case "held":
                (name,) = parts
                held = None
                if self.ground is not None and isinstance(name, str):
                    held = self.ground.held(name)
                if held is None:
                    raise Malformed(f"the graph has no constant {str(name)[:80]}")
                return p.HeldConstant(name, held)
            case "constant":
                name, *content = parts
                if not isinstance(name, str):
                    raise Malformed("a constant has a name")
                return p.HeldConstant(name, constant_of(*content))
            case _:
                return super().special(tag, parts)


def written_plan(plan: p.Plan, ground: PlanGround | None = None) -> str:
    """The text of a plan of the ground; raises `Unwritable`."""
    return PLAN_FORM.text(plan, PlanWriting(ground))


def read_plan(text: str | bytes, ground: PlanGround | None = None) -> p.Plan:
    """The plan of a text that was written for a graph like the ground; raises `Malformed`."""
    plan = PLAN_FORM.value(text, PlanReading(ground))
    if not isinstance(plan, p.Plan):
        raise Malformed("it is no plan")
    with malformed_if_it_fails():
        check(plan)
    return plan


# Bounds -------------------------------------------------------------------------------------------


def check(plan: p.Plan) -> None:
    """Raise `Malformed` unless every slot, size and line that the plan refers to exists."""
    slots = plan.slots
    require([slot.number for slot in slots] == [*range(len(slots))], "slots are numbered")
    for place in plan.inputs:
        require(0 <= place < len(slots), "an input is a slot")
        require(slots[place].kind is p.SlotKind.INPUT, "an input is an input")
    for symbol, place, dim in plan.symbols:
        require(isinstance(symbol, sympy.Symbol) and 0 <= place < len(plan.inputs), "a symbol")
        shape = slots[plan.inputs[place]].shape
        require(dim == -1 or shape is None or 0 <= dim < len(shape), "a symbol is a size")
    known = {symbol for symbol, _, _ in plan.symbols}
    for slot in slots:
        require(slot.shape is None or len(slot.shape) == len(slot.strides), "an axis has a stride")
        require(slot.replaces is None or slot.replaces in plan.inputs, "an input is replaced")
        _sizes(known, (*(slot.shape or ()), *slot.strides))
    for step in plan.steps:
        _step(plan, step, known)
    for leaf in trees.leaves(plan.outputs):
        if isinstance(leaf, p.Argument):
            _slot(plan, leaf.slot)


def _step(plan: p.Plan, step: p.Step, known: set[sympy.Symbol]) -> None:
    match step:
        case p.LibraryCall():
            _slot(plan, step.result)
            for leaf in trees.leaves((step.args, step.kwargs)):
                if isinstance(leaf, p.Argument):
                    _slot(plan, leaf.slot)
                elif isinstance(leaf, p.Number):
                    _sizes(known, [leaf.size])
        case p.Launch():
            _launch(plan, step, known)
        case p.Product():
            for side in (step.left, step.right):
                _tensor(plan, side.slot, step.dtype)
                _sizes(known, (side.offset, *side.strides))
            if isinstance(step.result, int):
                _tensor(plan, step.result, step.dtype)
            _sizes(known, step.shape)
        case p.RowTiles():
            for each in (*step.begin, *step.body):
                _step(plan, each, known)
            _sizes(known, [step.rows, step.work, *step.strides.values()])
            for number in step.strides:
                _slot(plan, number)


def _launch(plan: p.Plan, launch: p.Launch, known: set[sympy.Symbol]) -> None:
    buffers = launch.kernel.buffers
    require(len(buffers) == len(launch.operands), "a buffer is an operand")
    for buffer, operand in zip(buffers, launch.operands, strict=True):
        if isinstance(operand, int):
            _tensor(plan, operand, buffer.dtype)
        else:
            require(operand.dtype == buffer.dtype, "scratch memory has the dtype of its buffer")
            _sizes(known, [operand.count])
    require(len(launch.kernel.extents) > len(launch.extents), "a kernel has as many extents")
    _sizes(known, (*launch.extents, launch.work))
    if launch.grid is not None:
        _sizes(known, (launch.grid.count, launch.grid.rows, launch.grid.threads))


def _slot(plan: p.Plan, number: int) -> p.Slot:
    require(type(number) is int and 0 <= number < len(plan.slots), "there is such a slot")
    return plan.slots[number]


def _tensor(plan: p.Plan, number: int, dtype: torch.dtype) -> None:
    slot = _slot(plan, number)
    require(slot.shape is not None and slot.dtype == dtype, "an operand has the buffer's dtype")


def _sizes(known: set[sympy.Symbol], sizes: Iterable[p.Size]) -> None:
    for size in sizes:
        require(isinstance(size, int) or size.free_symbols <= known, "a size of the inputs")


def without_bodies(plan: p.Plan) -> p.Plan:
    """The plan with signatures of kernels alone: their code is stored elsewhere."""

    def launch(step: p.Launch) -> p.Launch:
        return replace(step, kernel=replace(step.kernel, body=()))

    def changed(step: p.Step) -> p.Step:
        match step:
            case p.Launch():
                return launch(step)
            case p.RowTiles():
                body = tuple(launch(s) if isinstance(s, p.Launch) else s for s in step.body)
                return replace(step, begin=tuple(map(launch, step.begin)), body=body)
            case p.LibraryCall() | p.Product():
                return step

    return replace(plan, steps=tuple(map(changed, plan.steps)))
