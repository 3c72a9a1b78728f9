"""Matrix products as GPU kernels, fused with what is around them.

A product of a tall and a narrow matrix, as in a network applied to many rows, is memory-bound: a
library call and separate kernels around it would load and store its operands and its result once
more.  The kernel inlines cheap operands, and has the items that read its result as its epilogue.
"""

from __future__ import annotations

import torch
from torch import fx

from adjoint.loops.expressions import Constant, Counter, Expression, Name, integer
from adjoint.loops.plan import Grid
from adjoint.loops.statements import Accumulator, Assign, Loop, Mapping, Statement, Update
from adjoint.loops.teams import QUAD, tile_of
from adjoint.lower.definitions import Multiplied, Reader, Scattered
from adjoint.lower.grids import scatter_starts
from adjoint.lower.groups import Group
from adjoint.lower.index import Axis, linear, of_axis
from adjoint.lower.items import Item, base_of, resolve, strides_of
from adjoint.lower.nests import Builder
from adjoint.lower.operands import Checked, Nest
from adjoint.lower.partial_sums import kept_index
from adjoint.lower.sizes import Size, ceiling, estimate, product, quotient
from adjoint.lower.views import MultiIndex, dtype_of, shape_of
from adjoint.torch_private.cuda import matmuls_avoid_tf32

aten = torch.ops.aten

# With fewer rows there are too few tiles.
MIN_ROWS = 256

# A symbolic number of rows counts as this.
ASSUMED_ROWS = 1 << 14

# Limits of the columns and of the inner dimension.
MIN_NARROW_ELEMENTS = 16
MAX_NARROW_ELEMENTS = 512

# Up to this inner dimension, a product by itself is faster than the library's.
MAX_SHORT_INNER_ELEMENTS = 64


def product_of(node: fx.Node) -> Multiplied | None:
    """The definition of a matrix product; None: it is a library call."""
    if node.target is not aten.mm.default or dtype_of(node) != torch.float32:
        return None
    x, y = node.args[:2]
    assert isinstance(x, fx.Node)
    assert isinstance(y, fx.Node)
    (rows, inner), (_, columns) = shape_of(x), shape_of(y)
    many = estimate(rows, ASSUMED_ROWS)
    if not (_is_narrow(inner) and _is_narrow(columns) and many >= MIN_ROWS):
        return None
    k_contiguous = _is_contiguous(y, 0)
    if not _is_contiguous(x, 1) or not (k_contiguous or _is_contiguous(y, 1)):
        return None
    if not matmuls_avoid_tf32():
        return None
    tile = tile_of(many, estimate(columns), estimate(inner), k_contiguous)
    if tile is None:
        return None

    def left(index: MultiIndex, reader: Reader) -> Expression:
        return reader.read(x, (index[0], index[2]))

    def right(index: MultiIndex, reader: Reader) -> Expression:
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
    return (
        isinstance(size, int)
        and MIN_NARROW_ELEMENTS <= size <= MAX_NARROW_ELEMENTS
        and size % QUAD == 0
    )


def _is_contiguous(node: fx.Node, dim: int) -> bool:
    """Whether a matrix is contiguous along `dim`, and its quads are aligned."""
    axes = [Axis(f"d{place}", size) for place, size in enumerate(shape_of(node))]
    base, index = resolve(node, tuple(of_axis(axis) for axis in axes))
    offset = linear(index, strides_of(base))
    across = offset.coefficient(axes[1 - dim])
    starts = (across, offset.constant)
    return offset.coefficient(axes[dim]) == 1 and all(quotient(n, QUAD) is not None for n in starts)


def is_plain_product(group: Group) -> bool:
    """Whether the group is a product with nothing fused, for which the library is as fast."""
    if group.product is None or len(group.members) > 1:
        return False
    node, inner = group.product.node, group.product.domain[2]
    read = {base for base, _ in group.product.reads}
    plain = read == {base_of(each) for each in node.all_input_nodes}
    return plain and isinstance(inner, int) and inner > MAX_SHORT_INNER_ELEMENTS


def product_nests(group: Group, stored: set[fx.Node]) -> list[Nest]:
    """The kernels that compute a group with a product."""
    assert group.product is not None
    return [*scatter_starts(group, stored), _Product(group, stored, group.product).tiles()]


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
        high, wide = ceiling(self.rows, self.tile.rows), ceiling(columns, self.tile.columns)
        self.grid = Grid(product([high, wide]))

    def tiles(self) -> Nest:
        """The kernel: loops over rows, columns and k, which the tile says how to divide."""
        outer, columns, inner = self.axes[:-4], self.axes[-4:-2], self.axes[-2:]
        self.counters.update((axis, Counter(axis.name)) for axis in (*columns, *inner))
        set_row = self.unfold([(axis,) for axis in outer], Counter("r"))
        body = self._over(columns, (*self._sum(inner), *self._epilogue()))
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

    def _epilogue(self) -> list[Statement]:
        """The element of the product, and the items that read it."""
        element = Name("product", torch.float32)
        self.available[self.item.node] = element
        finished = self.definition.finish(self._name, self)
        statements: list[Statement] = [Assign(element.name, finished)]
        if self.item.node in self.stored:
            index = kept_index(self.item, self.index_of(self.item))
            statements.append(self.store(self.item.node, index, element))
        for item in self.group.items:
            if isinstance(item.definition, Scattered):
                statements.append(self.scattered(item, self.index_of(item, rows=True)))
            elif item is not self.item:
                statements += self.row_item(item)
        return statements

    def _over(self, axes: list[Axis], body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        for axis in reversed(axes):
            body = (Loop(axis.name, integer(0), self.size(axis.extent), body),)
        return body
