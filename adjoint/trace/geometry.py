"""Finding a tensor by the memory it shows: views that only sizes, strides and offset describe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import fx

from adjoint.errors import CaptureError
from adjoint.graph.metadata import Mode, mode_of
from adjoint.graph.operations import with_data
from adjoint.source import user_line
from adjoint.torch_private import symbols
from adjoint.torch_private.fake import storage_key
from adjoint.trace import aliasing
from adjoint.trace.aliasing import Alias, Link
from adjoint.trace.emission import Emitter
from adjoint.trace.views import Spread, ViewStep, has_internal_overlap

aten = torch.ops.aten


def shows(alias: Alias, tensor: torch.Tensor) -> bool:
    """`tensor` still is where `alias` says (assigning to `.data` moves it unseen)."""
    return bool(alias.memory == storage_key(tensor))


def same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Both lie in their memory in the same way."""
    if one is other:
        return True
    if one.layout is not torch.strided or other.layout is not torch.strided:
        return one.layout is other.layout
    return one.stride() == other.stride()


def laid_out(emitter: Emitter, node: fx.Node, tensor: torch.Tensor) -> fx.Node:
    """`node`, lying in memory as the program's tensor does."""
    if same_layout(node.meta["val"], tensor):
        return node
    options = {"dtype": tensor.dtype, "device": tensor.device}
    place = (list(tensor.shape), list(tensor.stride()))
    mode = mode_of(node)
    empty = emitter.call(aten.empty_strided.default, place, options, mode=mode)
    return emitter.call(aten.copy.default, (empty, node), mode=mode)


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
    if tensor._is_view():
        near = [a for a in near if _same_family(a.tensor, tensor)] or near
    if not near:
        return None
    for each in near:
        if each.tensor is not tensor and same_place(each.place, tensor):  # type: ignore[arg-type]
            step = ViewStep(aten.alias.default, (), {}, None, Mode())
            return Alias(each.storage, tensor, each, step)
    near[0].storage.is_placed = True
    return strided(near[0] if tensor._is_view() else root_of(near[0]), tensor)


def _same_family(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    return one is not None and (one if one._base is None else one._base) is other._base


def strided(
    near: Alias, tensor: torch.Tensor, link: Link = Link.AUTOGRAD, mode: Mode | None = None
) -> Alias:
    """`tensor` as a strided window on the memory of the family of `near`, made under `mode`."""
    try:
        alias = flat_base(near)
        *first, last = _way_to(alias, tensor, mode or Mode())
    except CaptureError:
        around = family_root(near)
        if around.parent is None and around.storage.open is not None:
            around.storage.open()
        if around.parent is None:
            raise
        if around.has_history and link is not Link.FOREIGN:
            raise
        # The family does not show that part of its memory, but has no history to keep either.
        return strided(around.parent, tensor, Link.FOREIGN, mode)
    for step in first:
        alias = Alias(near.storage, None, alias, step, link=Link.FAMILY)
    return Alias(near.storage, tensor, alias, last, link=link)


def reaching_out(emitter: Emitter, viewed: Alias, tensor: torch.Tensor, mode: Mode) -> Alias:
    """`tensor` as a differentiable view of `viewed`, which shows a part of it only.

    Gradients flow to the elements that are shown there; the others are data.
    """
    shown = viewed.place
    if shown is None or not (is_static(shown) and is_static(tensor)):
        raise outside()
    if any(each.is_conj() or each.is_neg() for each in (shown, tensor)):
        raise outside()
    alias = strided(viewed, tensor, Link.FOREIGN, mode)
    first = tensor.storage_offset() - shown.storage_offset()
    before, after = max(0, -first), max(0, first + extent(tensor) - extent(shown))
    history = aliasing.read(emitter, _flattened(viewed))
    padding = (history, [before, after])
    history = emitter.call(aten.constant_pad_nd.default, padding, {}, mode)
    place = (list(tensor.shape), list(tensor.stride()), first + before)
    history = emitter.call(aten.as_strided.default, (history, *place), {}, mode)
    data = aliasing.read(emitter, alias)
    alias.node = emitter.call(with_data, (history, data), mode=mode, value=data.meta["val"])
    alias.reaches_out_of = viewed
    return alias


def _way_to(flat: Alias, tensor: torch.Tensor, mode: Mode) -> Iterator[ViewStep]:
    """The view ops that lead from a flat memory to `tensor`."""
    have = dtype_of(flat)
    if have != tensor.dtype:
        yield from _reinterpreted(have, tensor.dtype, mode)
    yield _window(flat, tensor, mode)
    if tensor.is_conj():
        yield ViewStep(aten._conj.default, (), {}, None, mode)
    if tensor.is_neg():
        yield ViewStep(aten._neg_view.default, (), {}, None, mode)


def _reinterpreted(have: torch.dtype, want: torch.dtype, mode: Mode) -> Iterator[ViewStep]:
    """One axis of `have` as one axis of `want`, by differentiable views where there are any."""
    if have.is_complex and want == have.to_real():
        yield ViewStep(aten.view_as_real.default, (), {}, None, mode)
        yield ViewStep(aten.view.default, ([-1],), {}, None, mode)
    elif want.is_complex and have == want.to_real():
        yield ViewStep(aten.view.default, ([-1, 2],), {}, None, mode)
        yield ViewStep(aten.view_as_complex.default, (), {}, None, mode)
    else:
        yield ViewStep(aten.view.dtype, (want,), {}, None, mode)


def _window(flat: Alias, tensor: torch.Tensor, mode: Mode) -> ViewStep:
    """The `as_strided` that shows `tensor` on the flat memory `flat`, seen in its dtype."""
    root = family_root(flat)
    start, count = 0, tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
    if root.place is not None:
        size = root.place.dtype.itemsize
        start = root.place.storage_offset() * size // tensor.dtype.itemsize
        count = extent(root.place) * size // tensor.dtype.itemsize
    first = tensor.storage_offset() - start
    if tensor.numel() > 0 and (first < 0 or first + extent(tensor) > count):
        raise outside()
    if isinstance(flat.step, Spread):
        assert root.place is not None
        if not (is_static(root.place) and is_static(tensor) and covers(root.place, tensor)):
            raise outside()
    place = (list(tensor.shape), list(tensor.stride()), first)
    return ViewStep(aten.as_strided.default, place, {}, None, mode)


def outside() -> CaptureError:
    return CaptureError(
        "as_strided",
        "it shows memory outside of the tensor that it is a view of",
        "pass the tensor that owns the memory",
        user_line(),
    )


class Displaced:
    """Tensors that stand for others, which lie in their memory otherwise."""

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[torch.Tensor, bool]] = {}

    def add(self, twin: torch.Tensor, other: torch.Tensor) -> None:
        """What a program does with `twin` it does with `other`."""
        offset, has_other_strides = other.storage_offset(), other.stride() != twin.stride()
        if has_other_strides or not (isinstance(offset, int) and offset == 0):
            self._by_id[id(twin)] = (twin, has_other_strides)

    def refuse(self, alias: Alias, counts: bool) -> None:
        """The program takes a strided window of `alias`; `counts`: from where memory begins."""
        found = self._by_id.get(id(root_of(alias).tensor))
        if found is not None and (counts or found[1]):
            raise CaptureError(
                "as_strided",
                "the function that is differentiated has a tensor that begins elsewhere in its "
                "memory, or has other strides, than the one that stands for it",
                "differentiate with respect to a clone() of the tensor",
                user_line(),
            )


