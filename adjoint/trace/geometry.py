"""Aliases found by sizes, strides and storage offset, where no view op relates two tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import fx

from adjoint.errors import CaptureError
from adjoint.graph.metadata import Mode, mode_of, tensor_of
from adjoint.graph.operations import with_data
from adjoint.source import user_line
from adjoint.strides import offset_of_last
from adjoint.torch_private import symbols
from adjoint.torch_private.autograd import above_autograd
from adjoint.torch_private.fake import storage_key
from adjoint.trace import aliasing
from adjoint.trace.aliasing import Alias, Link
from adjoint.trace.emission import Emitter
from adjoint.trace.views import Spread, ViewStep, has_internal_overlap

aten = torch.ops.aten


def shows(alias: Alias, tensor: torch.Tensor) -> bool:
    """Whether `tensor` is still in the storage of `alias`; assigning to `.data` dispatches no
    op."""
    return bool(alias.memory == storage_key(tensor))


def same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both tensors have the same strides."""
    if one is other:
        return True
    if one.layout is not torch.strided or other.layout is not torch.strided:
        return one.layout is other.layout
    return one.stride() == other.stride()


def with_strides_of(emitter: Emitter, node: fx.Node, tensor: torch.Tensor) -> fx.Node:
    """`node` with the strides of the traced tensor."""
    if same_layout(tensor_of(node), tensor):
        return node
    options = {"dtype": tensor.dtype, "device": tensor.device}
    place = (list(tensor.shape), list(tensor.stride()))
    mode = mode_of(node)
    empty = emitter.call(aten.empty_strided.default, place, options, mode=mode)
    return emitter.call(aten.copy.default, (empty, node), mode=mode)


def same_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both show the same elements of one storage in the same order."""
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.storage_offset() == other.storage_offset()
    )


def same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both show the same elements of the same storage, so that views of them do, too."""
    memory = storage_key(one)
    return (
        type(one) is type(other)
        and memory is not None
        and memory == storage_key(other)
        and one.is_conj() == other.is_conj()
        and one.is_neg() == other.is_neg()
        and same_elements(one, other)
    )


def locate(aliases: Iterable[Alias], tensor: torch.Tensor) -> Alias | None:
    """A new alias for `tensor`, made from one of `aliases` in its storage."""
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
        if each.tensor is not tensor and same_elements(each.place, tensor):  # type: ignore[arg-type]
            step = ViewStep(aten.alias.default, (), {}, None, Mode())
            return Alias(each.storage, tensor, each, step)
    near[0].storage.depends_on_offset = True
    return strided(near[0] if tensor._is_view() else root_of(near[0]), tensor)


