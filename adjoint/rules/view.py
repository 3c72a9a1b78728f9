"""Views, concatenations and other rearrangements: the cotangent is rearranged the inverse way."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adjoint.rules.registry import Cotangent, Cotangents, composition, vjp

aten = torch.ops.aten


@vjp(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.view_copy.default,
    aten._reshape_copy.default,
)
def reshaped(cotangent: Tensor, out: Tensor, x: Tensor, *_: object, **__: object) -> Cotangents:
    """Reshape to x's shape."""
    return (cotangent.reshape(x.shape),)


@vjp(aten.expand.default)
def expand(cotangent: Tensor, out: Tensor, x: Tensor, *_: object, **__: object) -> Cotangents:
    """The sweep sums over broadcast axes."""
    return (cotangent,)


@vjp(aten.alias.default)
def alias(cotangent: Tensor, out: Tensor, x: Tensor) -> Cotangents:
    """The identity."""
    return (cotangent,)


@vjp(aten.permute.default)
def permute(cotangent: Tensor, out: Tensor, x: Tensor, dims: Sequence[int]) -> Cotangents:
    """The inverse permutation."""
    order = [dim % x.dim() for dim in dims]
    return (cotangent.permute([order.index(axis) for axis in range(x.dim())]),)


@vjp(aten.transpose.int)
def transpose(cotangent: Tensor, out: Tensor, x: Tensor, dim0: int, dim1: int) -> Cotangents:
    """Swap the same two axes."""
    return (cotangent.transpose(dim0, dim1),)


@vjp(aten.t.default)
def t(cotangent: Tensor, out: Tensor, x: Tensor) -> Cotangents:
    """Swap the same two axes."""
    return (cotangent.t(),)


@vjp(aten.flip.default)
def flip(cotangent: Tensor, out: Tensor, x: Tensor, dims: list[int]) -> Cotangents:
    """Flip the same axes."""
    return (cotangent.flip(dims),)


@vjp(aten.roll.default)
def roll(
    cotangent: Tensor,
    out: Tensor,
    x: Tensor,
    shifts: list[int] | int,
    dims: list[int] | tuple[()] = (),
) -> Cotangents:
    """Roll by the opposite shifts."""
    back = [-each for each in (shifts if isinstance(shifts, (list, tuple)) else [shifts])]
    return (cotangent.roll(back, dims),)


@vjp(aten.select.int)
def select(cotangent: Tensor, out: Tensor, x: Tensor, dim: int, index: int) -> Cotangents:
    """The cotangent in its position, zeros elsewhere."""
    return (aten.select_backward.default(cotangent, x.shape, dim, index),)


@vjp(aten.select_backward.default)
def select_backward(
    cotangent: Tensor, out: Tensor, g: Tensor, input_sizes: Sequence[int], dim: int, index: int
) -> Cotangents:
    """The inverse selection."""
    return (cotangent.select(dim, index),)


