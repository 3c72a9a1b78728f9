"""Reading and writing at indices: what one reads from, the other adds to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from adjoint.rules.registry import vjp
from adjoint.torch_private.symbols import assert_equal_size

aten = torch.ops.aten


@vjp(aten.index.Tensor)
def index(cotangent: Any, out: Any, x: Any, indices: Any) -> Any:
    """Add at the same places."""
    return (aten.index_put.default(cotangent.new_zeros(x.shape), indices, cotangent, True),)


@vjp(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    cotangent: Any, out: Any, x: Any, indices: Any, values: Any, accumulate: bool = False
) -> Any:
    """Values read the cotangent at their places; x has none there unless they were added."""
    return (
        lambda: (
            cotangent
            if accumulate
            else aten.index_put.default(cotangent, indices, cotangent.new_zeros(()), False)
        ),
        None,
        lambda: _as_large_as(aten.index.Tensor(cotangent, indices), values),
    )


def _as_large_as(read: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`read` in the shape of `values`, but for axes of one element that were broadcast.

    Where indices are masks, how much is read is known only in the run.
    """
    if read.dim() > values.dim():
        read = read.sum(list(range(read.dim() - values.dim())))
    for have, want in zip(reversed(read.shape), reversed(values.shape), strict=False):
        assert_equal_size(have, want)
    return read


@vjp(aten.gather.default)
def gather(cotangent: Any, out: Any, x: Any, dim: int, index: Any, **_: Any) -> Any:
    """Add at the same places."""
    return (cotangent.new_zeros(x.shape).scatter_add(dim, index, cotangent),)


@vjp(aten.scatter_add.default)
def scatter_add(cotangent: Any, out: Any, x: Any, dim: int, index: Any, source: Any) -> Any:
    """Each source reads the cotangent at its place; there may be more than were used."""
    return (cotangent, None, None, lambda: _grown(cotangent.gather(dim, index), source))


@vjp(aten.scatter.src)
def scatter(cotangent: Any, out: Any, x: Any, dim: int, index: Any, source: Any) -> Any:
    """The same; x has nothing where it was written over."""
    return (
        lambda: cotangent.scatter(dim, index, 0),
        None,
        None,
        lambda: _grown(cotangent.gather(dim, index), source),
    )


@vjp(aten.scatter.value)
def scatter_value(cotangent: Any, out: Any, x: Any, dim: int, index: Any, value: Any) -> Any:
    """x has nothing where it was written over."""
    return (cotangent.scatter(dim, index, 0),)


@vjp(aten.index_select.default)
def index_select(cotangent: Any, out: Any, x: Any, dim: int, index: Any) -> Any:
    """Add at the same places."""
    return (cotangent.new_zeros(x.shape).index_add(dim, index, cotangent),)


@vjp(aten.index_add.default)
def index_add(
    cotangent: Any, out: Any, x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1
) -> Any:
    """Each source reads the cotangent at its place."""

    def of_source() -> Any:
        read = cotangent.index_select(dim, index).expand_as(source)
        return read if alpha == 1 else read * alpha

    return (cotangent, None, None, of_source)


