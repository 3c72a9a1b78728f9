"""Finding a tensor by the memory it shows: views that only sizes, strides and offset describe."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from adjoint.capture.aliasing import Alias, Link
from adjoint.capture.views import ViewStep
from adjoint.graph.metadata import Mode
from adjoint.torch_private.fake import storage_key

aten = torch.ops.aten


def shows(alias: Alias, tensor: torch.Tensor) -> bool:
    """`tensor` still is where `alias` says (assigning to `.data` moves it unseen)."""
    return alias.memory == storage_key(tensor)


def same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Both lie in their memory in the same way."""
    if one is other:
        return True
    if one.layout is not torch.strided or other.layout is not torch.strided:
        return one.layout is other.layout
    return one.stride() == other.stride()


def same_place(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Both show the same elements of one memory in the same order."""
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.storage_offset() == other.storage_offset()
    )


def locate(aliases: Iterable[Alias], tensor: torch.Tensor) -> Alias | None:
    """An alias for `tensor` among those that share its memory."""
    memory = storage_key(tensor)
    if memory is None:
        return None
    near = [a for a in aliases if a.tensor is not None and a.memory == memory]
    near = [a for a in near if storage_key(a.tensor) == memory]  # type: ignore[arg-type]
    if not near:
        return None
    for each in near:
        if (
            each.tensor is not tensor
            and each.tensor is not None
            and same_place(each.tensor, tensor)
        ):
            step = ViewStep(aten.alias.default, (), {}, None, Mode())
            return Alias(each.storage, tensor, each, step)
    return strided(near[0], tensor)


def strided(near: Alias, tensor: torch.Tensor) -> Alias:
    """`tensor` as a strided window on the memory of `near`."""
    flat = flat_base(near)
    step = strided_step(flat, tensor)
    if flat.tensor is None and _dtype(near) != tensor.dtype:
        reinterpret = ViewStep(aten.view.dtype, (tensor.dtype,), {}, None, Mode())
        flat = Alias(flat.storage, None, flat, reinterpret, link=Link.FAMILY)
    return Alias(near.storage, tensor, flat, step)


def strided_step(flat: Alias, tensor: torch.Tensor) -> ViewStep:
    """The `as_strided` that shows `tensor` on the flat memory `flat`."""
    root = root_of(flat)
    start = root.tensor.storage_offset() if root.tensor is not None else 0
    place = (list(tensor.shape), list(tensor.stride()), tensor.storage_offset() - start)
    return ViewStep(aten.as_strided.default, place, {}, None, Mode())


def flat_base(alias: Alias) -> Alias:
    """The memory of `alias` as one axis in its own order; `alias` itself if it has gaps.

    A functional value need not lie in memory as the tensor it stands for, so strides may only be
    applied to a value whose layout is known: a flat one.
    """
    storage, root = alias.storage, root_of(alias)
    if storage.flat is not None:
        return storage.flat
    if root.tensor is None:
        return root
    order = dense_order(root.tensor)
    if order is None:
        return alias
    if order != list(range(len(order))):
        permute = ViewStep(aten.permute.default, (order,), {}, None, Mode())
        root = Alias(storage, None, root, permute, link=Link.FAMILY)
    flatten = ViewStep(aten.view.default, ([-1],), {}, None, Mode())
    storage.flat = Alias(storage, None, root, flatten, link=Link.FAMILY)
    return storage.flat


def dense_order(tensor: torch.Tensor) -> list[int] | None:
    """The axes from outermost to innermost in memory; None if there are gaps or overlaps."""
    if tensor.layout is not torch.strided:
        return None
    axes = sorted(range(tensor.dim()), key=lambda axis: (-tensor.stride(axis), axis))
    expected = 1
    for axis in reversed(axes):
        if tensor.shape[axis] != 1 and tensor.stride(axis) != expected:
            return None
        expected *= tensor.shape[axis]
    return axes


def root_of(alias: Alias) -> Alias:
    """The alias that all of its storage are views of."""
    return list(alias.ancestors())[-1]


def _dtype(alias: Alias) -> torch.dtype | None:
    return None if alias.tensor is None else alias.tensor.dtype
