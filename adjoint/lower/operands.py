"""The operands of a nest: buffers and sizes under names, and indices as expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import fx
from typing_extensions import assert_never

from adjoint.errors import SourceLine
from adjoint.graph.metadata import source_of
from adjoint.loops.expressions import Expression, Extent, Load, apply, integer
from adjoint.loops.expressions import walk as walk_expression
from adjoint.loops.plan import Grid, Scratch
from adjoint.loops.statements import Buffer, Kernel, Merge, Statement, Store, expressions, walk
from adjoint.loops.teams import Tile
from adjoint.lower.index import Atom, Axis, Gathered, Index, Quotient, Remainder, linear
from adjoint.lower.items import Item, strides_of
from adjoint.lower.sizes import Size, is_one, simplified
from adjoint.lower.views import MultiIndex, dtype_of

Operand: TypeAlias = fx.Node | Scratch

CHUNKS = "chunks"


@dataclass(frozen=True, eq=False)
class Nest:
    """A kernel, and the operands of its launch."""

    kernel: Kernel
    operands: tuple[Operand, ...]
    extents: tuple[Size, ...]
    """Sizes that the kernel takes, after the number of chunks."""
    work: Size
    """How many elements it iterates over."""
    items: tuple[Item, ...]
    grid: Grid | None = None


class Operands:
    """Buffers and sizes that several kernels of one group use under the same names."""

    def __init__(self, work: Size, items: Sequence[Item] = ()) -> None:
        self.work = work
        self.items = tuple(items)
        self.operands: dict[Operand, str] = {}
        self.extents: dict[Size, str] = {}
        self.counters: dict[Axis, Expression] = {}
        self.accesses: list[Index] = []
        self.remarks: list[str] = []

    def operand(self, operand: Operand) -> str:
        return self.operands.setdefault(operand, f"b{len(self.operands)}")

    def size(self, size: Size) -> Expression:
        size = simplified(size)
        if isinstance(size, int):
            return integer(size)
        return Extent(self.extents.setdefault(size, f"e{len(self.extents)}"))

    def position(self, index: Index) -> Expression:
        self.accesses.append(index)
        return self.expression(index)

    def expression(self, index: Index) -> Expression:
        """An index in terms of the counters of loops."""
        total: Expression | None = None
        for atom, coefficient in index.terms:
            part = self.atom(atom)
            if part is None:
                continue
            if not is_one(coefficient):
                part = part * self.size(coefficient)
            total = part if total is None else total + part
        if total is None:
            return self.size(index.constant)
        if isinstance(index.constant, int) and index.constant == 0:
            return total
        return total + self.size(index.constant)

    def atom(self, atom: Atom) -> Expression | None:
        """None: an axis that is merged with the next, whose counter counts both."""
        match atom:
            case Axis():
                return self.counters.get(atom)
            case Gathered():
                return self.gathered(atom)
            case Quotient(of, by):
                return apply("floordiv", self.expression(of), self.size(by))
            case Remainder(of, by):
                return apply("mod", self.expression(of), self.size(by))
            case _:
                assert_never(atom)

    def gathered(self, atom: Gathered) -> Expression:
        """An index loaded from memory; a step before the kernel has checked it."""
        return atom.value

    def load(self, node: fx.Node, index: MultiIndex) -> Expression:
        offset = self.position(linear(index, strides_of(node)))
        return Load(self.operand(node), offset, dtype_of(node))

    def store(self, node: fx.Node, index: MultiIndex, value: Expression) -> Store:
        name = self.operand(node)
        return Store(name, self.position(linear(index, strides_of(node))), value)

    def nest(
        self,
        name: str,
        body: tuple[Statement, ...],
        taken: tuple[str, ...] = (),
        team: int = 1,
        grid: Grid | None = None,
        tile: Tile | None = None,
    ) -> Nest:
        """A kernel of statements and its operands; its extents are `taken`, then sizes."""
        found = [e for statement in walk(body) for e in expressions(statement)]
        seen: set[int] = set()
        parts = [part for each in found for part in walk_expression(each, seen)]
        buffers = {part.buffer for part in parts if isinstance(part, Load)}
        written = {s.buffer for s in walk(body) if isinstance(s, Store | Merge)}
        extents = {part.name for part in parts if isinstance(part, Extent)}
        operands = {
            operand: short for operand, short in self.operands.items() if short in buffers | written
        }
        sizes = {size: short for size, short in self.extents.items() if short in extents}
        lines: dict[SourceLine, None] = {}
        for item in self.items:
            line = source_of(item.node)
            if line is not None:
                lines[line] = None
        kernel = Kernel(
            name,
            tuple(Buffer(short, _dtype(o), short in written) for o, short in operands.items()),
            (CHUNKS, *taken, *sizes.values()),
            body,
            tuple(lines),
            team,
            tile,
            tuple(self.remarks),
        )
        return Nest(kernel, tuple(operands), tuple(sizes), self.work, self.items, grid)


class Checked(Operands):
    """Each thread checks the indices it loads: the host does not wait for the device."""

    def gathered(self, atom: Gathered) -> Expression:
        return apply("within", atom.value, self.size(atom.size))


def _dtype(operand: Operand) -> torch.dtype:
    return operand.dtype if isinstance(operand, Scratch) else dtype_of(operand)
