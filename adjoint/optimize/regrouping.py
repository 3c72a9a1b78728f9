"""Broadcasting to a shape, where it is known how to broadcast to another shape of as many elements.

Scores of attention are reshaped between masks: windows of an image have an axis of their own, and
so have queries that share a head of keys.  A mask that was added in one shape is added in another:
axes that are one in the other shape become one, and of those only what the mask repeats is written
out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from adjoint.torch_private.symbols import same_number

# Which axes of one shape are which of the other.
Group = tuple[range, range]


def groups_of(shape: Sequence[int], target: Sequence[int]) -> list[Group] | None:
    """The axes of `shape` and of `target` with as many elements, in order; None if there are none.

    Reshaping one to the other keeps the order of elements.
    """
    found: list[Group] = []
    here = there = 0
    while here < len(shape) and there < len(target):
        group = _first_group(shape, target, here, there)
        if group is None:
            return None
        found.append(group)
        here, there = group[0].stop, group[1].stop
    return found if (here, there) == (len(shape), len(target)) else None


def _first_group(
    shape: Sequence[int], target: Sequence[int], here: int, there: int
) -> Group | None:
    ends = [
        (stop, other)
        for stop in range(here + 1, len(shape) + 1)
        for other in range(there + 1, len(target) + 1)
    ]
    for stop, other in sorted(ends, key=sum):
        if same_number(math.prod(shape[here:stop]), math.prod(target[there:other])):
            return range(here, stop), range(there, other)
    return None


def broadcast_to_another(
    value: torch.Tensor, shape: Sequence[int], target: Sequence[int]
) -> torch.Tensor:
    """What is broadcast to `target` as `value` is to `shape`, with as many axes as `target`."""
    while value.dim() < len(shape):
        value = value.unsqueeze(0)
    groups = groups_of(shape, target)
    assert groups is not None
    expanded: list[int] = []
    sizes: list[int] = []
    for axes, others in groups:
        given = [value.shape[axis] for axis in axes]
        if all(_is_one(size) for size in given):
            expanded += given
            sizes += [1] * len(others)
        else:
            expanded += [shape[axis] for axis in axes]
            sizes += [target[axis] for axis in others]
    return value.expand(expanded).reshape(sizes)


def _is_one(size: object) -> bool:
    return isinstance(size, int) and size == 1
