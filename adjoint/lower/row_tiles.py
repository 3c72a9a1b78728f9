"""Row tiles: groups and matrix products over the same rows run together, tile by tile.

The rows that one unit writes are still in the cache when the next unit reads them.  The units are
kernels over the rows, products of the rows with a matrix, and sums over the rows, whose results are
complete only after all tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import fx

from adjoint.graph.metadata import run_of
from adjoint.lower.groups import Group, Level, equal
from adjoint.lower.index import Axis, Index, leading, linear, of_axis, row_major
from adjoint.lower.items import base_of, resolve, strides_of
from adjoint.lower.sizes import Size, estimate, is_one, product, quotient
from adjoint.lower.views import dtype_of, shape_of
from adjoint.torch_private.symbols import same_number

Unit: TypeAlias = "Group | fx.Node"

# The fewest rows that are tiled, and the fewest bytes of intermediate values: less stays in the
# cache without tiles.
MIN_ROWS = 512
MIN_BYTES_TO_TILE = 1 << 20

# A symbolic number of rows counts as this.
ASSUMED_ROWS = 4096


@dataclass(frozen=True)
class Side:
    """An argument of a product: an offset into a tensor, and two strides."""

    base: fx.Node
    offset: Size
    strides: tuple[Size, Size]


@dataclass(eq=False)
class RowTiling:
    """Units that run together, tile by tile."""

    rows: Size
    run: tuple[int, int] | None = None
    """The run of a checkpoint that all units belong to, or None.  The derivative of one checkpoint
    is complete before the next is recomputed, so that its memory can be reused."""
    units: list[Unit] = field(default_factory=list)
    tiled: set[fx.Node] = field(default_factory=set)
    """Values that a tile has its own rows of."""
    after: set[fx.Node] = field(default_factory=set)
    """Values that are complete only after all tiles."""


def side_of(node: fx.Node) -> Side | None:
    """A matrix as an argument of BLAS, row- or column-major; None if its strides are neither."""
    shape = shape_of(node)
    axes = [Axis(f"{node.name}.{dim}", size) for dim, size in enumerate(shape)]
    try:
        base, index = resolve(node, tuple(of_axis(axis) for axis in axes))
    except NotImplementedError:
        return None
    place = linear(index, strides_of(base))
    if any(not isinstance(atom, Axis) for atom, _ in place.terms):
        return None
    first, second = (place.coefficient(axis) for axis in axes)
    rows, columns = shape
    by_rows = same_number(second, 1) and (is_one(rows) or _reaches(first, columns))
    by_columns = same_number(first, 1) and (is_one(columns) or _reaches(second, rows))
    if not (by_rows or by_columns):
        return None
    return Side(base, place.constant, (first, second))


def _reaches(stride: Size, count: Size) -> bool:
    """Whether the stride is at least `count`: it is not in expanded or flipped tensors."""
    if isinstance(stride, int) and isinstance(count, int):
        return stride >= count
    return same_number(stride, count)


def is_product(unit: Unit) -> bool:
    return isinstance(unit, fx.Node) and unit.target is torch.ops.aten.mm.default


def with_row_tiles(
    units: Sequence[Unit],
    needed: Callable[[Unit], list[Unit]],
    is_candidate: Callable[[Unit], bool],
) -> list[Unit | RowTiling]:
    """The units in an order in which they can run, with row tiles where they pay."""
    remaining = list(units)
    done: set[int] = set()
    result: list[Unit | RowTiling] = []
    needs = {id(unit): [id(n) for n in needed(unit)] for unit in units}

    def ready(unit: Unit, also: set[int]) -> bool:
        return all(n in done or n in also for n in needs[id(unit)])

    while remaining:
        unit = next(u for u in remaining if ready(u, set()))
        tiling = _started(unit) if is_candidate(unit) else None
        if tiling is not None:
            _grow(tiling, remaining, ready, is_candidate)
            tiling = _connected(tiling)
        if tiling is None or not _pays(tiling):
            result.append(unit)
            done.add(id(unit))
            remaining.remove(unit)
            continue
        result.append(tiling)
        inside = {id(each) for each in tiling.units}
        done |= inside
        remaining = [u for u in remaining if id(u) not in inside]
    return result


def _started(unit: Unit) -> RowTiling | None:
    """Row tiles with one unit."""
    for rows in _rows_of(unit):
        if estimate(rows, ASSUMED_ROWS) >= MIN_ROWS:
            tiling = RowTiling(rows, _run_of(unit))
            if _enters(unit, tiling):
                return tiling
    return None


def _rows_of(unit: Unit) -> list[Size]:
    """The numbers of rows that the unit may be tiled by."""
    if isinstance(unit, Group):
        return [product(unit.shape[:count]) for count in range(1, len(unit.shape) + 1)]
    left = unit.args[0]
    assert isinstance(left, fx.Node)
    return list(shape_of(left))


def _grow(
    tiling: RowTiling,
    remaining: Sequence[Unit],
    ready: Callable[[Unit, set[int]], bool],
    is_candidate: Callable[[Unit], bool],
) -> None:
    """Add all units that fit."""
    inside = {id(each) for each in tiling.units}
    grew = True
    while grew:
        grew = False
        for unit in remaining:
            if id(unit) in inside or not is_candidate(unit) or not ready(unit, inside):
                continue
            if _run_of(unit) != tiling.run:
                continue
            if _enters(unit, tiling):
                inside.add(id(unit))
                grew = True


def _run_of(unit: Unit) -> tuple[int, int] | None:
    """The checkpoint run of a unit: of a group, that of its last member, because members that it
    takes     over from another run come first."""
    return run_of(next(reversed(unit.members)) if isinstance(unit, Group) else unit)


def _connected(tiling: RowTiling) -> RowTiling:
    """The row tiles without units that have nothing to do with the first of them.

    One that shares no rows with the others gains nothing, and would run long before its results are
    read: a backward graph would recompute all of its checkpoints at once.
    """
    touched = [_touched(unit) for unit in tiling.units]
    found, kept = touched[0], [True] + [False] * (len(touched) - 1)
    grew = True
    while grew:
        grew = False
        for place, nodes in enumerate(touched):
            if not kept[place] and any(_has_rows(each, tiling) for each in nodes & found):
                kept[place] = grew = True
                found |= nodes
    if all(kept):
        return tiling
    smaller = RowTiling(tiling.rows, tiling.run)
    for unit, is_kept in zip(tiling.units, kept, strict=True):
        entered = not is_kept or _enters(unit, smaller)
        assert entered, "it depends on no unit that was dropped"
    return smaller


def _touched(unit: Unit) -> set[fx.Node]:
    """The values that a unit reads and computes."""
    if isinstance(unit, Group):
        return {base for item in unit.items for base, _ in item.reads} | unit.members.keys()
    return {unit, *map(base_of, unit.all_input_nodes)}


def _has_rows(node: fx.Node, tiling: RowTiling) -> bool:
    """Whether units that have the value in common have rows in common."""
    if node in tiling.tiled or node in tiling.after:
        return True
    return row_stride(node, tiling.rows) is not None


def _pays(tiling: RowTiling) -> bool:
    products = sum(map(is_product, tiling.units))
    if len(tiling.units) < 2 or (not products and len(tiling.units) < 3):
        return False
    sizes = [
        estimate(product(shape_of(node)), ASSUMED_ROWS) * dtype_of(node).itemsize
        for node in tiling.tiled
    ]
    return bool(sizes) and sum(sizes) >= MIN_BYTES_TO_TILE


def _enters(unit: Unit, tiling: RowTiling) -> bool:
    """Add the unit, if each of its rows needs only the same rows of the others."""
    if isinstance(unit, Group):
        if not _group_fits(unit, tiling):
            return False
        for item, level in unit.members.values():
            (tiling.after if level is Level.AFTER else tiling.tiled).add(item.node)
    else:
        sums = _product_fits(unit, tiling)
        if sums is None:
            return False
        (tiling.after if sums else tiling.tiled).add(unit)
    tiling.units.append(unit)
    return True


def _group_fits(group: Group, tiling: RowTiling) -> bool:
    rows = tiling.rows
    if leading(group.shape, rows) is None:
        return False
    if group.columns is not None:
        count = quotient(product(group.shape), group.columns)
        if count is None or quotient(count, rows) is None:
            return False
    for item, level in group.members.values():
        dims = leading(item.shape, rows)
        if item.serial or dims is None or item.checked & (tiling.tiled | tiling.after):
            return False
        if level is not Level.AFTER and row_stride(item.node, rows) is None:
            return False
        row = linear([item.index[dim] for dim in item.order[:dims]], row_major(item.shape[:dims]))
        for base, index in item.reads:
            if base in tiling.after:
                return False
            if base in tiling.tiled and not equal(_row_of(base, index, rows), row):
                return False
    return True


def _row_of(base: fx.Node, index: Sequence[Index], rows: Size) -> Index:
    """The row of an element of a tensor whose leading dimensions are the rows."""
    shape = shape_of(base)
    dims = leading(shape, rows)
    assert dims is not None
    return linear(index[:dims], row_major(shape[:dims]))


def row_stride(node: fx.Node, rows: Size) -> Size | None:
    """The stride from one row to the next; None if rows are not the leading dimensions.

    None also if rows are not equally spaced, or overlap.
    """
    shape, strides = shape_of(node), strides_of(node)
    dims = leading(shape, rows)
    if dims is None:
        return None
    counting = [dim for dim in range(dims) if not is_one(shape[dim])]
    if not counting:
        return None
    for one, other in pairwise(counting):
        if not same_number(strides[one], strides[other] * shape[other]):
            return None
    stride = strides[counting[-1]]
    if not all(isinstance(size, int) for size in (*shape[dims:], *strides[dims:], stride)):
        return None
    rest = zip(shape[dims:], strides[dims:], strict=True)
    span = 1 + sum((int(size) - 1) * int(step) for size, step in rest)
    return stride if int(stride) >= span else None


def sums_over_rows(node: fx.Node, rows: Size) -> Iterator[bool]:
    """Whether a product may have the rows as its own (False), or sum over them (True)."""
    left = node.args[0]
    assert isinstance(left, fx.Node)
    if same_number(shape_of(left)[0], rows):
        yield False
    if same_number(shape_of(left)[1], rows):
        yield True


def _product_fits(node: fx.Node, tiling: RowTiling) -> bool | None:
    """Whether the product sums over rows; None if it does not fit."""
    if dtype_of(node) not in (torch.float32, torch.float64):
        return None
    left, right = (side_of(arg) for arg in node.args[:2] if isinstance(arg, fx.Node))
    if left is None or right is None:
        return None
    if left.base in tiling.after or right.base in tiling.after:
        return None
    for sums in sums_over_rows(node, tiling.rows):
        if sums:
            rowed = [(left, left.strides[1]), (right, right.strides[0])]
        else:
            rowed = [(left, left.strides[0])]
            if right.base in tiling.tiled or row_stride(node, tiling.rows) is None:
                continue
        if all(_steps_by_row(side, stride, tiling.rows) for side, stride in rowed):
            return sums
    return None


def _steps_by_row(side: Side, stride: Size, rows: Size) -> bool:
    step = row_stride(side.base, rows)
    return step is not None and same_number(step, stride)
