"""Tiling: groups and products that follow one another are run some rows at a time.

What a group writes for a few rows is still in the cache when the next one reads it.  A region is a
set of units that all go through the same rows: kernels over them, products of them with a matrix,
and sums over them, which are known only after the region.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import fx

from adjoint.lower.fusion import Group, Level, equal
from adjoint.lower.index import Axis, Index, leading, linear, of_axis, row_major
from adjoint.lower.items import resolve, strides_of
from adjoint.lower.sizes import Size, estimate, is_one, product, quotient, same
from adjoint.lower.views import shape_of

Unit: TypeAlias = "Group | fx.Node"

# Fewer rows are not worth it.
LEAST_ROWS = 512

# A region must go through this many bytes, or else everything stays in the cache anyway.
LEAST_BYTES = 1 << 20


@dataclass(frozen=True)
class Side:
    """An argument of a product, as two strides into a tensor."""

    base: fx.Node
    offset: Size
    strides: tuple[Size, Size]


@dataclass(eq=False)
class Region:
    rows: Size
    units: list[Unit] = field(default_factory=list)
    made: set[fx.Node] = field(default_factory=set)
    """Values that are there row by row."""
    after: set[fx.Node] = field(default_factory=set)
    """Values that are there only when all rows are done."""


def side_of(node: fx.Node) -> Side | None:
    """A matrix as BLAS takes it: one dimension after another, each in its own memory."""
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
    by_rows = same(second, 1) and (is_one(rows) or _reaches(first, columns))
    by_columns = same(first, 1) and (is_one(columns) or _reaches(second, rows))
    if not (by_rows or by_columns):
        return None
    return Side(base, place.constant, (first, second))


def _reaches(stride: Size, count: Size) -> bool:
    """So far that `count` elements lie between; in what is expanded or flipped it does not."""
    if isinstance(stride, int) and isinstance(count, int):
        return stride >= count
    return same(stride, count)


def is_product(unit: Unit) -> bool:
    return isinstance(unit, fx.Node) and unit.target is torch.ops.aten.mm.default


def tiled(
    units: Sequence[Unit],
    needed: Callable[[Unit], list[Unit]],
    is_candidate: Callable[[Unit], bool],
) -> list[Unit | Region]:
    """The units in an order in which they can run, with regions where they pay."""
    remaining = list(units)
    done: set[int] = set()
    result: list[Unit | Region] = []
    needs = {id(unit): [id(n) for n in needed(unit)] for unit in units}

    def ready(unit: Unit, also: set[int]) -> bool:
        return all(n in done or n in also for n in needs[id(unit)])

    while remaining:
        unit = next(u for u in remaining if ready(u, set()))
        region = _started(unit) if is_candidate(unit) else None
        if region is not None:
            _grown(region, remaining, ready, needs, is_candidate)
        if region is None or not _pays(region):
            result.append(unit)
            done.add(id(unit))
            remaining.remove(unit)
            continue
        result.append(region)
        inside = {id(each) for each in region.units}
        done |= inside
        remaining = [u for u in remaining if id(u) not in inside]
    return result


def _started(unit: Unit) -> Region | None:
    for rows in _rows_of(unit):
        if estimate(rows, 4096) >= LEAST_ROWS:
            region = Region(rows)
            if _enters(unit, region):
                return region
    return None


def _rows_of(unit: Unit) -> list[Size]:
    if isinstance(unit, Group):
        return [product(unit.shape[:count]) for count in range(1, len(unit.shape) + 1)]
    left = unit.args[0]
    assert isinstance(left, fx.Node)
    return list(shape_of(left))


def _grown(
    region: Region,
    remaining: Sequence[Unit],
    ready: Callable[[Unit, set[int]], bool],
    needs: dict[int, list[int]],
    is_candidate: Callable[[Unit], bool],
) -> None:
    inside = {id(each) for each in region.units}
    grew = True
    while grew:
        grew = False
        for unit in remaining:
            if id(unit) in inside or not is_candidate(unit) or not ready(unit, inside):
                continue
            if _enters(unit, region):
                inside.add(id(unit))
                grew = True


def _pays(region: Region) -> bool:
    products = sum(map(is_product, region.units))
    if len(region.units) < 2 or (not products and len(region.units) < 3):
        return False
    values = [node.meta["val"] for node in region.made]
    held = sum(estimate(product(shape_of(n)), 4096) * n.meta["val"].itemsize for n in region.made)
    return bool(values) and held >= LEAST_BYTES


def _enters(unit: Unit, region: Region) -> bool:
    """Add the unit, if it can be computed for some rows from what is there for those rows."""
    if isinstance(unit, Group):
        if not _group_fits(unit, region):
            return False
        for item, level in unit.members.values():
            (region.after if level is Level.AFTER else region.made).add(item.node)
    else:
        sums = _product_fits(unit, region)
        if sums is None:
            return False
        (region.after if sums else region.made).add(unit)
    region.units.append(unit)
    return True


def _group_fits(group: Group, region: Region) -> bool:
    rows = region.rows
    if leading(group.shape, rows) is None:
        return False
    if group.columns is not None:
        count = quotient(product(group.shape), group.columns)
        if count is None or quotient(count, rows) is None:
            return False
    for item, level in group.members.values():
        dims = leading(item.shape, rows)
        if item.serial or dims is None or item.checked & (region.made | region.after):
            return False
        if level is not Level.AFTER and row_stride(item.node, rows) is None:
            return False
        row = linear([item.index[dim] for dim in item.order[:dims]], row_major(item.shape[:dims]))
        for base, index in item.reads:
            if base in region.after:
                return False
            if base in region.made and not equal(_row_of(base, index, rows), row):
                return False
    return True


def _row_of(base: fx.Node, index: Sequence[Index], rows: Size) -> Index:
    """The row of an element of a tensor that lies by rows."""
    shape = shape_of(base)
    dims = leading(shape, rows)
    assert dims is not None
    return linear(index[:dims], row_major(shape[:dims]))


def row_stride(node: fx.Node, rows: Size) -> Size | None:
    """From one row to the next, if the first dimensions are the rows and each lies together."""
    shape, strides = shape_of(node), strides_of(node)
    dims = leading(shape, rows)
    if dims is None:
        return None
    counting = [dim for dim in range(dims) if not is_one(shape[dim])]
    if not counting:
        return None
    for one, other in pairwise(counting):
        if not same(strides[one], strides[other] * shape[other]):
            return None
    stride = strides[counting[-1]]
    if not all(isinstance(size, int) for size in (*shape[dims:], *strides[dims:], stride)):
        return None
    rest = zip(shape[dims:], strides[dims:], strict=True)
    span = 1 + sum((int(size) - 1) * int(step) for size, step in rest)
    return stride if int(stride) >= span else None


def sums_over_rows(node: fx.Node, rows: Size) -> Iterator[bool]:
    """The ways in which a product may be one of rows: along them, or summed over them."""
    left = node.args[0]
    assert isinstance(left, fx.Node)
    if same(shape_of(left)[0], rows):
        yield False
    if same(shape_of(left)[1], rows):
        yield True


def _product_fits(node: fx.Node, region: Region) -> bool | None:
    """Whether it sums over rows; None if it does not fit."""
    if node.meta["val"].dtype not in (torch.float32, torch.float64):
        return None
    left, right = (side_of(arg) for arg in node.args[:2] if isinstance(arg, fx.Node))
    if left is None or right is None:
        return None
    if left.base in region.after or right.base in region.after:
        return None
    for sums in sums_over_rows(node, region.rows):
        if sums:
            rowed = [(left, left.strides[1]), (right, right.strides[0])]
        else:
            rowed = [(left, left.strides[0])]
            if right.base in region.made or row_stride(node, region.rows) is None:
                continue
        if all(_steps_by_row(side, stride, region.rows) for side, stride in rowed):
            return sums
    return None


def _steps_by_row(side: Side, stride: Size, rows: Size) -> bool:
    step = row_stride(side.base, rows)
    return step is not None and same(step, stride)
