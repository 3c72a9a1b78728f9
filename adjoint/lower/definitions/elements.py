"""What the elements of a tensor are: mapped from others, reduced from others, or scattered into it.

A definition says how one element is computed from elements of the arguments, without saying when or
whether those are in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import torch
from torch import fx

from adjoint.loops.expressions import Constant, Expression
from adjoint.loops.teams import Tile
from adjoint.lower.index import Index
from adjoint.lower.sizes import Size
from adjoint.lower.views import Where


class Reader(Protocol):
    """Gives the elements that a definition asks for."""

    def read(self, node: fx.Node, index: Where) -> Expression: ...

    def size(self, size: Size) -> Expression:
        """A size, as an int64."""
        ...

    def position(self, index: Index) -> Expression:
        """An index, as an int64."""
        ...


Element: TypeAlias = Callable[[Where, Reader], Expression]


@dataclass(frozen=True)
class Bound:
    """Indices in `node` must be in range(low, high); eager raises `error` if not."""

    node: fx.Node
    low: Size
    high: Size
    op: str
    dim: int
    """The dimension of size `high` of the operator `op`."""
    error: type[Exception] = IndexError


@dataclass(frozen=True)
class Mapped:
    element: Element
    bounds: tuple[Bound, ...] = ()


@dataclass(frozen=True)
class Reduced:
    """Elements of `domain`, combined along `dims`."""

    domain: tuple[Size, ...]
    dims: tuple[int, ...]
    source: fx.Node
    operator: str
    start: Constant
    element: Element
    finish: Callable[[Expression, Reader], Expression]
    bounds: tuple[Bound, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Multiplied(Reduced):
    """A matrix product: `left` is an element of row m and k, `right` one of k and column n.

    Its domain is (m, n, k); an element is one times the other.
    """

    left: Element
    right: Element
    tile: Tile
    """What a team computes at a time."""


@dataclass(frozen=True)
class Scattered:
    """Each element of `domain` is combined with the one at `place`, which begins as `start`."""

    domain: tuple[Size, ...]
    source: fx.Node
    operator: str
    start: Element
    place: Callable[[Where, Reader], Where]
    element: Element
    bounds: tuple[Bound, ...] = field(default=())


Definition: TypeAlias = Mapped | Reduced | Scattered


class Declined(Exception):
    """Not in this case."""


def decline_if(condition: bool) -> None:
    if condition:
        raise Declined


def dtype_of(node: fx.Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype
