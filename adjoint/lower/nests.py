"""Nests: the loops that compute one group.

    parallel for t in range(chunks):        each thread takes a run of rows
        for r in range(first, last):
            vector for j in range(columns): phase 0: what needs no sum of the row
            ...                             row items
            vector for j in range(columns): phase 1: what needs those sums

A sum over rows, or a scatter, goes to memory of the thread's own first, and is put together after
the parallel loop: the result depends on the number of threads, not on which was first.  A sum over
many rows is taken in blocks, so that no number is added to one that is very much larger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import fx

from adjoint.loops.expressions import (
    Constant,
    Counter,
    Expression,
    Extent,
    Load,
    Name,
    apply,
    integer,
)
from adjoint.loops.plan import Scratch
from adjoint.loops.statements import (
    Accumulator,
    Assign,
    Loop,
    Mapping,
    Merge,
    Statement,
    Store,
    Update,
)
from adjoint.lower.definitions import Mapped, Reduced, Scattered
from adjoint.lower.fusion import Group, Level
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
    unravelled,
)
from adjoint.lower.items import Item, constant_at, resolve, strides_of
from adjoint.lower.operands import CHUNKS, Nest, Operands
from adjoint.lower.sizes import Size, is_one, product, quotient, same
from adjoint.lower.views import Where, shape_of

# Rows of so few columns are taken several at a time, not column by column.
FEW_COLUMNS = 8

# Sums over rows that keep more values than this are put together by all threads.
MANY_VALUES = 16384

# How many numbers are added to an element of a sum over rows before they count as one number.
BLOCK = 256

# The same for a sum over everything, or where rows are lanes: each lane has a sum of its own, and
# they are put together after each block.
BLOCK_OF_LANES = 16384

# What a kernel for some of the rows takes, too: the thread, and the rows.
TILE = ("t", "first", "last")


def nest_of(group: Group, stored: set[fx.Node], name: str = "kernel") -> Nest:
    """The loops that compute `group`; `stored` are those of its values that others need."""
    dry = Builder(group, stored, None)
    dry.build()
    builder = Builder(group, stored, dry.merged())
    before, rows, finale = builder.build()
    parallel = Loop("t", integer(0), Extent(CHUNKS), (*before, *rows), Mapping.PARALLEL)
    return builder.nest(name, (parallel, *finale))


@dataclass(frozen=True, eq=False)
class Parts:
    """The loops of a group that runs with others, some rows at a time."""

    begin: Nest | None
    """Once for each thread."""
    rows: Nest
    finale: Nest | None
    """After all rows."""


def parts_of(group: Group, stored: set[fx.Node], rows: Size) -> Parts:
    """The loops that compute rows `first` to `last`, of `rows` in all, of a group."""
    dry = Builder(group, stored, None, rows)
    dry.build()
    builder = Builder(group, stored, dry.merged(), rows)
    before, body, finale = builder.build()
    return Parts(
        builder.nest("begin", tuple(before), TILE) if before else None,
        builder.nest("rows", tuple(body), TILE),
        builder.nest("finale", tuple(finale)) if finale else None,
    )


def sum_of_parts(node: fx.Node) -> tuple[Scratch, Nest, Nest]:
    """Memory for a tensor of each thread's own; clearing it; and adding all up into `node`."""
    dtype = node.meta["val"].dtype
    scratch = Scratch(f"part.{node.name}", dtype, product(shape_of(node)))
    made = Operands(scratch.count)
    begin = cleared(made, scratch, Extent("t"), Constant(0.0, dtype))
    finale = _added(made, scratch, "add", lambda index, whole: made.store(node, index, whole), node)
    return scratch, made.nest("begin", (begin,), TILE), made.nest("finale", tuple(finale))


def cleared(made: Operands, scratch: Scratch, thread: Expression, start: Constant) -> Statement:
    """A thread's part, before anything is added to it."""
    name, count = made.operand(scratch), made.size(scratch.count)
    if is_one(scratch.count):
        return Store(name, thread, start)
    clear = Store(name, thread * count + Counter("k"), start)
    return Loop("k", integer(0), count, (clear,), Mapping.VECTOR)