def _same_family(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    return one is not None and (one if one._base is None else one._base) is other._base


def strided(
    near: Alias, tensor: torch.Tensor, link: Link = Link.AUTOGRAD, mode: Mode | None = None
) -> Alias:
    """`tensor` as an `as_strided` of the flat memory of the family of `near`, made under `mode`."""
    try:
        alias = flat_base(near)
        *first, last = _steps_to(alias, tensor, mode or Mode())
    except CaptureError:
        around = family_root(near)
        if around.parent is None and around.storage.open is not None:
            around.storage.open()
        if around.parent is None:
            raise
        if around.has_history and link is not Link.FOREIGN:
            raise
        # The family does not cover that memory, but has no history to keep either.
        return strided(around.parent, tensor, Link.FOREIGN, mode)
    for step in first:
        alias = Alias(near.storage, None, alias, step, link=Link.FAMILY)
    return Alias(near.storage, tensor, alias, last, link=link)


def reaching_out(emitter: Emitter, viewed: Alias, tensor: torch.Tensor, mode: Mode) -> Alias:
    """`tensor` as a differentiable view of `viewed` that also covers memory outside of it.

    Gradients flow to the elements that `viewed` covers; the others are data without a derivative.
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
    alias.node = emitter.call(with_data, (history, data), mode=mode, value=tensor_of(data))
    alias.reaches_out_of = viewed
    return alias


def _steps_to(flat: Alias, tensor: torch.Tensor, mode: Mode) -> Iterator[ViewStep]:
    """The view ops that make `tensor` of a flat memory."""
    have = dtype_of(flat)
    if have != tensor.dtype:
        yield from _reinterpreted(have, tensor.dtype, mode)
    yield _window(flat, tensor, mode)
    if tensor.is_conj():
        yield ViewStep(aten._conj.default, (), {}, None, mode)
    if tensor.is_neg():
        yield ViewStep(aten._neg_view.default, (), {}, None, mode)


def _reinterpreted(have: torch.dtype, want: torch.dtype, mode: Mode) -> Iterator[ViewStep]:
    """View a flat tensor of dtype `have` as one of dtype `want`, differentiably if possible."""
    if have.is_complex and want == have.to_real():
        yield ViewStep(aten.view_as_real.default, (), {}, None, mode)
        yield ViewStep(aten.view.default, ([-1],), {}, None, mode)
    elif want.is_complex and have == want.to_real():
        yield ViewStep(aten.view.default, ([-1, 2],), {}, None, mode)
        yield ViewStep(aten.view_as_complex.default, (), {}, None, mode)
    else:
        yield ViewStep(aten.view.dtype, (want,), {}, None, mode)


def _window(flat: Alias, tensor: torch.Tensor, mode: Mode) -> ViewStep:
    """The `as_strided` that makes `tensor` of the flat memory `flat`, viewed in its dtype."""
    root = family_root(flat)
    start, count = 0, tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
    if root.place is not None:
        size = root.place.dtype.itemsize
        start = root.place.storage_offset() * size // tensor.dtype.itemsize
        count = extent(root.place) * size // tensor.dtype.itemsize
    first = tensor.storage_offset() - start
    is_known = not any(map(symbols.is_unbacked_int, (tensor.numel(), count)))
    if is_known and not is_empty(tensor) and (first < 0 or first + extent(tensor) > count):
        raise outside()
    if isinstance(flat.step, Spread):
        assert root.place is not None
        if not (is_static(root.place) and is_static(tensor) and covers(root.place, tensor)):
            raise outside()
    place = (list(tensor.shape), list(tensor.stride()), first)
    return ViewStep(aten.as_strided.default, place, {}, None, mode)


def _window_copy(
    emitter: Emitter,
    x: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> torch.Tensor:
    """`as_strided_copy`."""
    # Made below autograd, a view would have no history for the gradient of the copy.
    with above_autograd():
        window = x.as_strided(size, stride, storage_offset)
        return window.clone(memory_format=torch.contiguous_format)


def _window_replaced(
    emitter: Emitter,
    x: torch.Tensor,
    source: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> torch.Tensor:
    """`as_strided_scatter`, which writes to a copy of the whole memory."""
    if torch.is_grad_enabled() and source.requires_grad:
        raise CaptureError(
            "as_strided_scatter",
            "what it writes requires grad, and positions in the memory of the tensor it writes to "
            "are not those of a contiguous one",
            "pass contiguous() of that tensor",
            emitter.source(),
        )
    if has_internal_overlap(x):
        copy = x.clone()
    else:
        count = x.untyped_storage().nbytes() // x.dtype.itemsize
        memory = x.as_strided((count,), (1,), 0).clone()
        copy = memory.as_strided(x.shape, x.stride(), x.storage_offset())
    copy.as_strided(size, stride, storage_offset).copy_(source)
    return copy


# Ops whose arguments are positions in memory, and functions that compute what they mean.  In a
# graph, positions count from the first element of a contiguous value.  The emitter is for errors.
MEMORY_OPS: dict[object, Callable[..., torch.Tensor]] = {
    aten.as_strided_copy.default: _window_copy,
    aten.as_strided_scatter.default: _window_replaced,
}


def reads_memory_around(x: torch.Tensor, *args: object, **kwargs: object) -> bool:
    """Whether positions in the memory of `x` differ from those of a contiguous value."""
    offset = x.storage_offset()
    return not (isinstance(offset, int) and offset == 0 and x.is_contiguous())


def outside() -> CaptureError:
    """The error for an `as_strided` that leaves the memory of its tensor."""
    return CaptureError(
        "as_strided",
        "it shows memory outside of the tensor that it is a view of",
        "pass the tensor that owns the memory",
        user_line(),
    )


class Displaced:
    """Traced tensors that replace others with other strides or storage offsets."""

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[torch.Tensor, bool]] = {}

    def add(self, twin: torch.Tensor, other: torch.Tensor) -> None:
        """Note that the program runs on `twin` in place of `other`."""
        offset, has_other_strides = other.storage_offset(), other.stride() != twin.stride()
        if has_other_strides or not (isinstance(offset, int) and offset == 0):
            self._by_id[id(twin)] = (twin, has_other_strides)

    def refuse(self, alias: Alias, counts: bool) -> None:
        """Refuse an `as_strided` of a replaced tensor; `counts`: with an absolute storage
        offset."""
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
    """The memory of the family of `alias` as a flat alias, in memory order.

    The value of a node may have other strides than the traced tensor, so `as_strided` is applied
    only to values of known layout: flat ones.
    """
    root = family_root(alias)
    if root.flat is None:
        root.flat = _flattened(root)
    return root.flat


def _flattened(root: Alias) -> Alias:
    shown = root.place
    if shown is None:
        return root
    alias = root
    # Memory holds what a lazy conjugation or negation was applied to.
    for is_lazy, op in (
        (shown.is_conj(), aten._conj.default),
        (shown.is_neg(), aten._neg_view.default),
    ):
        if is_lazy:
            step = ViewStep(op, (), {}, None, Mode())
            alias = Alias(root.storage, None, alias, step, link=Link.FAMILY)
    order = dense_order(shown)
    if order is None and any(map(symbols.is_zero_in_capture, shown.shape)):
        # Strides of an empty tensor mean nothing; the graph is specialized to its being empty.
        order = list(range(shown.dim()))
    if order is None:
        place = (extent(shown), list(shown.shape), list(shown.stride()))
        spread = Spread(
            aten.as_strided.default, (*place, has_internal_overlap(shown)), {}, None, Mode()
        )
        return Alias(root.storage, None, alias, spread, link=Link.FAMILY)
    if order != list(range(len(order))):
        permute = ViewStep(aten.permute.default, (order,), {}, None, Mode())
        alias = Alias(root.storage, None, alias, permute, link=Link.FAMILY)
    flatten = ViewStep(aten.view.default, ([-1],), {}, None, Mode())
    return Alias(root.storage, None, alias, flatten, link=Link.FAMILY)


def extent(tensor: torch.Tensor) -> int:
    """The number of elements of memory from the first to the last that `tensor` shows."""
    return 0 if is_empty(tensor) else 1 + offset_of_last(tensor.shape, tensor.stride())


def is_empty(tensor: torch.Tensor) -> bool:
    """Whether there are no elements; a size that depends on data is taken not to be 0."""
    count = tensor.numel()
    return not symbols.is_unbacked_int(count) and count == 0


def dense_order(tensor: torch.Tensor) -> list[int] | None:
    """The axes from outermost to innermost in memory; None unless the tensor is dense."""
    if tensor.layout is not torch.strided:
        return None
    sizes: list[object] = list(tensor.shape)
    if any(type(size) is int and size == 0 for size in sizes):
        return list(range(tensor.dim()))
    strides = tensor.stride()
    axes = sorted(range(tensor.dim()), key=lambda axis: (-symbols.hint(strides[axis]), axis))
    expected = as_torch_computes = 1
    for axis in reversed(axes):
        size, stride = tensor.shape[axis], strides[axis]
        if not any(symbols.same_number(stride, each) for each in (expected, as_torch_computes)):
            # Whether sizes that depend on data are 1, or equal, is not known.
            if any(map(symbols.is_unbacked_int, (size, stride, expected))):
                return None
            if size != 1 and stride != expected:
                return None
        expected *= size
        as_torch_computes *= torch.sym_max(size, 1) if symbols.is_unbacked_int(size) else size
    return axes


def root_of(alias: Alias) -> Alias:
    """The root of the storage of `alias`."""
    return list(alias.ancestors())[-1]


def family_root(alias: Alias) -> Alias:
    """The alias that starts the family of `alias`, whose history it shares."""
    return next(each for each in alias.ancestors() if each.starts_family)


def dtype_of(flat: Alias) -> torch.dtype:
    """The dtype of a flat alias."""
    root = family_root(flat)
    dtype = root.dtype if root.place is None else root.place.dtype
    assert dtype is not None
    return dtype


def covers(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether `one` shows all memory that `other` shows; assumed so for symbolic sizes."""
    if not (is_static(one) and is_static(other)) or other.numel() == 0:
        return True
    (start, stop), (begin, end) = range_of(one), range_of(other)
    if begin < start or end > stop:
        return False
    return bool(shown_by(one, other).all())


def shown_by(one: torch.Tensor, other: torch.Tensor) -> npt.NDArray[np.bool_]:
    """For each byte of `other`, whether `one`, a tensor over the same storage, shows it, too."""
    (start, stop), (begin, end) = range_of(one), range_of(other)
    first = min(start, begin)
    memory = np.zeros(max(stop, end) - first, dtype=np.bool_)

    def place(tensor: torch.Tensor) -> npt.NDArray[np.bool_]:
        size = tensor.dtype.itemsize
        steps = (*(step * size for step in tensor.stride()), 1)
        at = memory[tensor.storage_offset() * size - first :]
        return np.lib.stride_tricks.as_strided(at, (*tensor.shape, size), steps)

    place(one)[...] = True
    return place(other)


def elements_of(
    memory: npt.NDArray[np.int64], tensor: torch.Tensor, first: int
) -> npt.NDArray[np.int64]:
    """A view of `memory`, an array with an entry for each element from `first` on, as `tensor`
    shows it."""
    steps = [step * memory.itemsize for step in tensor.stride()]
    return np.lib.stride_tricks.as_strided(
        memory[tensor.storage_offset() - first :], tuple(tensor.shape), steps
    )


def is_static(tensor: torch.Tensor) -> bool:
    """Whether sizes, strides and offset are plain integers."""
    place = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    return all(isinstance(each, int) for each in place)


def range_of(tensor: torch.Tensor) -> tuple[int | torch.SymInt, int | torch.SymInt]:
    """The bytes of its storage, from and to, that `tensor` spans."""
    first = tensor.storage_offset()
    size = tensor.dtype.itemsize
    return first * size, (first + extent(tensor)) * size
