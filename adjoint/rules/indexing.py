"""Gather and scatter: the derivative of reading at indices is adding at them, and conversely."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from adjoint.rules.registry import Cotangents, Rule, vjp
from adjoint.torch_private.symbols import assert_equal_size

aten = torch.ops.aten

# Computes the cotangent of one argument, if it is needed.
Part: TypeAlias = Callable[[], torch.Tensor]


@vjp(aten.index.Tensor)
def index(
    cotangent: Tensor, out: Tensor, x: Tensor, indices: Sequence[Tensor | None]
) -> Cotangents:
    """Add at the same indices."""
    return (aten.index_put.default(cotangent.new_zeros(x.shape), indices, cotangent, True),)


@vjp(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    cotangent: Tensor,
    out: Tensor,
    x: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
) -> Cotangents:
    """Values read the cotangent at their indices; where they replace x, x has none."""
    return (
        lambda: (
            cotangent
            if accumulate
            else aten.index_put.default(cotangent, indices, cotangent.new_zeros(()), False)
        ),
        None,
        lambda: _unbroadcast(aten.index.Tensor(cotangent, indices), values),
    )


def _unbroadcast(read: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`read` summed over leading axes that `values` lacks; the sweep sums over axes of size 1.

    Where indices are masks, the sizes of `read` are data-dependent.
    """
    if read.dim() > values.dim():
        read = read.sum(list(range(read.dim() - values.dim())))
    for have, want in zip(reversed(read.shape), reversed(values.shape), strict=False):
        assert_equal_size(have, want)
    return read


@vjp(aten.gather.default)
def gather(
    cotangent: Tensor, out: Tensor, x: Tensor, dim: int, index: Tensor, **_: object
) -> Cotangents:
    """Add at the same indices."""
    return (cotangent.new_zeros(x.shape).scatter_add(dim, index, cotangent),)


@vjp(aten.scatter_add.default)
def scatter_add(
    cotangent: Tensor, out: Tensor, x: Tensor, dim: int, index: Tensor, source: Tensor
) -> Cotangents:
    """The source reads the cotangent at its indices; what exceeds `index` was not used."""
    return (cotangent, None, None, lambda: _padded_to(cotangent.gather(dim, index), source))


@vjp(aten.scatter.src)
def scatter(
    cotangent: Tensor, out: Tensor, x: Tensor, dim: int, index: Tensor, source: Tensor
) -> Cotangents:
    """The source reads the cotangent at its indices; x has none where it was overwritten."""
    return (
        lambda: cotangent.scatter(dim, index, 0),
        None,
        None,
        lambda: _padded_to(cotangent.gather(dim, index), source),
    )


@vjp(aten.scatter.value)
def scatter_value(
    cotangent: Tensor, out: Tensor, x: Tensor, dim: int, index: Tensor, value: float
) -> Cotangents:
    """x has no cotangent where it was overwritten."""
    return (cotangent.scatter(dim, index, 0),)


@vjp(aten.index_select.default)
def index_select(cotangent: Tensor, out: Tensor, x: Tensor, dim: int, index: Tensor) -> Cotangents:
    """Add at the same indices."""
    return (cotangent.new_zeros(x.shape).index_add(dim, index, cotangent),)


@vjp(aten.index_add.default)
def index_add(
    cotangent: Tensor,
    out: Tensor,
    x: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    *,
    alpha: float = 1,
) -> Cotangents:
    """The source reads the cotangent at its indices."""

    def of_source() -> Tensor:
        read = cotangent.index_select(dim, index).expand_as(source)
        return read if alpha == 1 else read * alpha

    return (cotangent, None, None, of_source)