def _added(
    made: Operands,
    scratch: Scratch,
    operator: str,
    finish: Callable[[Where, Expression], Statement],
    node: fx.Node,
) -> list[Statement]:
    """The parts of all threads, added to the first; then each element of `node` from that."""
    name, count = made.operand(scratch), scratch.count
    element = Axis("k", count)
    counters, made.counters = made.counters, {element: Counter("k")}
    accesses, made.accesses = made.accesses, []
    k: Expression = integer(0) if is_one(count) else Counter("k")
    part = Load(name, Counter("c") * made.size(count) + k, scratch.dtype)
    adding = Merge(name, k, operator, part)
    index = tuple(unravelled(of_axis(element), shape_of(node)))
    result = finish(index, Load(name, k, scratch.dtype))
    made.counters, made.accesses = counters, accesses
    if is_one(count):
        return [Loop("c", integer(1), Extent(CHUNKS), (adding,)), result]
    many = not isinstance(count, int) or count > MANY_VALUES
    first, last = share(made.size(count)) if many else (integer(0), made.size(count))
    over = Loop("k", first, last, (adding,), Mapping.VECTOR)
    loops: tuple[Statement, ...] = (
        Loop("c", integer(1), Extent(CHUNKS), (over,)),
        Loop("k", first, last, (result,), Mapping.VECTOR),
    )
    if many:
        return [Loop("t", integer(0), Extent(CHUNKS), loops, Mapping.PARALLEL)]
    return list(loops)


def share(count: Expression) -> tuple[Expression, Expression]:
    """From where to where thread `t` goes, of `count` in all."""
    t, chunks = Counter("t"), Extent(CHUNKS)
    return apply("floordiv", count * t, chunks), apply("floordiv", count * (t + 1), chunks)


