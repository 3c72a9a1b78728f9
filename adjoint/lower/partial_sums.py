"""Reductions over rows, and scatters: each thread has a partial result, combined after all rows.

That is on a CPU; on a GPU `grids.py` divides rows into chunks, and scatters are atomic.

The result depends on the number of threads, but not on which of them is first.  A sum over many
rows is taken in blocks: the sum of a block is added to the total, so that no number is added to one
that is much larger.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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
from adjoint.loops.statements import Accumulator, Loop, Mapping, Merge, Statement, Store, Update
from adjoint.lower.definitions import Mapped, Reduced, Scattered
from adjoint.lower.groups import Level
from adjoint.lower.index import Axis, Index, linear, of_axis, row_major, unravelled
from adjoint.lower.items import Item, strides_of
from adjoint.lower.iteration import Iteration
from adjoint.lower.operands import CHUNKS, Operands
from adjoint.lower.sizes import is_one, product, quotient
from adjoint.lower.views import MultiIndex, dtype_of, shape_of
from adjoint.torch_private.symbols import same_number

# Partial results with more elements than this are combined by all threads.
MAX_SERIAL_RESULTS = 16384

# Rows whose sum is added to the total as one number.
BLOCK_ROWS = 256


def cleared(operands: Operands, scratch: Scratch, thread: Expression, start: Constant) -> Statement:
    """Set a thread's partial result to `start`."""
    name, count = operands.operand(scratch), operands.size(scratch.count)
    if is_one(scratch.count):
        return Store(name, thread, start)
    clear = Store(name, thread * count + Counter("k"), start)
    return Loop("k", integer(0), count, (clear,), Mapping.VECTOR)


def combined(
    operands: Operands,
    scratch: Scratch,
    operator: str,
    finish: Callable[[MultiIndex, Expression], Statement],
    node: fx.Node,
) -> list[Statement]:
    """Combine the partial results of all threads, and store each element of `node` by `finish`."""
    name, count = operands.operand(scratch), scratch.count
    element = Axis("k", count)
    counters, operands.counters = operands.counters, {element: Counter("k")}
    accesses, operands.accesses = operands.accesses, []
    k: Expression = integer(0) if is_one(count) else Counter("k")
    part = Load(name, Counter("c") * operands.size(count) + k, scratch.dtype)
    adding = Merge(name, k, operator, part)
    index = tuple(unravelled(of_axis(element), shape_of(node)))
    result = finish(index, Load(name, k, scratch.dtype))
    operands.counters, operands.accesses = counters, accesses
    if is_one(count):
        return [Loop("c", integer(1), Extent(CHUNKS), (adding,)), result]
    many = not isinstance(count, int) or count > MAX_SERIAL_RESULTS
    size = operands.size(count)
    first, last = share(size) if many else (integer(0), size)
    over = Loop("k", first, last, (adding,), Mapping.VECTOR)
    loops: tuple[Statement, ...] = (
        Loop("c", integer(1), Extent(CHUNKS), (over,)),
        Loop("k", first, last, (result,), Mapping.VECTOR),
    )
    if many:
        return [Loop("t", integer(0), Extent(CHUNKS), loops, Mapping.PARALLEL)]
    return list(loops)


def share(count: Expression) -> tuple[Expression, Expression]:
    """The range of thread `t`, when `count` iterations are divided among all."""
    t, chunks = Counter("t"), Extent(CHUNKS)
    return apply("floordiv", count * t, chunks), apply("floordiv", count * (t + 1), chunks)


