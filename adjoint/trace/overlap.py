"""Writes that are undefined because tensors overlap: internally, or partially with one another.

Eager refuses the writes that it recognizes as such.  Fake tensors have no memory, so torch's own
check does not see them; it is repeated here.  Eager runs the other writes element by element.  If
each element is read before it is written, as in `x[:, :-1] = x[:, 1:]` for columns of a matrix, the
write means the same as a pure op; otherwise the call is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from adjoint.torch_private.fake import storage_key
from adjoint.torch_private.operators import OpOverload
from adjoint.trace.geometry import (
    dense_order,
    elements_of,
    extent,
    is_static,
    range_of,
    same_elements,
    shown_by,
)
from adjoint.trace.views import has_internal_overlap

# Allowed by eager: they write the same value everywhere, or each element from itself.
_ALLOWED = frozenset(
    f"aten::{name}"
    for name in (
        "fill_",
        "zero_",
        "masked_fill_",
        "index_fill_",
        "fill_diagonal_",
        "tril_",
        "triu_",
    )
)

# They read elements at other places than they write.  If both are in one tensor, eager either
# refuses the call, or has overwritten elements that it has still to read.
_FROM_OTHER_PLACES = frozenset(
    f"aten::{name}"
    for name in (
        "_index_put_impl_",
        "addbmm_",
        "addmm_",
        "addmv_",
        "baddbmm_",
        "bmm",
        "cat",
        "gather",
        "index_add_",
        "index_copy_",
        "index_put_",
        "index_reduce_",
        "index_select",
        "masked_scatter_",
        "mm",
        "mv",
        "put_",
        "scatter_",
        "scatter_add_",
        "scatter_reduce_",
        "take",
    )
)


def conflict(op: OpOverload, named: dict[str, object], written: Sequence[str]) -> str | None:
    """Why eager refuses this call for an overlap of its arguments; None if it does not."""
    name = op._schema.name
    tensors = [each for value in named.values() for each in _tensors(value)]
    if op.namespace != "aten" or (name in _ALLOWED and not _recorded(tensors)):
        return None
    for argument in written:
        for index, tensor in enumerate(_tensors(named[argument])):
            if has_internal_overlap(tensor):
                return "several elements of the tensor that it writes to lie in one place"
            for other in _read(named, argument, index):
                if name == "aten::copy_" and other.numel() == 1 and dense_order(tensor) is None:
                    continue  # The element read is rewritten unchanged; eager does not check.
                if name in _ALLOWED and other.dim() == 0:
                    continue  # It is the value, which is read before anything is written.
                if name in _FROM_OTHER_PLACES and _are_same(tensor, other):
                    return "it reads the tensor that it writes to, in another order"
                if partially_overlap(tensor, other) and not (
                    _is_elementwise(op) and is_read_before_written(tensor, other)
                ):
                    return "a tensor that it reads overlaps in part with the one it writes to"
    return None


def _are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are known to be the same elements, of which there are some."""
    if one is other:
        return not (is_static(one) and one.numel() == 0)
    if storage_key(one) is None or storage_key(one) != storage_key(other):
        return False
    return is_static(one) and is_static(other) and same_elements(one, other) and one.numel() > 0


def _is_elementwise(op: OpOverload) -> bool:
    """Whether each element of the result is computed from the elements at its place alone."""
    return torch.Tag.pointwise in op.tags or op._schema.name == "aten::copy_"


def is_read_before_written(written: torch.Tensor, read: torch.Tensor) -> bool:
    """Whether an elementwise op reads no element that it has written before.

    It takes elements in the order in which those that it writes lie in memory.  Not where both
    tensors are dense: eager refuses these.
    """
    are_dense = dense_order(written) is not None and dense_order(read) is not None
    if are_dense or written.dtype != read.dtype or read.dim() > written.dim():
        return False
    first = min(written.storage_offset(), read.storage_offset())
    count = max(each.storage_offset() + extent(each) for each in (written, read)) - first
    # Numbered in the order in which what is written lies in memory.
    order = sorted(range(written.dim()), key=lambda axis: -written.stride()[axis])
    numbers = np.arange(written.numel()).reshape([written.shape[axis] for axis in order])
    numbers = numbers.transpose(np.argsort(order))
    writes = np.full(int(count), written.numel())
    elements_of(writes, written, int(first))[...] = numbers
    reads = np.broadcast_to(elements_of(writes, read, int(first)), written.shape)
    return bool((reads >= numbers).all())


def is_in_sequence(named: dict[str, object], written: Sequence[str]) -> bool:
    """Whether one of several tensors written to overlaps another argument of the op."""
    several = [t for name in written for t in _tensors(named[name])]
    if len(several) < 2:
        return False
    everything = [t for value in named.values() for t in _tensors(value)]
    memories = [storage_key(t) for t in several]
    return any(
        key is not None and sum(_touch(mine, other) for other in everything) > 1
        for mine, key in zip(several, memories, strict=True)
    )


def _touch(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the ranges of memory of two tensors intersect."""
    if storage_key(one) != storage_key(other):
        return False
    (start, stop), (begin, end) = range_of(one), range_of(other)
    return bool(start < end and begin < stop)


def _read(named: dict[str, object], written: str, index: int) -> Iterator[torch.Tensor]:
    """The tensors that are read when the `index`-th tensor of the argument `written` is written."""
    several = not isinstance(named[written], torch.Tensor)
    for name, value in named.items():
        tensors = _tensors(value) if name != written else []
        yield from tensors[index : index + 1] if several and len(tensors) > 1 else tensors


def _recorded(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether autograd records the write; then even a repeated write of one value matters."""
    with contextlib.suppress(RuntimeError):
        return torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
    return True


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, (list, tuple)):
        return [each for each in value if isinstance(each, torch.Tensor)]
    return [value] if isinstance(value, torch.Tensor) else []


def partially_overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors share elements, but are not the same elements in the same order."""
    if one is other or storage_key(one) is None or storage_key(one) != storage_key(other):
        return False
    if not (is_static(one) and is_static(other)) or same_elements(one, other):
        return False
    if not _touch(one, other):
        return False
    if dense_order(one) is not None and dense_order(other) is not None:
        return True
    return bool(shown_by(one, other).any())