@vjp(aten.slice.Tensor)
def slice_(
    cotangent: Tensor,
    out: Tensor,
    x: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Cotangents:
    """The cotangent in its position, zeros elsewhere."""
    start = 0 if start is None else start
    end = x.shape[dim] if end is None else end
    return (aten.slice_backward.default(cotangent, x.shape, dim, start, end, step),)


@vjp(aten.slice_backward.default)
def slice_backward(
    cotangent: Tensor,
    out: Tensor,
    g: Tensor,
    input_sizes: Sequence[int],
    dim: int,
    start: int,
    end: int,
    step: int,
) -> Cotangents:
    """The inverse selection."""
    return (aten.slice.Tensor(cotangent, dim, start, end, step),)


@vjp(aten.diagonal.default)
def diagonal(
    cotangent: Tensor, out: Tensor, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Cotangents:
    """The cotangent in its position, zeros elsewhere."""
    return (aten.diagonal_backward.default(cotangent, x.shape, offset, dim1, dim2),)


@vjp(aten.diagonal_backward.default)
def diagonal_backward(
    cotangent: Tensor,
    out: Tensor,
    g: Tensor,
    input_sizes: Sequence[int],
    offset: int,
    dim1: int,
    dim2: int,
) -> Cotangents:
    """The inverse selection."""
    return (cotangent.diagonal(offset, dim1, dim2),)


@vjp(aten.cat.default)
def cat(cotangent: Tensor, out: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> Cotangents:
    """Each tensor receives its part."""

    def part(start: int, tensor: Tensor) -> Cotangent:
        return lambda: cotangent.narrow(dim, start, tensor.shape[dim])

    parts: list[Cotangent] = []
    start = 0
    for tensor in tensors:
        # An empty tensor of one axis fits between any others.
        if tensor.dim() != cotangent.dim():
            parts.append(cotangent.new_zeros(tensor.shape))
            continue
        parts.append(part(start, tensor))
        start = start + tensor.shape[dim]
    return (parts,)


@vjp(aten.stack.default)
def stack(cotangent: Tensor, out: Tensor, tensors: Sequence[object], dim: int = 0) -> Cotangents:
    """Each tensor receives its index along `dim`."""
    axis = dim % cotangent.dim()

    def part(index: int) -> Cotangent:
        return lambda: cotangent.select(axis, index)

    return ([part(index) for index in range(len(tensors))],)


@vjp(aten.unbind.int)
def unbind(
    cotangent: Sequence[Tensor | None], out: Sequence[Tensor], x: Tensor, dim: int = 0
) -> Cotangents:
    """Stack the cotangents."""
    present = [index for index, each in enumerate(cotangent) if each is not None]
    if len(present) == 1:
        (index,) = present
        return (aten.select_backward.default(cotangent[index], x.shape, dim, index),)
    return (torch.stack(_filled(cotangent, out), dim),)


@vjp(aten.split.Tensor, aten.split_with_sizes.default)
def split(
    cotangent: Sequence[Tensor | None],
    out: Sequence[Tensor],
    x: Tensor,
    sizes: object,
    dim: int = 0,
) -> Cotangents:
    """Concatenate the cotangents."""
    return (torch.cat(_filled(cotangent, out), dim),)


def _filled(cotangents: Sequence[Tensor | None], outs: Sequence[Tensor]) -> list[Tensor]:
    some = next(each for each in cotangents if each is not None)
    return [
        some.new_zeros(out.shape) if cotangent is None else cotangent
        for cotangent, out in zip(cotangents, outs, strict=True)
    ]


@vjp(aten.constant_pad_nd.default)
def constant_pad(
    cotangent: Tensor, out: Tensor, x: Tensor, pad: Sequence[int], value: float = 0
) -> Cotangents:
    """Pad by the opposite amounts: crop the padding, and zeros for what was cropped."""
    return (aten.constant_pad_nd.default(cotangent, [-each for each in pad]),)


@vjp(aten._conj.default)
def conj(cotangent: Tensor, out: Tensor, x: Tensor) -> Cotangents:
    """The conjugate."""
    return (cotangent.conj(),)


@composition(aten.as_strided.default)
def as_strided(
    x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """Offsets count from the first element of x, whose fake may lie within a larger storage."""
    return x.as_strided(size, stride, x.storage_offset() + (storage_offset or 0))


@vjp(aten.as_strided_scatter.default)
def as_strided_scatter(
    cotangent: Tensor,
    out: Tensor,
    x: Tensor,
    source: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Cotangents:
    """The source receives the elements that it replaced; x receives the others.

    Torch's own formula gives x the cotangent of the replaced elements, too.
    """
    window = (size, stride, 0 if storage_offset is None else storage_offset)
    # Strides refer to contiguous memory; the cotangent may be expanded.
    whole = cotangent.clone(memory_format=torch.contiguous_format)
    return (
        lambda: aten.as_strided_scatter.default(whole, whole.new_zeros(source.shape), *window),
        lambda: aten.as_strided_copy.default(whole, *window),
    )
