"""The iteration space of a fusion group, and the elements that its items read in it.

Axes are split into rows and columns.  Loops over the columns of a row run in phases: an item that
reads a reduction over the columns is computed in a phase after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from adjoint.loops.expressions import Counter, Expression, Extent, Load
from adjoint.loops.plan import Scratch
from adjoint.lower.definitions import Mapped
from adjoint.lower.groups import Group, Level
from adjoint.lower.index import (
    Axis,
    Index,
    Quotient,
    Remainder,
    leading,
    linear,
    of_axis,
    reshaped,
    row_major,
)
from adjoint.lower.items import Item, element_of
from adjoint.lower.operands import Operands
from adjoint.lower.sizes import Size, product
from adjoint.lower.views import MultiIndex, dtype_of
from adjoint.torch_private.symbols import same_number


class Iteration(Operands):
    def __init__(
        self,
        group: Group,
        stored: set[fx.Node],
        runs: list[tuple[Axis, ...]] | None,
        tiled: Size | None = None,
        shape: Sequence[Size] | None = None,
    ) -> None:
        """`stored`: the values that others need.  `runs`: axes by loops, those of one run being
        merged into one loop; None: each axis is a loop.  `tiled`: how many rows are divided into
        tiles; None: the group runs by itself.  `shape`: another shape than the group's.
        """
        super().__init__(group.count, group.items)
        self.tiled = tiled
        self.thread: Expression = Counter("t") if tiled is None else Extent("t")
        self.group = group
        self.stored = stored
        sizes = group.shape if shape is None else shape
        self.axes = [Axis(f"i{place}", size) for place, size in enumerate(sizes)]
        self.split = self._split()
        self.leading = self._leading()
        separate: list[tuple[Axis, ...]] = [(axis,) for axis in self.axes]
        self.runs = separate if runs is None else runs
        self.phases = self._phases()
        self.phase = 0
        self.available: dict[fx.Node, Expression] = {}
        """Values of row items and of finished reductions."""
        self.computed: dict[fx.Node, Expression] = {}
        """Values of full items at the current element, in the current phase."""
        self.kept_rows = self._kept_rows()

    def _split(self) -> int:
        """The number of axes that are rows."""
        columns = self.group.columns
        return len(self.axes) if columns is None else self._axis_before(columns)

    def _axis_before(self, columns: Size) -> int:
        """The axis from which on there are `columns` elements."""
        sizes = [axis.extent for axis in self.axes]
        for place in range(len(sizes), -1, -1):
            if same_number(product(sizes[place:]), columns):
                return place
        raise AssertionError(f"{sizes} has no rows of {columns}")

    def _leading(self) -> int:
        """The number of axes that the tiled rows are."""
        return 0 if self.tiled is None else leading(self.group.shape, self.tiled) or 0

    def merged(self) -> list[tuple[Axis, ...]]:
        """Runs of adjacent axes along which every access is linear, as along one axis."""
        runs: list[tuple[Axis, ...]] = []
        for place, axis in enumerate(self.axes):
            if (
                runs
                and place != self.split
                # A tile of rows is a whole number of iterations of the outer loop.
                and (place != self.leading or len(runs) == 1)
                and all(_is_contiguous(index, runs[-1][-1], axis) for index in self.accesses)
            ):
                runs[-1] = (*runs[-1], axis)
            else:
                runs.append((axis,))
        return runs

    def _loops(self) -> tuple[list[tuple[Axis, ...]], list[tuple[Axis, ...]]]:
        """The runs of axes that are rows, and those that are columns."""
        if self.group.columns is not None:
            inner = set(self.axes[self.split :])
            outside = [run for run in self.runs if run[0] not in inner]
            return outside, [run for run in self.runs if run[0] in inner]
        if len(self.runs) <= 1:
            return self.runs, []
        rows = set(self.axes[: self.leading])
        least = sum(run[0] in rows for run in self.runs)
        outer = max(least, len(self.runs) - 1)
        return self.runs[:outer], self.runs[outer:]

    def _phases(self) -> dict[fx.Node, int]:
        """For each item, the number of successive reductions over columns that it depends on."""
        phases: dict[fx.Node, int] = {}
        ready: dict[fx.Node, int] = {}
        for item, level in self.group.members.values():
            phase = max((ready.get(base, 0) for base, _ in item.reads), default=0)
            phases[item.node] = phase
            is_sum = level is Level.ROW and item.is_reduction
            ready[item.node] = phase + 1 if is_sum else phase
        return phases

    def _kept_rows(self) -> dict[fx.Node, Scratch]:
        """Costly values that a later phase of the row reads again: kept in a workspace."""
        kept: dict[fx.Node, Scratch] = {}
        if self.group.columns is None:
            return kept
        for item, _ in self.group.members.values():
            for base, _index in item.reads:
                found = self.group.members.get(base)
                if found is None or base in self.stored or found[1] is not Level.FULL:
                    continue
                later = self.phases[item.node] > self.phases[base]
                if later and found[0].has_math and isinstance(found[0].definition, Mapped):
                    kept[base] = Scratch(f"row.{base.name}", dtype_of(base), self.group.columns)
        return kept

    # Elements

    def read(self, node: fx.Node, index: MultiIndex) -> Expression:
        """The element of a tensor at `index`: from a register, computed, or loaded."""
        return element_of(node, index, self, self._read_base)

    def _read_base(self, base: fx.Node, index: MultiIndex) -> Expression:
        if base in self.available:
            return self.available[base]
        found = self.group.members.get(base)
        if found is not None:
            return self.member(*found)
        return self.load(base, index)

    def member(self, item: Item, level: Level) -> Expression:
        """The value of a full item at the current element."""
        assert level is Level.FULL, (item.node, level)
        node = item.node
        if node not in self.computed:
            if self.phases[node] < self.phase and node in self.stored:
                self.computed[node] = self.load(node, self.index_of(item))
            elif self.phases[node] < self.phase and node in self.kept_rows:
                name, offset = self.kept_element(node)
                self.computed[node] = Load(name, offset, dtype_of(node))
            else:
                self.computed[node] = item.definition.element(self.index_of(item), self)
        return self.computed[node]

    def kept_element(self, node: fx.Node) -> tuple[str, Expression]:
        """The workspace of a kept row, and the offset of the current element."""
        scratch = self.kept_rows[node]
        columns = self.axes[self.split :]
        column = linear([of_axis(a) for a in columns], row_major([a.extent for a in columns]))
        start = self.thread * self.size(scratch.count)
        return self.operand(scratch), start + self.position(column)

    def index_of(self, item: Item, rows: bool = False) -> MultiIndex:
        """The index in the item's domain of the current element (or row)."""
        axes = self.axes[: self.split] if rows else self.axes
        current = tuple(of_axis(axis) for axis in axes)
        iterated = reshaped(current, [axis.extent for axis in axes], item.shape)
        index = [Index()] * len(item.domain)
        for dim, each in zip(item.order, iterated, strict=True):
            index[dim] = each
        return tuple(index)


def _is_contiguous(index: Index, outer: Axis, inner: Axis) -> bool:
    """Whether the axes can be merged: the stride of `outer` spans exactly all of `inner`."""
    for atom, _ in index.terms:
        if isinstance(atom, Quotient | Remainder) and {outer, inner} & set(atom.of.axes()):
            return False
    return same_number(index.coefficient(outer), index.coefficient(inner) * inner.extent)
