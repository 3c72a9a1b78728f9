"""What sizes and strides alone say about the memory of a tensor."""

from __future__ import annotations

from collections.abc import Sequence


def span_of(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements from the first to the last of a tensor in memory, both included."""
    if 0 in shape:
        return 0
    return 1 + offset_of_last(shape, strides)


def offset_of_last(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements the last one is behind the first in memory, if no axis is empty."""
    return sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def repeats_elements(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether several elements along an axis are one element in memory, as `expand` makes them."""
    return any(size > 1 and step == 0 for size, step in zip(shape, strides, strict=True))
