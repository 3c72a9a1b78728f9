"""Definitions of tensors: elementwise maps, reductions, matrix products and scatters.

A definition says how one element is computed from elements of the arguments.  Whether those are in
memory, in registers or inlined is decided later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from torch import fx

from adjoint.loops.expressions import Constant, Expression
from adjoint.loops.teams import Tile
from adjoint.lower.index import Index
from adjoint.lower.sizes import Size
from adjoint.lower.views import MultiIndex


class Reader(Protocol):
    """Provides the expressions of the elements that a definition reads."""

    def read(self, node: fx.Node, index: MultiIndex) -> Expression:
        """The element of `node` at `index`."""
        ...

    def size(self, size: Size) -> Expression:
        """A size, as an int64."""
        ...

    def position(self, index: Index) -> Expression:
        """An index, as an int64."""
        ...


Element: TypeAlias = Callable[[MultiIndex, Reader], Expression]


@dataclass(frozen=True)
class Bound:
    """Indices in `node` must be in range(low, high); eager raises `error` if not."""

    node: fx.Node
    low: Size
    high: Size
    op: str
    dim: int
    """The dimension of the operator's argument that has size `high`, for the message."""
    error: type[Exception] = IndexError


@dataclass(frozen=True)
class Mapped:
    """Elementwise: each element is computed by itself."""

    element: Element
    bounds: tuple[Bound, ...] = ()


@dataclass(frozen=True)
class Reduced:
    """A reduction: elements of `domain`, combined along `dims`."""

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
    """A matrix product: a reduction over k of `left` at (m, k) times `right` at (k, n).

    Its domain is (m, n, k).
    """

    left: Element
    right: Element
    tile: Tile
    """The part of the product that a team computes."""


@dataclass(frozen=True)
class Scattered:
    """A scatter: each element of `domain` is combined with the result's element at `place`.

    The elements of the result begin as `start`.
    """

    domain: tuple[Size, ...]
    source: fx.Node
    operator: str
    start: Element
    place: Callable[[MultiIndex, Reader], MultiIndex]
    element: Element
    bounds: tuple[Bound, ...] = field(default=())


Definition: TypeAlias = Mapped | Reduced | Scattered


class NoDefinition(Exception):
    """The operator has no definition for these arguments: it is a library call."""


def decline_if(condition: bool) -> None:
    if condition:
        raise NoDefinition