def flat_base(alias: Alias) -> Alias:
    """The memory of the family of `alias` as one axis, in its own order.

    A functional value need not lie in memory as the tensor it stands for, so strides may only be
    applied to a value whose layout is known: a flat one.
    """
    root = family_root(alias)
    if root.flat is None:
        root.flat = _flattened(root)
    return root.flat


def _flattened(root: Alias) -> Alias:
    shown = root.place
    if shown is None:
        return root
    order = dense_order(shown)
    if order is None and any(map(symbols.is_zero_in_capture, shown.shape)):
        # Its strides are those of nothing, so that the graph is for nothing alone.
        order = list(range(shown.dim()))
    if order is None:
        place = (extent(shown), list(shown.shape), list(shown.stride()))
        spread = Spread(
            aten.as_strided.default, (*place, has_internal_overlap(shown)), {}, None, Mode()
        )
        return Alias(root.storage, None, root, spread, link=Link.FAMILY)
    alias = root
    if order != list(range(len(order))):
        permute = ViewStep(aten.permute.default, (order,), {}, None, Mode())
        alias = Alias(root.storage, None, alias, permute, link=Link.FAMILY)
    flatten = ViewStep(aten.view.default, ([-1],), {}, None, Mode())
    return Alias(root.storage, None, alias, flatten, link=Link.FAMILY)


def extent(tensor: torch.Tensor) -> int:
    """How many elements of memory lie from the first that `tensor` shows to its last."""
    steps = (
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return sum(steps, 1) if tensor.numel() > 0 else 0


def dense_order(tensor: torch.Tensor) -> list[int] | None:
    """The axes from outermost to innermost in memory; None if there are gaps or overlaps."""
    if tensor.layout is not torch.strided:
        return None
    sizes: list[object] = list(tensor.shape)
    if any(type(size) is int and size == 0 for size in sizes):
        return list(range(tensor.dim()))
    strides = tensor.stride()
    axes = sorted(range(tensor.dim()), key=lambda axis: (-strides[axis], axis))
    expected = 1
    for axis in reversed(axes):
        if tensor.shape[axis] != 1 and strides[axis] != expected:
            return None
        expected *= tensor.shape[axis]
    return axes


def root_of(alias: Alias) -> Alias:
    """The alias that all of its storage are views of."""
    return list(alias.ancestors())[-1]


def family_root(alias: Alias) -> Alias:
    """The alias whose history `alias` shares."""
    return next(each for each in alias.ancestors() if each.starts_family)


def dtype_of(flat: Alias) -> torch.dtype:
    """The dtype of a flat memory."""
    root = family_root(flat)
    dtype = root.dtype if root.place is None else root.place.dtype
    assert dtype is not None
    return dtype


def covers(one: torch.Tensor, other: torch.Tensor) -> bool:
    """All that `other` shows of their memory `one` shows as well; true where sizes are symbols."""
    if not (is_static(one) and is_static(other)) or other.numel() == 0:
        return True
    (start, stop), (begin, end) = range_of(one), range_of(other)
    if begin < start or end > stop:
        return False
    shown = np.zeros(stop - start, dtype=np.bool_)
    place_in(shown, one, start)[...] = True
    return bool(place_in(shown, other, start).all())


def place_in(memory: Any, tensor: torch.Tensor, first: int) -> Any:
    """What `tensor` shows of `memory`, a byte for each byte from the `first` on."""
    size = tensor.dtype.itemsize
    start = tensor.storage_offset() * size - first
    steps = (*(step * size for step in tensor.stride()), 1)
    return np.lib.stride_tricks.as_strided(memory[start:], (*tensor.shape, size), steps)


def is_static(tensor: torch.Tensor) -> bool:
    place = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    return all(isinstance(each, int) for each in place)


def range_of(tensor: torch.Tensor) -> tuple[Any, Any]:
    first = tensor.storage_offset()
    size = tensor.dtype.itemsize
    return first * size, (first + extent(tensor)) * size
