"""What loops are written with: names for buffers and sizes, and indices as expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import fx

from adjoint.errors import SourceLine
from adjoint.graph.metadata import source_of
from adjoint.loops.expressions import Expression, Extent, Load, apply, integer
from adjoint.loops.expressions import walk as walk_expression
from adjoint.loops.plan import Grid, Scratch
from adjoint.loops.statements import Buffer, Kernel, Merge, Statement, Store, expressions, walk
from adjoint.loops.teams import Tile
from adjoint.lower.index import Axis, Gathered, Index, Quotient, linear
from adjoint.lower.items import Item, strides_of
from adjoint.lower.sizes import Size, is_one, simplified
from adjoint.lower.views import Where

Operand: TypeAlias = fx.Node | Scratch

CHUNKS = "chunks"


@dataclass(frozen=True, eq=False)
class Nest:
    """A kernel, and what it is called with."""

    kernel: Kernel
    operands: tuple[Operand, ...]
    extents: tuple[Size, ...]
    """Sizes that the kernel takes; before them it takes the number of chunks."""
    work: Size
    """How many elements it goes through."""
    items: tuple[Item, ...]
    grid: Grid | None = None


class Operands:
    """What kernels that belong together use, each under one name."""

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
        made: Expression | None = None
        for atom, coefficient in index.terms:
            if isinstance(atom, Axis):
                counter = self.counters.get(atom)
                if counter is None:
                    # The last axis of its run counts for all of it.
                    continue
                part = counter
            elif isinstance(atom, Gathered):
                part = self.gathered(atom)
            else:
                name = "floordiv" if isinstance(atom, Quotient) else "mod"
                part = apply(name, self.expression(atom.of), self.size(atom.by))
            if not is_one(coefficient):
                part = part * self.size(coefficient)
            made = part if made is None else made + part
        if made is None:
            return self.size(index.constant)
        if isinstance(index.constant, int) and index.constant == 0:
            return made
        return made + self.size(index.constant)

    def gathered(self, atom: Gathered) -> Expression:
        """An index that has been read; what was called before has seen to it that it is one."""
        return atom.value

    def load(self, node: fx.Node, index: Where) -> Expression:
        offset = self.position(linear(index, strides_of(node)))
        return Load(self.operand(node), offset, node.meta["val"].dtype)

    def store(self, node: fx.Node, index: Where, value: Expression) -> Store:
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
        """A kernel of statements, with what they use; it takes sizes after `taken`."""
        found = [e for statement in walk(body) for e in expressions(statement)]
        seen: set[int] = set()
        leaves = [leaf for each in found for leaf in walk_expression(each, seen)]
        buffers = {leaf.buffer for leaf in leaves if isinstance(leaf, Load)}
        written = {s.buffer for s in walk(body) if isinstance(s, Store | Merge)}
        extents = {leaf.name for leaf in leaves if isinstance(leaf, Extent)}
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
    """Nobody waits for the device to say what an index is: the thread that reads it checks."""

    def gathered(self, atom: Gathered) -> Expression:
        return apply("within", atom.value, self.size(atom.size))


def _dtype(operand: Operand) -> torch.dtype:
    dtype: torch.dtype = (
        operand.dtype if isinstance(operand, Scratch) else operand.meta["val"].dtype
    )
    return dtype
