"""Reductions along dimensions: sum, mean, product, minimum, maximum, all and any."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx

from adjoint.loops.expressions import Expression, cast, constant
from adjoint.loops.operators import identity
from adjoint.loops.pointwise import computed_in
from adjoint.lower.definitions.elements import Definition, Reader, Reduced, decline_if
from adjoint.lower.sizes import Size, product
from adjoint.lower.views import MultiIndex, dtype_of, shape_of
from adjoint.open_types import OpArgument

aten = torch.ops.aten


def _sum(
    node: fx.Node, x: fx.Node, dim: object = None, keep: bool = False, **options: object
) -> Reduced:
    return _reduction(node, x, dim, "add", 0)


def _mean(
    node: fx.Node, x: fx.Node, dim: object = None, keep: bool = False, **options: object
) -> Reduced:
    shape = shape_of(x)
    count = product([shape[each] for each in _dims(shape, dim)])

    def finish(total: Expression, reader: Reader) -> Expression:
        return total / cast(reader.size(count), total.dtype)

    return _reduction(node, x, dim, "add", 0, finish)


def _extreme(operator: str) -> Callable[..., Reduced]:
    def reduction(node: fx.Node, x: fx.Node, dim: object = (), keep: bool = False) -> Reduced:
        return _reduction(node, x, dim, operator, identity(operator, dtype_of(node)))

    return reduction


def _prod(
    node: fx.Node, x: fx.Node, dim: object = None, keep: bool = False, **opt: object
) -> Reduced:
    return _reduction(node, x, None if dim is None else [dim], "mul", 1)


def _truth(operator: str, start: bool) -> Callable[..., Reduced]:
    def reduction(node: fx.Node, x: fx.Node, dim: object = None, keep: bool = False) -> Reduced:
        decline_if(dtype_of(node) != torch.bool)
        dims = [dim] if isinstance(dim, int) else dim
        return _reduction(node, x, dims, operator, start)

    return reduction


def _dims(shape: Sequence[Size], dim: OpArgument) -> tuple[int, ...]:
    rank = len(shape)
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(rank))
    given = [dim] if isinstance(dim, int) else dim
    return tuple(sorted(each % rank for each in given)) if rank else ()


def _reduction(
    node: fx.Node,
    x: fx.Node,
    dim: object,
    operator: str,
    start: float,
    finish: Callable[[Expression, Reader], Expression] | None = None,
) -> Reduced:
    result = dtype_of(node)
    kept_in = computed_in(result)

    def element(index: MultiIndex, reader: Reader) -> Expression:
        return cast(reader.read(x, index), kept_in)

    def finished(total: Expression, reader: Reader) -> Expression:
        return cast(finish(total, reader) if finish else total, result)

    shape = shape_of(x)
    begin = constant(start, kept_in)
    return Reduced(shape, _dims(shape, dim), x, operator, begin, element, finished)


RULES: dict[object, Callable[..., Definition]] = {
    aten.all.default: _truth("and", True),
    aten.all.dim: _truth("and", True),
    aten.all.dims: _truth("and", True),
    aten.amax.default: _extreme("maximum"),
    aten.amin.default: _extreme("minimum"),
    aten.any.default: _truth("or", False),
    aten.any.dim: _truth("or", False),
    aten.any.dims: _truth("or", False),
    aten.max.default: _extreme("maximum"),
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.min.default: _extreme("minimum"),
    aten.prod.default: _prod,
    aten.prod.dim_int: _prod,
    aten.sum.default: _sum,
    aten.sum.dim_IntList: _sum,
}
