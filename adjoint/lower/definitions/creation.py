"""Constant tensors: never stored, but computed wherever they are read."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from adjoint.loops.expressions import Expression, cast, constant
from adjoint.lower.definitions.elements import Definition, Mapped, Reader, decline_if
from adjoint.lower.views import MultiIndex, dtype_of
from adjoint.open_types import OpArgument

aten = torch.ops.aten


def _full(node: fx.Node, size: object, value: object, **options: object) -> Mapped:
    return _filled(node, value)


def _like(node: fx.Node, source: object, value: object, **options: object) -> Mapped:
    return _filled(node, value)


def _new_full(
    node: fx.Node, source: object, size: object, value: object, **options: object
) -> Mapped:
    return _filled(node, value)


def _filled(node: fx.Node, value: OpArgument) -> Mapped:
    decline_if(not isinstance(value, (int, float)) or dtype_of(node).is_complex)
    number = constant(value, dtype_of(node))
    return Mapped(lambda index, reader: number)


def _scalar(node: fx.Node, value: object, **options: object) -> Mapped:
    return _filled(node, value)


def _zeros(node: fx.Node, *args: object, **options: object) -> Mapped:
    return _filled(node, 0)


def _ones(node: fx.Node, *args: object, **options: object) -> Mapped:
    return _filled(node, 1)


def _arange(node: fx.Node, *args: object, **options: object) -> Mapped:
    start, step = (args[0] if len(args) > 1 else 0), (args[2] if len(args) > 2 else 1)
    dtype = dtype_of(node)
    decline_if(dtype.is_floating_point or not all(isinstance(n, int) for n in (start, step)))

    def element(index: MultiIndex, reader: Reader) -> Expression:
        return cast(reader.position(index[0] * step + start), dtype)

    return Mapped(element)


RULES: dict[object, Callable[..., Definition]] = {
    aten.arange.default: _arange,
    aten.arange.start: _arange,
    aten.arange.start_step: _arange,
    aten.full.default: _full,
    aten.full_like.default: _like,
    aten.new_full.default: _new_full,
    aten.new_ones.default: _ones,
    aten.new_zeros.default: _zeros,
    aten.ones.default: _ones,
    aten.ones_like.default: _ones,
    aten.scalar_tensor.default: _scalar,
    aten.zeros.default: _zeros,
    aten.zeros_like.default: _zeros,
}
