"""Tiling: groups and products that follow one another are run some rows at a time.

What a group writes for a few rows is still in the cache when the next one reads it.  A region is a
set of units that all go through the same rows: kernels over them, products of them with a matrix,
and sums over them, which are known only after the region.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import fx

from adjoint.lower.fusion import Group, Level
from adjoint.lower.index import Axis, linear, of_axis
from adjoint.lower.items import resolve, strides_of
from adjoint.lower.sizes import Size, estimate, is_one, product, same
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
        return list(unit.shape[:1])
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
    if not group.shape or not same(group.shape[0], region.rows):
        return False
    for item, level in group.members.values():
        if item.serial or not item.order or not same(item.shape[0], region.rows):
            return False
        if level is not Level.AFTER and not lies_by_rows(item.node, region.rows):
            return False
        if item.checked & (region.made | region.after):
            return False
        row = of_axis(item.axes[item.order[0]])
        for base, index in item.reads:
            if base in region.after:
                return False
            if base in region.made and not (index and index[0] == row):
                return False
    return True


def lies_by_rows(node: fx.Node, rows: Size) -> bool:
    """The first dimension is the rows, and each row lies together in memory."""
    shape, strides = shape_of(node), strides_of(node)
    if not shape or not same(shape[0], rows):
        return False
    if not all(isinstance(size, int) for size in (*shape[1:], *strides)):
        return False
    span = 1 + sum((int(n) - 1) * int(s) for n, s in zip(shape[1:], strides[1:], strict=True))
    return bool(int(strides[0]) >= span)


def sums_over_rows(node: fx.Node, rows: Size) -> bool | None:
    """Whether a product sums over the rows; None if they are no side of it."""
    left, right = node.args[:2]
    assert isinstance(left, fx.Node)
    assert isinstance(right, fx.Node)
    if same(shape_of(left)[1], rows):
        return True
    return False if same(shape_of(left)[0], rows) else None


def _product_fits(node: fx.Node, region: Region) -> bool | None:
    """Whether it sums over rows; None if it does not fit."""
    if node.meta["val"].dtype not in (torch.float32, torch.float64):
        return None
    sums = sums_over_rows(node, region.rows)
    sides = [side_of(arg) for arg in node.args[:2] if isinstance(arg, fx.Node)]
    left, right = sides
    if sums is None or left is None or right is None:
        return None
    if left.base in region.after or right.base in region.after:
        return None
    if sums:
        rowed = [(left, left.strides[1]), (right, right.strides[0])]
    else:
        rowed = [(left, left.strides[0])]
        if right.base in region.made or not lies_by_rows(node, region.rows):
            return None
    for side, stride in rowed:
        if not lies_by_rows(side.base, region.rows):
            return None
        if not same(stride, strides_of(side.base)[0]):
            return None
    return sums
