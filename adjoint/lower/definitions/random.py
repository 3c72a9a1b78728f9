"""Random bits: each element is a function of the seeds and of its position in the tensor."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from adjoint.graph.operations import random_bits
from adjoint.loops.expressions import Expression, apply, cast, integer
from adjoint.lower.definitions.elements import Definition, Mapped, Reader
from adjoint.lower.index import Index, linear, row_major
from adjoint.lower.views import MultiIndex, dtype_of, shape_of


def _random_bits(
    node: fx.Node, seeds: fx.Node, stream: int, size: object, stride: object, bits: int
) -> Mapped:
    shape, dtype = shape_of(node), dtype_of(node)

    def element(index: MultiIndex, reader: Reader) -> Expression:
        # The position in row-major order, whatever the strides.
        place = reader.position(linear(index, row_major(shape)))
        key = reader.read(seeds, (Index(),))
        low = reader.read(seeds, (Index(constant=1),)) + stream
        if bits > 32:
            drawn = apply("philox", key, _shifted(place, 1), low, _last(place, 1))
            return cast(_kept(drawn, 64 - bits, bits), dtype)
        # Four adjacent elements share the 128 bits of one counter.
        half = _last(_shifted(place, 1), 1)
        drawn = apply("philox", key, _shifted(place, 2), low, half)
        word = apply("shift_right", drawn, _last(place, 1) * 32)
        return cast(_kept(word, 32 - bits, bits), dtype)

    return Mapped(element)


def _shifted(value: Expression, by: int) -> Expression:
    return apply("shift_right", value, integer(by))


def _last(value: Expression, bits: int) -> Expression:
    """The lowest bits."""
    return apply("and", value, integer((1 << bits) - 1))


def _kept(value: Expression, first: int, bits: int) -> Expression:
    return _last(_shifted(value, first), bits)


RULES: dict[object, Callable[..., Definition]] = {random_bits: _random_bits}
