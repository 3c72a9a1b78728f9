"""The table of compositions by operator, and what its entries share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from torch import Tensor

from adjoint.dtypes import HALVES
from adjoint.open_types import Callee
from adjoint.torch_private.operators import OpOverload
from adjoint.torch_private.symbols import is_unbacked_int

Composition: TypeAlias = Callee

# By operator, or by name if importing torch does not define the operator.
COMPOSITIONS: dict[object, Composition] = {}


class NoComposition(Exception):
    """The composition does not apply to these arguments: the operator stays."""


def composition_of(target: object) -> Composition | None:
    """The composition of what a node calls; None if it has none."""
    if isinstance(target, OpOverload):
        return COMPOSITIONS.get(target) or COMPOSITIONS.get(target._schema.name)
    return None


def registering(
    table: dict[object, Composition], *ops: OpOverload | str
) -> Callable[[Composition], Composition]:
    """Enter a composition into a table, under each of these operators."""

    def register(function: Composition) -> Composition:
        table.update(dict.fromkeys(ops, function))
        return function

    return register


# Registers the composition of operators.
composition = partial(registering, COMPOSITIONS)


def widened(x: Tensor) -> Tensor:
    """Half types as float32."""
    return x.float() if x.dtype in HALVES else x


def require_real(*tensors: Tensor | None) -> None:
    """Decline unless all tensors are floating-point."""
    if any(t is not None and not t.dtype.is_floating_point for t in tensors):
        raise NoComposition


def require_elements(x: Tensor) -> None:
    """Decline if the tensor is empty, as far as that does not depend on data."""
    if not is_unbacked_int(x.numel()) and x.numel() == 0:
        raise NoComposition


def require_real_with_axes(x: Tensor) -> None:
    """Decline unless the tensor is floating-point and not a scalar."""
    require_real(x)
    if x.dim() == 0:
        raise NoComposition
