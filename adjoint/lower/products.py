"""Matrix products that are kernels of ours, where threads are very many.

A library multiplies what lies in memory, and what is made of the product goes there and back once
more.  Where a matrix is tall and narrow, as in a network that goes through very many rows, that
takes as long as to multiply.  So such a product computes what is made of its elements before it
stores them, and what it multiplies, if that is little, as it reads it.
"""

from __future__ import annotations

import sympy
import torch
from torch import fx

from adjoint.loops.expressions import Constant, Counter, Expression, Name, integer
from adjoint.loops.plan import Grid
from adjoint.loops.statements import Accumulator, Assign, Loop, Mapping, Statement, Update
from adjoint.loops.teams import QUAD, tile_of
from adjoint.lower.definitions import Multiplied, Reader, Scattered
from adjoint.lower.fusion import Group
from adjoint.lower.grids import ready_for
from adjoint.lower.index import Axis, linear, of_axis
from adjoint.lower.items import Item, base_of, resolve, strides_of
from adjoint.lower.nests import Builder, kept_index
from adjoint.lower.operands import Checked, Nest
from adjoint.lower.sizes import Size, estimate, product, quotient, simplified
from adjoint.lower.views import Where, shape_of
from adjoint.torch_private.cuda import matmuls_avoid_tf32

aten = torch.ops.aten

# With fewer rows, all of a product is a few tiles.
LEAST_ROWS = 256

# So many rows there are, if no one knows.
TALL = 1 << 14

# Columns, and what is summed over.
LEAST = 16
MOST = 512

# Sums that a library takes longer for.
SHORT = 64


def product_of(node: fx.Node) -> Multiplied | None:
    """What a matrix product is, if it is to be a kernel of ours."""
    if node.target is not aten.mm.default or node.meta["val"].dtype != torch.float32:
        return None
    x, y = node.args[:2]
    assert isinstance(x, fx.Node)
    assert isinstance(y, fx.Node)
    (rows, inner), (_, columns) = shape_of(x), shape_of(y)
    if not (_is_narrow(inner) and _is_narrow(columns) and estimate(rows, TALL) >= LEAST_ROWS):
        return None
    along = _lies_along(y, 0)
    if not _lies_along(x, 1) or not (along or _lies_along(y, 1)) or not matmuls_avoid_tf32():
        return None
    tile = tile_of(estimate(rows, TALL), estimate(columns), estimate(inner), along)
    if tile is None:
        return None

    def left(index: Where, reader: Reader) -> Expression:
        return reader.read(x, (index[0], index[2]))

    def right(index: Where, reader: Reader) -> Expression:
        return reader.read(y, (index[2], index[1]))

    return Multiplied(
        (rows, columns, inner),
        (2,),
        node,
        "add",
        Constant(0.0, torch.float32),
        lambda index, reader: left(index, reader) * right(index, reader),
        lambda total, reader: total,
        left=left,
        right=right,
        tile=tile,
    )


def _is_narrow(size: Size) -> bool:
    return isinstance(size, int) and LEAST <= size <= MOST and size % QUAD == 0


def _lies_along(node: fx.Node, dim: int) -> bool:
    """Whether neighbours in memory are neighbours in that dimension, and quads begin as quads."""
    axes = [Axis(f"d{place}", size) for place, size in enumerate(shape_of(node))]
    base, index = resolve(node, tuple(of_axis(axis) for axis in axes))
    offset = linear(index, strides_of(base))
    across = offset.coefficient(axes[1 - dim])
    starts = (across, offset.constant)
    return offset.coefficient(axes[dim]) == 1 and all(quotient(n, QUAD) is not None for n in starts)


def is_plain_product(group: Group) -> bool:
    """One of what lies in memory, of which nothing else is made: the library has it as fast."""
    if group.product is None or len(group.members) > 1:
        return False
    node, inner = group.product.node, group.product.domain[2]
    is_read = {base for base, _ in group.product.reads}
    plain = is_read == {base_of(each) for each in node.all_input_nodes}
    return plain and isinstance(inner, int) and inner > SHORT


def product_nests(group: Group, stored: set[fx.Node]) -> list[Nest]:
    """The kernels that compute a group with a product."""
    assert group.product is not None
    return [*ready_for(group, stored), _Product(group, stored, group.product).nest_of_tiles()]


class _Product(Checked, Builder):
    def __init__(self, group: Group, stored: set[fx.Node], item: Item) -> None:
        definition = item.definition
        assert isinstance(definition, Multiplied)
        self.item, self.definition = item, definition
        self.rows, columns, inner = item.domain
        assert isinstance(columns, int)
        assert isinstance(inner, int)
        shape = [*group.shape[:-2], columns // QUAD, QUAD, inner // QUAD, QUAD]
        super().__init__(group, stored, None, shape=shape)
        self.tile = definition.tile
        high, wide = _tiles(self.rows, self.tile.rows), _tiles(columns, self.tile.columns)
        self.grid = Grid(product([high, wide]))

    def nest_of_tiles(self) -> Nest:
        outer, columns, inner = self.axes[:-4], self.axes[-4:-2], self.axes[-2:]
        self.counters.update((axis, Counter(axis.name)) for axis in (*columns, *inner))
        set_row = self.unfold([(axis,) for axis in outer], Counter("r"))
        body = self._over(columns, (*self._sum(inner), *self._finished_sum()))
        over = Loop("r", integer(0), self.size(self.rows), (*set_row, *body), Mapping.PARALLEL)
        team = self.tile.team
        return self.nest("kernel", (over,), team=team, grid=self.grid, tile=self.tile)

    @property
    def _name(self) -> Name:
        return Name("sum", torch.float32)

    def _sum(self, inner: list[Axis]) -> list[Statement]:
        index = self.index_of(self.item)
        value = self.definition.left(index, self) * self.definition.right(index, self)
        add = Update(self._name.name, "add", value)
        return [
            Accumulator(self._name.name, self.definition.start),
            *self._over(inner, (add,)),
        ]

    def _finished_sum(self) -> list[Statement]:
        """The element, and what is made of it."""
        done = Name("product", torch.float32)
        self.available[self.item.node] = done
        made: list[Statement] = [Assign(done.name, self.definition.finish(self._name, self))]
        if self.item.node in self.stored:
            index = kept_index(self.item, self.index_of(self.item))
            made.append(self.store(self.item.node, index, done))
        for item in self.group.items:
            if isinstance(item.definition, Scattered):
                made.append(self.scattered(item, self.index_of(item, rows=True)))
            elif item is not self.item:
                made += self._row_item(item)
        return made

    def _over(self, axes: list[Axis], body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        for axis in reversed(axes):
            body = (Loop(axis.name, integer(0), self.size(axis.extent), body),)
        return body


def _tiles(size: Size, side: int) -> Size:
    """How many tiles there are along a side."""
    if isinstance(size, int):
        return -(-size // side)
    return simplified(sympy.floor((size + side - 1) / side))