class Builder(Operands):
    def __init__(
        self,
        group: Group,
        stored: set[fx.Node],
        merged: list[tuple[Axis, ...]] | None,
        tiled: Size | None = None,
        shape: Sequence[Size] | None = None,
    ) -> None:
        super().__init__(group.count, group.items)
        self.tiled = tiled
        self.thread: Expression = Counter("t") if tiled is None else Extent("t")
        self.group = group
        self.stored = stored
        sizes = group.shape if shape is None else shape
        self.axes = [Axis(f"i{place}", size) for place, size in enumerate(sizes)]
        self.split = self._split()
        self.leading = self._leading()
        apart: list[tuple[Axis, ...]] = [(axis,) for axis in self.axes]
        self.runs = apart if merged is None else merged
        self.phases = self._phases()
        self.available: dict[fx.Node, Expression] = {}
        self.computed: dict[fx.Node, Expression] = {}
        self.phase = 0
        self.kept_rows = self._kept_rows()

    # Shape of the nest

    def _split(self) -> int:
        columns = self.group.columns
        return len(self.axes) if columns is None else self._place_before(columns)

    def _place_before(self, columns: Size) -> int:
        """The axis from which on there are `columns` elements."""
        sizes = [axis.extent for axis in self.axes]
        for place in range(len(sizes), -1, -1):
            if same(product(sizes[place:]), columns):
                return place
        raise AssertionError(f"{sizes} has no rows of {columns}")

    def _leading(self) -> int:
        """How many axes the rows are that are tiled."""
        return 0 if self.tiled is None else leading(self.group.shape, self.tiled) or 0

    def merged(self) -> list[tuple[Axis, ...]]:
        """Neighbouring axes along which every access goes on as along one."""
        runs: list[tuple[Axis, ...]] = []
        for place, axis in enumerate(self.axes):
            if (
                runs
                and place != self.split
                # Rows that are tiled are a whole number of turns of the outer loop.
                and (place != self.leading or len(runs) == 1)
                and all(_goes_on(index, runs[-1][-1], axis) for index in self.accesses)
            ):
                runs[-1] = (*runs[-1], axis)
            else:
                runs.append((axis,))
        return runs

    def _loops(self) -> tuple[list[tuple[Axis, ...]], list[tuple[Axis, ...]]]:
        """Runs of axes that the rows are made of, and those of the columns."""
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
        """After how many sums over columns an item can be computed."""
        phases: dict[fx.Node, int] = {}
        ready: dict[fx.Node, int] = {}
        for item, level in self.group.members.values():
            phase = max((ready.get(base, 0) for base, _ in item.reads), default=0)
            phases[item.node] = phase
            is_sum = level is Level.ROW and item.is_reduction
            ready[item.node] = phase + 1 if is_sum else phase
        return phases

    def _kept_rows(self) -> dict[fx.Node, Scratch]:
        """Values that took long to compute and are needed again in a later phase of the row."""
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
                    dtype = base.meta["val"].dtype
                    kept[base] = Scratch(f"row.{base.name}", dtype, self.group.columns)
        return kept

    # Elements

    def read(self, node: fx.Node, index: Where) -> Expression:
        base, index = resolve(node, index)
        known = constant_at(base, index, self)
        if known is not None:
            return known
        if base in self.available:
            return self.available[base]
        found = self.group.members.get(base)
        if found is not None:
            return self.member(*found)
        return self.load(base, index)

    def member(self, item: Item, level: Level) -> Expression:
        """The value of a full item at the element at hand."""
        assert level is Level.FULL, (item.node, level)
        node = item.node
        if node not in self.computed:
            if self.phases[node] < self.phase and node in self.stored:
                self.computed[node] = self.load(node, self.index_of(item))
            elif self.phases[node] < self.phase and node in self.kept_rows:
                name, offset = self.row_place(node)
                self.computed[node] = Load(name, offset, node.meta["val"].dtype)
            else:
                self.computed[node] = item.definition.element(self.index_of(item), self)
        return self.computed[node]

    def row_place(self, node: fx.Node) -> tuple[str, Expression]:
        """Where the thread keeps a value for later phases of the row."""
        scratch = self.kept_rows[node]
        columns = self.axes[self.split :]
        column = linear([of_axis(a) for a in columns], row_major([a.extent for a in columns]))
        start = self.thread * self.size(scratch.count)
        return self.operand(scratch), start + self.position(column)

    def index_of(self, item: Item, rows: bool = False) -> Where:
        """The index of the item's domain at the element (or row) at hand."""
        axes = self.axes[: self.split] if rows else self.axes
        here = tuple(of_axis(axis) for axis in axes)
        iterated = reshaped(here, [axis.extent for axis in axes], item.shape)
        index = [Index()] * len(item.domain)
        for dim, each in zip(item.order, iterated, strict=True):
            index[dim] = each
        return tuple(index)

    # Statements

    def build(self) -> tuple[list[Statement], list[Statement], list[Statement]]:
        """What is done before the rows of a chunk, for them, and after all chunks."""
        self.outer, self.inner = self._loops()
        rows = product([axis.extent for run in self.outer for axis in run])
        set_row = self.unfold(self.outer, Counter("r"))
        for run in self.inner:
            self.counters[run[-1]] = Counter(run[-1].name)
        before, totals, after, finale = self._sums()
        body = (*set_row, *self._row())
        first, last = self._range(rows)
        mapping = Mapping.VECTOR if self._rows_are_lanes() else Mapping.SERIAL
        block = self._block(rows)
        if not after or block is None:
            return before, [*totals, Loop("r", first, last, body, mapping), *after], finale
        names = [Name(name, torch.int64) for name in ("first", "last", "begin")]
        beyond = apply("minimum", names[2] + block, names[1])
        turn = (
            Assign("begin", names[0] + Counter("b") * block),
            *totals,
            Loop("r", names[2], beyond, body, mapping),
            *after,
        )
        count = apply("floordiv", names[1] - names[0] + block - 1, block)
        limits = (Assign("first", first), Assign("last", last))
        return before, [*limits, Loop("b", integer(0), count, turn)], finale

    def _block(self, rows: Size) -> Expression | None:
        """How many rows are added up by themselves; None: all that the loop goes through."""
        if self.tiled is not None:
            return None
        sums = [item for item in self.group.items if self._is_blocked(item)]
        length = BLOCK if sums and not self._rows_are_lanes() else BLOCK_OF_LANES
        elements = product([length, *(shape_of(sums[0].node) if sums else ())])
        columns = self._columns_of_a_row()
        if isinstance(elements, int) and isinstance(columns, int):
            most = max(1, elements // max(1, columns))
            return None if isinstance(rows, int) and rows <= most else integer(most)
        # Where there are no columns, there is nothing to divide.
        divisor = apply("maximum", self.size(columns), integer(1))
        return apply("maximum", apply("floordiv", self.size(elements), divisor), integer(1))

    def _columns_of_a_row(self) -> Size:
        return product([axis.extent for run in self.inner for axis in run])

    def _is_blocked(self, item: Item) -> bool:
        """A sum over many rows, to as many elements as the first such sum has."""
        if not self._is_sum_over_rows(item) or self._is_total(item):
            return False
        sums = [each for each in self.group.items if self._is_sum_over_rows(each)]
        first = next(each for each in sums if not self._is_total(each))
        count = product(shape_of(item.node))
        if not same(count, product(shape_of(first.node))):
            return False
        times = quotient(self.group.count, count)
        return not isinstance(times, int) or times > BLOCK

    def _is_sum_over_rows(self, item: Item) -> bool:
        definition, level = item.definition, self.group.members[item.node][1]
        if not isinstance(definition, Reduced) or level is not Level.AFTER:
            return False
        return definition.operator == "add" and definition.start.dtype.is_floating_point

    def _range(self, rows: Size) -> tuple[Expression, Expression]:
        """The rows to go through: a thread's share, or those that the caller says."""
        if self.tiled is None:
            return share(self.size(rows))
        times = quotient(rows, self.tiled)
        assert times is not None, (rows, self.tiled)
        return Extent("first") * self.size(times), Extent("last") * self.size(times)

    def _rows_are_lanes(self) -> bool:
        if any(item.serial for item in self.group.items):
            return False
        columns = self._columns_of_a_row()
        return isinstance(columns, int) and columns <= FEW_COLUMNS

    def unfold(self, runs: Sequence[tuple[Axis, ...]], number: Expression) -> list[Statement]:
        """Each run as a function of the number of a turn through all of them."""
        if len(runs) == 1:
            self.counters[runs[0][-1]] = number
            return []
        statements: list[Statement] = []
        sizes = [product([axis.extent for axis in run]) for run in runs]
        for place, run in enumerate(runs):
            rest = product(sizes[place + 1 :])
            value = number if is_one(rest) else apply("floordiv", number, self.size(rest))
            if place:
                value = apply("mod", value, self.size(sizes[place]))
            name = run[-1].name
            statements.append(Assign(name, value))
            self.counters[run[-1]] = Name(name, torch.int64)
        return statements

    def _row(self) -> list[Statement]:
        """What happens in one row, phase after phase."""
        statements: list[Statement] = []
        for phase in range(1 + max(self.phases.values())):
            self.phase, self.computed = phase, {}
            members = [m for m in self.group.members.values() if self.phases[m[0].node] == phase]
            for item, level in members:
                if level is Level.ROW and isinstance(item.definition, Mapped):
                    statements += self._row_item(item)
            before, inside, after = self._columns(members)
            statements += before
            statements += self._around(inside)
            statements += after
        return statements

    def _row_item(self, item: Item) -> list[Statement]:
        index = self.index_of(item, rows=True)
        value = item.definition.element(index, self)
        name = Name(f"row{len(self.available)}", value.dtype)
        self.available[item.node] = name
        made: list[Statement] = [Assign(name.name, value)]
        if item.node in self.stored:
            made.append(self.store(item.node, index, name))
        return made

    def _columns(
        self, members: Sequence[tuple[Item, Level]]
    ) -> tuple[list[Statement], list[Statement], list[Statement]]:
        """What a phase does before, in, and after its loop over columns."""
        before: list[Statement] = []
        inside: list[Statement] = []
        after: list[Statement] = []
        for item, level in members:
            node, definition = item.node, item.definition
            match definition:
                case Mapped() if level is Level.FULL:
                    if node in self.stored:
                        value = self.member(item, level)
                        inside.append(self.store(node, self.index_of(item), value))
                    elif node in self.kept_rows:
                        value = self.member(item, level)
                        name, offset = self.row_place(node)
                        inside.append(Store(name, offset, value))
                case Reduced() if level is Level.ROW:
                    total = Name(f"sum{len(self.available)}", definition.start.dtype)
                    before.append(Accumulator(total.name, definition.start))
                    value = definition.element(self.index_of(item), self)
                    inside.append(Update(total.name, definition.operator, value))
                    # Made now and named after the loop: no later phase may compute it anew.
                    self.available[node] = Name(f"{total.name}.done", node.meta["val"].dtype)
                    finished = definition.finish(total, self)
                    after.append(Assign(f"{total.name}.done", finished))
                    if node in self.stored:
                        index = kept_index(item, self.index_of(item))
                        after.append(self.store(node, index, self.available[node]))
                case Reduced() | Scattered():
                    inside.append(self._partial_sum(item))
                case Mapped():
                    pass
        return before, inside, after

    def _around(self, inside: list[Statement]) -> list[Statement]:
        """The loops over columns around statements."""
        if not inside or not self.inner:
            return inside
        body = tuple(inside)
        serial = self._rows_are_lanes() or any(item.serial for item in self.group.items)
        mapping = Mapping.SERIAL if serial else Mapping.VECTOR
        for run in reversed(self.inner):
            extent = self.size(product([axis.extent for axis in run]))
            body = (Loop(run[-1].name, integer(0), extent, body, mapping),)
            mapping = Mapping.SERIAL
        return list(body)

    # Sums over rows, and scatters

    def _partial_sum(self, item: Item) -> Statement:
        definition, index = item.definition, self.index_of(item)
        assert not isinstance(definition, Mapped)
        value = definition.element(index, self)
        if self._is_total(item):
            return Update(self._total(item), definition.operator, value)
        scratch = self._block_of(item) if self._is_blocked(item) else self._partial(item)
        if isinstance(definition, Scattered):
            place = definition.place(index, self)
        else:
            place = kept_index(item, index)
        shape = shape_of(item.node)
        offset = self.position(linear(place, row_major(shape)))
        start = self.thread * self.size(scratch.count)
        return Merge(self.operand(scratch), start + offset, definition.operator, value)

    def scattered(self, item: Item, index: Where) -> Merge:
        """An element added where others may be added at the same time."""
        definition = item.definition
        assert isinstance(definition, Scattered)
        value = definition.element(index, self)
        place = linear(definition.place(index, self), strides_of(item.node))
        name, offset = self.operand(item.node), self.position(place)
        return Merge(name, offset, definition.operator, value, shared=True)

    def _is_total(self, item: Item) -> bool:
        return isinstance(item.definition, Reduced) and is_one(product(shape_of(item.node)))

    def _total(self, item: Item) -> str:
        """By number, so that the same loops over other nodes are the same kernel."""
        return f"total{list(self.group.members).index(item.node)}"

    def _partial(self, item: Item) -> Scratch:
        definition = item.definition
        if isinstance(definition, Reduced):
            dtype = definition.start.dtype
        else:
            dtype = item.node.meta["val"].dtype
        return Scratch(f"part.{item.node.name}", dtype, product(shape_of(item.node)))

    def _block_of(self, item: Item) -> Scratch:
        part = self._partial(item)
        return Scratch(f"block.{item.node.name}", part.dtype, part.count)

    def _block_added(self, item: Item, start: Constant) -> Statement:
        """A block of rows counts as one number from now on, and the next one begins."""
        part, block = self._partial(item), self._block_of(item)
        place = self.thread * self.size(part.count) + Counter("k")
        found = Load(self.operand(block), place, block.dtype)
        add = Merge(self.operand(part), place, "add", found)
        clear = Store(self.operand(block), place, start)
        return Loop("k", integer(0), self.size(part.count), (add, clear), Mapping.VECTOR)

    def _sums(
        self,
    ) -> tuple[list[Statement], list[Statement], list[Statement], list[Statement]]:
        """Once for a thread, right before and right after its rows, and after all threads."""
        before: list[Statement] = []
        totals: list[Statement] = []
        after: list[Statement] = []
        finale: list[Statement] = []
        for item, level in self.group.members.values():
            if level is not Level.AFTER:
                continue
            scratch = self._partial(item)
            name = self.operand(scratch)
            definition = item.definition
            assert not isinstance(definition, Mapped)
            start = (
                definition.start if isinstance(definition, Reduced) else Constant(0, scratch.dtype)
            )
            before.append(cleared(self, scratch, self.thread, start))
            if self._is_total(item):
                total = self._total(item)
                totals.append(Accumulator(total, start))
                sum_of_rows = Name(total, scratch.dtype)
                after.append(Merge(name, self.thread, definition.operator, sum_of_rows))
            elif self._is_blocked(item):
                before.append(cleared(self, self._block_of(item), self.thread, start))
                after.append(self._block_added(item, start))
            finish = partial(self._finished, item)
            finale += _added(self, scratch, definition.operator, finish, item.node)
        return before, totals, after, finale

    def _finished(self, item: Item, index: Where, whole: Expression) -> Statement:
        """An element of a result, from the sum of all parts."""
        definition = item.definition
        assert not isinstance(definition, Mapped)
        if isinstance(definition, Reduced):
            value = definition.finish(whole, self)
        else:
            value = apply(definition.operator, definition.start(index, self), whole)
        return self.store(item.node, index, value)


def kept_index(item: Item, index: Where) -> Where:
    """The index of a reduction's result, from that of its domain."""
    assert isinstance(item.definition, Reduced)
    dims = item.definition.dims
    if len(shape_of(item.node)) == len(index):
        return tuple(Index() if dim in dims else each for dim, each in enumerate(index))
    return tuple(each for dim, each in enumerate(index) if dim not in dims)


def _goes_on(index: Index, outer: Axis, inner: Axis) -> bool:
    """Along `outer`, after `inner`, memory goes on without a gap."""
    for atom, _ in index.terms:
        if isinstance(atom, Quotient | Remainder) and {outer, inner} & set(atom.of.axes()):
            return False
    return same(index.coefficient(outer), index.coefficient(inner) * inner.extent)