@vjp(aten.embedding.default)
def embedding(
    cotangent: Tensor,
    out: Tensor,
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Cotangents:
    """Cotangents are added to the rows that were read, except to the padding row."""
    kernel = aten.embedding_dense_backward.default
    return (kernel(cotangent, indices, weight.shape[0], padding_idx, scale_grad_by_freq),)


@vjp(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    cotangent: Tensor,
    out: Tensor,
    rows: Tensor,
    indices: Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Cotangents:
    """Each row reads the cotangent at the index where it was added.

    Torch's own formula specializes on the row count.
    """
    flat = indices.reshape(-1)
    read = cotangent.index_select(0, flat)
    if scale_grad_by_freq:
        ones = torch.ones_like(flat, dtype=read.dtype)
        counts = read.new_zeros((num_weights,)).index_add(0, flat, ones)
        read = read / counts.index_select(0, flat).unsqueeze(-1)
    if padding_idx >= 0:
        read = read.masked_fill((flat == padding_idx).unsqueeze(-1), 0)
    return (read.view(rows.shape),)


# Reductions into indexed elements -----------------------------------------------------------------


@dataclass(frozen=True)
class _Places:
    """How a reduction moves values between a source and the elements of x that it indexes."""

    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """The first tensor, multiplied by the values of the second at their indices."""
    add: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """The first tensor plus the values of the second at their indices."""
    read: Callable[[torch.Tensor], torch.Tensor]
    """The elements at the indices, in the shape of the source."""
    clear: Callable[[torch.Tensor], torch.Tensor]
    """The tensor with zeros at the indices."""
    used: Callable[[torch.Tensor], torch.Tensor]
    """The part of a source that is reduced."""


def _by_element(dim: int, index: torch.Tensor, include_self: bool) -> _Places:
    """Of `scatter_reduce`: an index for each element of the source."""

    def used(source: torch.Tensor) -> torch.Tensor:
        corner = source[tuple(slice(0, n) for n in index.shape)] if index.dim() else source
        return source if corner.shape == source.shape else corner

    return _Places(
        lambda x, y: x.scatter_reduce(dim, index, y, "prod", include_self=include_self),
        lambda x, y: x.scatter_add(dim, index, y),
        lambda x: x.gather(dim, index),
        lambda x: x.scatter(dim, index, 0),
        used,
    )


def _by_slice(dim: int, index: torch.Tensor, include_self: bool) -> _Places:
    """Of `index_reduce`: an index for each slice of the source along `dim`."""
    return _Places(
        lambda x, y: x.index_reduce(dim, index, y, "prod", include_self=include_self),
        lambda x, y: x.index_add(dim, index, y),
        lambda x: x.index_select(dim, index),
        lambda x: x.index_fill(dim, index, 0),
        lambda source: source,
    )


def _reduction_rule(places_of: Callable[[int, torch.Tensor, bool], _Places]) -> Rule:
    """The rule of reductions of a source into the elements of x that `index` names."""

    def rule(
        cotangent: torch.Tensor,
        out: torch.Tensor,
        x: torch.Tensor,
        dim: int,
        index: torch.Tensor,
        source: torch.Tensor,
        reduce: str,
        *,
        include_self: bool = True,
    ) -> Cotangents:
        places = places_of(dim, index, include_self)
        used = places.used(source)
        of_x: Part
        of_used: Part
        if reduce == "sum":
            of_x, of_used = (lambda: cotangent), (lambda: places.read(cotangent))
        elif reduce == "prod":
            of_x, of_used = _product(cotangent, out, x, used, places)
        elif reduce == "mean":
            of_x, of_used = _mean(cotangent, x, used, include_self, places)
        else:
            of_x, of_used = _extremum(cotangent, out, x, used, places)
        return (
            of_x if include_self else lambda: places.clear(of_x()),
            None,
            None,
            lambda: _padded_to(of_used(), source),
        )

    return rule


vjp(aten.scatter_reduce.two)(_reduction_rule(_by_element))
vjp(aten.index_reduce.default)(_reduction_rule(_by_slice))


def _product(
    cotangent: torch.Tensor,
    out: torch.Tensor,
    x: torch.Tensor,
    source: torch.Tensor,
    places: _Places,
) -> tuple[Part, Part]:
    """Each factor receives the product of the others: the whole product divided by the factor, or,
    for the only zero among the factors, the product with a one in its place.

    Second derivatives with respect to two zeros at one index are taken to be zero.
    """

    def of_x() -> torch.Tensor:
        filled = x.masked_fill(x == 0, 1)
        return cotangent * places.multiply(filled, source) / filled

    def of_source() -> torch.Tensor:
        zero = source == 0
        zeros = places.read(places.add(cotangent.new_zeros(x.shape), zero.to(x.dtype)))
        only = zero & (zeros == 1)
        others = places.multiply(x, source.masked_fill(only, 1))
        return torch.where(
            only,
            places.read(cotangent * others),
            places.read(cotangent * out) / source.masked_fill(zero, 1),
        )

    return of_x, of_source


def _extremum(
    cotangent: torch.Tensor,
    out: torch.Tensor,
    x: torch.Tensor,
    source: torch.Tensor,
    places: _Places,
) -> tuple[Part, Part]:
    """All elements that attain an extremum share its cotangent equally."""
    x_attains = (x == out).to(cotangent.dtype)
    source_attains = (source == places.read(out)).to(cotangent.dtype)
    share = cotangent / places.add(x_attains, source_attains)
    return lambda: x_attains * share, lambda: source_attains * places.read(share)


def _mean(
    cotangent: torch.Tensor,
    x: torch.Tensor,
    source: torch.Tensor,
    include_self: bool,
    places: _Places,
) -> tuple[Part, Part]:
    """All elements that were averaged share the cotangent equally."""
    first = cotangent.new_ones(x.shape) if include_self else cotangent.new_zeros(x.shape)
    count = places.add(first, cotangent.new_ones(source.shape))
    share = cotangent / (count if include_self else count.masked_fill(count == 0, 1))
    return lambda: share, lambda: places.read(share)


def _padded_to(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`value` in the corner of zeros of the shape of `like`."""
    pad: list[int] = []
    for have, want in zip(reversed(value.shape), reversed(like.shape), strict=True):
        pad += [0, want - have]
    return value if value.shape == like.shape else torch.nn.functional.pad(value, pad)