class PartialSums(Iteration):
    def is_total(self, item: Item) -> bool:
        """Whether the item reduces all elements to one value, kept in a register."""
        return isinstance(item.definition, Reduced) and is_one(product(shape_of(item.node)))

    def total(self, item: Item) -> str:
        """The accumulator of a total.

        Numbered, so that equal loops over other nodes are the same kernel.
        """
        return f"total{list(self.group.members).index(item.node)}"

    def partial(self, item: Item) -> Scratch:
        """The workspace of the threads' partial results."""
        node, definition = item.node, item.definition
        dtype = definition.start.dtype if isinstance(definition, Reduced) else dtype_of(node)
        return Scratch(f"part.{node.name}", dtype, product(shape_of(node)))

    def partial_update(self, item: Item) -> Statement:
        """Combine the current element with the thread's partial result."""
        definition, index = item.definition, self.index_of(item)
        assert not isinstance(definition, Mapped)
        value = definition.element(index, self)
        if self.is_total(item):
            return Update(self.total(item), definition.operator, value)
        scratch = self._block_sum(item) if self.is_blocked(item) else self.partial(item)
        if isinstance(definition, Scattered):
            place = definition.place(index, self)
        else:
            place = kept_index(item, index)
        shape = shape_of(item.node)
        offset = self.position(linear(place, row_major(shape)))
        start = self.thread * self.size(scratch.count)
        return Merge(self.operand(scratch), start + offset, definition.operator, value)

    def scattered(self, item: Item, index: MultiIndex) -> Merge:
        """Combine an element with the result itself, atomically."""
        definition = item.definition
        assert isinstance(definition, Scattered)
        value = definition.element(index, self)
        place = linear(definition.place(index, self), strides_of(item.node))
        name, offset = self.operand(item.node), self.position(place)
        return Merge(name, offset, definition.operator, value, shared=True)

    def finished(self, item: Item, index: MultiIndex, total: Expression) -> Statement:
        """Store an element of a result, given the combined value."""
        definition = item.definition
        assert not isinstance(definition, Mapped)
        if isinstance(definition, Reduced):
            value = definition.finish(total, self)
        else:
            value = apply(definition.operator, definition.start(index, self), total)
        return self.store(item.node, index, value)

    # Sums in blocks

    def is_blocked(self, item: Item) -> bool:
        """Whether this sums over many rows, with as many results as the group's first such sum."""
        if not self._is_sum_over_rows(item) or self.is_total(item):
            return False
        sums = [each for each in self.group.items if self._is_sum_over_rows(each)]
        first = next(each for each in sums if not self.is_total(each))
        count = product(shape_of(item.node))
        if not same_number(count, product(shape_of(first.node))):
            return False
        rows = quotient(self.group.count, count)
        return not isinstance(rows, int) or rows > BLOCK_ROWS

    def _is_sum_over_rows(self, item: Item) -> bool:
        definition, level = item.definition, self.group.members[item.node][1]
        if not isinstance(definition, Reduced) or level is not Level.AFTER:
            return False
        return definition.operator == "add" and definition.start.dtype.is_floating_point

    def _block_sum(self, item: Item) -> Scratch:
        part = self.partial(item)
        return Scratch(f"block.{item.node.name}", part.dtype, part.count)

    def _add_block(self, item: Item, start: Constant) -> Statement:
        """Add the sum of a block to the partial result, and clear it for the next block."""
        part, block = self.partial(item), self._block_sum(item)
        place = self.thread * self.size(part.count) + Counter("k")
        found = Load(self.operand(block), place, block.dtype)
        add = Merge(self.operand(part), place, "add", found)
        clear = Store(self.operand(block), place, start)
        return Loop("k", integer(0), self.size(part.count), (add, clear), Mapping.VECTOR)

    def sums(
        self,
    ) -> tuple[list[Statement], list[Statement], list[Statement], list[Statement]]:
        """Statements once for a thread, before and after each block of rows, and after all rows."""
        begin: list[Statement] = []
        before: list[Statement] = []
        after: list[Statement] = []
        finale: list[Statement] = []
        for item, level in self.group.members.values():
            if level is not Level.AFTER:
                continue
            scratch = self.partial(item)
            name = self.operand(scratch)
            definition = item.definition
            assert not isinstance(definition, Mapped)
            start = (
                definition.start if isinstance(definition, Reduced) else Constant(0, scratch.dtype)
            )
            begin.append(cleared(self, scratch, self.thread, start))
            if self.is_total(item):
                total = Name(self.total(item), scratch.dtype)
                before.append(Accumulator(total.name, start))
                after.append(Merge(name, self.thread, definition.operator, total))
            elif self.is_blocked(item):
                begin.append(cleared(self, self._block_sum(item), self.thread, start))
                after.append(self._add_block(item, start))
            finish = partial(self.finished, item)
            finale += combined(self, scratch, definition.operator, finish, item.node)
        return begin, before, after, finale


def kept_index(item: Item, index: MultiIndex) -> MultiIndex:
    """The index of a reduction's result, from that of its domain."""
    assert isinstance(item.definition, Reduced)
    dims = item.definition.dims
    if len(shape_of(item.node)) == len(index):
        return tuple(Index() if dim in dims else each for dim, each in enumerate(index))
    return tuple(each for dim, each in enumerate(index) if dim not in dims)
