"""What runs have observed: results of ops whose dtypes or strides differ from those of fakes.

`learn` remembers the difference for the rest of the process, and `fake_call` then predicts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from adjoint.open_types import TorchValue

# Kinds of calls whose results are remembered.
MAX_LEARNED_CALLS = 4096


@dataclass(frozen=True)
class Facts:
    """Dtype and dimension order of a tensor that an op returned, whatever its sizes."""

    dtype: torch.dtype
    order: tuple[int, ...] | None
    """Dimensions from largest to smallest stride; None: not dense, or elements overlap."""

    def applied(self, fake: object) -> TorchValue:
        """`fake`, with these facts."""
        if not isinstance(fake, torch.Tensor):
            return fake
        strides: list[int | torch.SymInt] = list(fake.stride())
        if self.order is not None and len(self.order) == fake.dim():
            step: int | torch.SymInt = 1
            for dim in reversed(self.order):
                strides[dim] = step
                step = step * _at_least_one(fake.shape[dim])
        return fake.new_empty_strided(fake.shape, strides, dtype=self.dtype)


def _at_least_one(size: int | torch.SymInt) -> int | torch.SymInt:
    return max(size, 1) if isinstance(size, int) else size


def facts_of(tensor: object) -> Facts | None:
    """The facts about a result; None if it is no strided tensor."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return None
    return Facts(tensor.dtype, layout_of(tensor))


def layout_of(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Dimensions from largest to smallest stride, if the tensor is dense in that order."""
    strides, shape = tensor.stride(), tensor.shape
    order = sorted(range(tensor.dim()), key=lambda dim: (-int(strides[dim]), dim))
    step = 1
    for dim in reversed(order):
        if shape[dim] != 1:
            if strides[dim] != step:
                return None
            step *= shape[dim]
    return tuple(order)


_LEARNED: dict[object, tuple[Facts | None, ...]] = {}


_OPS_LEARNED: set[object] = set()


_RETURN_ARGUMENTS: set[object] = set()


def learn(op: object, args: Sequence[object], kwargs: dict[str, object], result: object) -> bool:
    """Remember what `op` returned for arguments of this kind; False if nothing new was learned."""
    leaves = tree_leaves(result)
    if any(isinstance(leaf, torch.Tensor) and leaf.is_quantized for leaf in leaves):
        return False  # A fake of a quantized dtype cannot be made with strides.
    key, facts = _key(op, args, kwargs), tuple(map(facts_of, leaves))
    if _LEARNED.get(key) == facts or len(_LEARNED) >= MAX_LEARNED_CALLS:
        return False
    _LEARNED[key] = facts
    _OPS_LEARNED.add(op)
    return True


def as_learned(
    op: object, args: Sequence[object], kwargs: dict[str, object], result: object
) -> object:
    """The fake `result` of a call, with what runs have observed of such calls."""
    if not _LEARNED or op not in _OPS_LEARNED:
        return result
    facts = _LEARNED.get(_key(op, args, kwargs))
    if facts is None:
        return result
    leaves, spec = tree_flatten(result)
    return tree_unflatten(
        [
            leaf if fact is None else fact.applied(leaf)
            for leaf, fact in zip(leaves, facts, strict=True)
        ],
        spec,
    )


def is_known(op: object, args: Sequence[object], kwargs: dict[str, object], result: object) -> bool:
    """Whether these are the facts that were learned for arguments of this kind."""
    facts = tuple(map(facts_of, tree_leaves(result)))
    return bool(_LEARNED) and _LEARNED.get(_key(op, args, kwargs)) == facts


def learn_alias(op: object) -> bool:
    """Remember that a result of `op` may alias an argument; False if that was known."""
    if op in _RETURN_ARGUMENTS:
        return False
    _RETURN_ARGUMENTS.add(op)
    return True


def returns_argument(op: object) -> bool:
    """Whether a result of `op` was seen to alias an argument, which the schema does not declare."""
    return op in _RETURN_ARGUMENTS


def learned() -> str:
    """Everything that was learned, as text."""
    if not _LEARNED and not _RETURN_ARGUMENTS:
        return ""
    return "\n".join([*sorted(map(str, _LEARNED.items())), *sorted(map(str, _RETURN_ARGUMENTS))])


def forget() -> None:
    """Discard everything that was learned."""
    _LEARNED.clear()
    _OPS_LEARNED.clear()
    _RETURN_ARGUMENTS.clear()


def _key(op: object, args: Sequence[object], kwargs: dict[str, object]) -> object:
    return op, tuple(map(_kind, tree_leaves((args, kwargs))))


def _kind(leaf: object) -> object:
    """The properties of an argument, except sizes, that dtypes and strides of results depend on."""
    if isinstance(leaf, torch.Tensor):
        if leaf.layout is not torch.strided:
            return leaf.dtype, leaf.device.type, leaf.layout
        return leaf.dtype, leaf.device.type, leaf.dim(), _rough_order(leaf)
    if leaf is None or isinstance(leaf, (bool, str, torch.dtype, torch.memory_format)):
        return leaf
    return type(leaf).__name__.removeprefix("Sym").lower()


def _rough_order(tensor: torch.Tensor) -> object:
    if any(not isinstance(number, int) for number in (*tensor.shape, *tensor.stride())):
        # Of symbolic strides, only contiguity can be recognized without a guard.
        return tuple(range(tensor.dim())) if _is_contiguous(tensor) else None
    return layout_of(tensor)


def _is_contiguous(tensor: torch.Tensor) -> bool:
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if not statically_known_true(stride == step):
            return False
        step = step * size
    return True