@vjp(aten.embedding.default)
def embedding(
    cotangent: Any,
    out: Any,
    weight: Any,
    indices: Any,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Rows are added to; that of the padding is not."""
    kernel = aten.embedding_dense_backward.default
    return (kernel(cotangent, indices, weight.shape[0], padding_idx, scale_grad_by_freq),)


@vjp(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    cotangent: Any,
    out: Any,
    rows: Any,
    indices: Any,
    num_weights: Any,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Any:
    """Each row reads where it was added; torch's own formula fixes the number of rows."""
    flat = indices.reshape(-1)
    read = cotangent.index_select(0, flat)
    if scale_grad_by_freq:
        ones = torch.ones_like(flat, dtype=read.dtype)
        counts = read.new_zeros((num_weights,)).index_add(0, flat, ones)
        read = read / counts.index_select(0, flat).unsqueeze(-1)
    if padding_idx >= 0:
        read = read.masked_fill((flat == padding_idx).unsqueeze(-1), 0)
    return (read.view(rows.shape),)


# Products --------------------------------------------------------------------------------------

Scatter = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _product(
    cotangent: torch.Tensor,
    out: torch.Tensor,
    x: torch.Tensor,
    source: torch.Tensor,
    multiply: Scatter,
    add: Scatter,
    read: Callable[[torch.Tensor], torch.Tensor],
) -> Any:
    """Each factor receives the product of the others: the whole one divided by it, or, for the only
    zero among the sources of a place, the product with a one instead of it.

    Second derivatives with respect to two zeros at one place are taken to be zero.
    """

    def of_x() -> torch.Tensor:
        filled = x.masked_fill(x == 0, 1)
        return cotangent * multiply(filled, source) / filled

    def of_source() -> torch.Tensor:
        zero = source == 0
        zeros = read(add(cotangent.new_zeros(x.shape), zero.to(x.dtype)))
        only = zero & (zeros == 1)
        others = multiply(x, source.masked_fill(only, 1))
        return torch.where(
            only, read(cotangent * others), read(cotangent * out) / source.masked_fill(zero, 1)
        )

    return of_x, of_source


def _extremum(
    cotangent: torch.Tensor,
    out: torch.Tensor,
    x: torch.Tensor,
    source: torch.Tensor,
    add: Scatter,
    read: Callable[[torch.Tensor], torch.Tensor],
) -> Any:
    """All that attain the extremum of a place share equally."""
    mine = (x == out).to(cotangent.dtype)
    theirs = (source == read(out)).to(cotangent.dtype)
    share = cotangent / add(mine, theirs)
    return lambda: mine * share, lambda: theirs * read(share)


def _mean(
    cotangent: torch.Tensor,
    x: torch.Tensor,
    source: torch.Tensor,
    add: Scatter,
    read: Callable[[torch.Tensor], torch.Tensor],
    include_self: bool,
) -> Any:
    """All elements of a place share equally."""
    first = cotangent.new_ones(x.shape) if include_self else cotangent.new_zeros(x.shape)
    count = add(first, cotangent.new_ones(source.shape))
    share = cotangent / (count if include_self else count.masked_fill(count == 0, 1))
    return lambda: share, lambda: read(share)


@vjp(aten.scatter_reduce.two)
def scatter_reduce(
    cotangent: Any,
    out: Any,
    x: Any,
    dim: int,
    index: Any,
    source: Any,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    """A reduction for each place of x."""

    def multiply(into: torch.Tensor, each: torch.Tensor) -> torch.Tensor:
        return into.scatter_reduce(dim, index, each, "prod", include_self=include_self)

    def add(into: torch.Tensor, each: torch.Tensor) -> torch.Tensor:
        return into.scatter_add(dim, index, each)

    def read(each: torch.Tensor) -> torch.Tensor:
        return each.gather(dim, index)

    # Sources that no index names are no part of it.
    used = source[tuple(slice(0, size) for size in index.shape)] if index.dim() else source
    if used.shape == source.shape:
        used = source
    of_x, of_source = _reduced(cotangent, out, x, used, reduce, include_self, multiply, add, read)
    if not include_self:
        unreduced = of_x
        of_x = lambda: unreduced().scatter(dim, index, 0)  # noqa: E731
    return of_x, None, None, lambda: _grown(of_source(), source)


@vjp(aten.index_reduce.default)
def index_reduce(
    cotangent: Any,
    out: Any,
    x: Any,
    dim: int,
    index: Any,
    source: Any,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    """The same for whole slices."""

    def multiply(into: torch.Tensor, each: torch.Tensor) -> torch.Tensor:
        return into.index_reduce(dim, index, each, "prod", include_self=include_self)

    def add(into: torch.Tensor, each: torch.Tensor) -> torch.Tensor:
        return into.index_add(dim, index, each)

    def read(each: torch.Tensor) -> torch.Tensor:
        return each.index_select(dim, index)

    of_x, of_source = _reduced(cotangent, out, x, source, reduce, include_self, multiply, add, read)
    if not include_self:
        unreduced = of_x
        of_x = lambda: unreduced().index_fill(dim, index, 0)  # noqa: E731
    return of_x, None, None, of_source


def _reduced(
    cotangent: torch.Tensor,
    out: torch.Tensor,
    x: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    include_self: bool,
    multiply: Scatter,
    add: Scatter,
    read: Callable[[torch.Tensor], torch.Tensor],
) -> Any:
    if reduce == "sum":
        return lambda: cotangent, lambda: read(cotangent)
    if reduce == "prod":
        return _product(cotangent, out, x, source, multiply, add, read)
    if reduce == "mean":
        return _mean(cotangent, x, source, add, read, include_self)
    return _extremum(cotangent, out, x, source, add, read)


def _grown(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`value` in the corner of a tensor of zeros."""
    pad: list[Any] = []
    for have, want in zip(reversed(value.shape), reversed(like.shape), strict=True):
        pad += [0, want - have]
    return value if value.shape == like.shape else torch.nn.functional.pad(value, pad)
