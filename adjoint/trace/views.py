"""View ops and their inverses: a write through a view becomes a new value of its base."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import fx

from adjoint.errors import CaptureError
from adjoint.graph.metadata import Mode, tensor_of
from adjoint.open_types import OpArguments, OpKeywords
from adjoint.torch_private.operators import OpOverload
from adjoint.trace.emission import Emitter

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class ViewStep:
    """One view op that the program ran: how an alias is computed from its parent."""

    op: OpOverload
    args: OpArguments
    kwargs: OpKeywords
    output: int | None
    """The index of the result, for ops that return several views (`split`, `unbind`)."""
    mode: Mode

    def emit(self, emitter: Emitter, viewed: fx.Node, mode: Mode) -> fx.Node:
        """This view of `viewed`."""
        node = emitter.view(self.op, viewed, self.args, self.kwargs, mode)
        return node if self.output is None else emitter.item(node, self.output)


@dataclass(frozen=True, eq=False)
class Spread(ViewStep):
    """The memory from the first to the last element of a tensor that is not dense, as a flat
    tensor.

    Elements of the memory that the tensor does not show are 0.
    """

    def emit(self, emitter: Emitter, viewed: fx.Node, mode: Mode) -> fx.Node:
        extent, _, _, repeats = self.args
        value = tensor_of(viewed)
        options = {"dtype": value.dtype, "device": value.device}
        places = emitter.reshape(self._places(emitter, value.device), [-1], Mode())
        new = emitter.reshape(viewed, [-1], mode)
        nothing = emitter.call(aten.zeros.default, ([extent],), options, Mode())
        repeats &= value.is_floating_point() or value.is_complex()
        if repeats:
            # Elements that share memory share the gradient equally, as in eager.
            ones = emitter.call(aten.ones.default, ([tensor_of(places).numel()],), options, Mode())
            counts = emitter.call(
                aten.index_put.default, (nothing, [places], ones, True), {}, Mode()
            )
            shares = emitter.call(aten.index.Tensor, (counts, [places]), {}, Mode())
            new = emitter.call(aten.div.Tensor, (new, shares), {}, mode)
        return emitter.call(aten.index_put.default, (nothing, [places], new, repeats), {}, mode)

    def _places(self, emitter: Emitter, device: torch.device) -> fx.Node:
        """The index in the flat memory of each element of the tensor."""
        _, shape, stride, _ = self.args
        options = {"dtype": torch.int64, "device": device}
        places = emitter.call(aten.zeros.default, ([1] * len(shape),), options, Mode())
        for axis, (size, step) in enumerate(zip(shape, stride, strict=True)):
            count = emitter.call(aten.arange.default, (size,), options, Mode())
            along = [size if each == axis else 1 for each in range(len(shape))]
            steps = emitter.call(aten.mul.Scalar, (count, step), {}, Mode())
            steps = emitter.reshape(steps, along, Mode())
            places = emitter.call(aten.add.Tensor, (places, steps), {}, Mode())
        return places

    def undo(self, emitter: Emitter, new: fx.Node, mode: Mode) -> fx.Node:
        """The value of the tensor whose memory is `new`."""
        _, shape, stride, _ = self.args
        return emitter.call(aten.as_strided.default, (new, shape, stride, 0), {}, mode)


def undo(
    emitter: Emitter, steps: Sequence[ViewStep], viewed: fx.Node, new: fx.Node, mode: Mode
) -> fx.Node:
    """`viewed`, with the elements that the composition of `steps` shows replaced by `new`."""
    if len(steps) > 1:
        return undo_at_once(emitter, steps, viewed, new, mode)
    if isinstance(steps[0], Spread):
        return steps[0].undo(emitter, new, mode)
    inverse = INVERSES.get(steps[0].op, undo_by_index)
    return inverse(emitter, steps[0], viewed, new, mode)


def has_internal_overlap(tensor: torch.Tensor) -> bool:
    """Whether several elements share memory, as in expanded tensors and sliding windows."""
    if tensor.layout is not torch.strided:
        return False
    axes: list[tuple[int | torch.SymInt, int | torch.SymInt]]
    axes = list(zip(tensor.stride(), tensor.shape, strict=True))
    if not all(isinstance(step, int) for step, _ in axes):
        # A comparison of symbolic strides would add a guard.
        return any(isinstance(step, int) and step == 0 for step, _ in axes)
    reached: int | torch.SymInt = 0
    for step, size in sorted(axes, key=lambda axis: axis[0]):
        if isinstance(size, int) and size <= 1:
            continue
        if not isinstance(reached, int):
            return False
        if step <= reached:
            return not any(isinstance(each, int) and each == 0 for _, each in axes)
        reached += (size - 1) * step
    return False


Inverse: TypeAlias = Callable[[Emitter, ViewStep, fx.Node, fx.Node, Mode], fx.Node]


def undo_by_index(
    emitter: Emitter, step: ViewStep, viewed: fx.Node, new: fx.Node, mode: Mode
) -> fx.Node:
    """The inverse of any view: takes the view of the elements' indices, and writes at these."""
    return undo_at_once(emitter, [step], viewed, new, mode)


def undo_at_once(
    emitter: Emitter, steps: Sequence[ViewStep], viewed: fx.Node, new: fx.Node, mode: Mode
) -> fx.Node:
    """`viewed`, with the elements that the composition of `steps` shows replaced by `new`.

    Where a view has internal overlap, its steps cannot be undone one by one: of the elements that
    share memory, only some were written.
    """
    if any(step.op in _REINTERPRETING for step in steps) and len(steps) > 1:
        raise CaptureError(
            "a write",
            "its tensor is seen in another dtype, and as a part of one that repeats elements",
            "write to the tensor that was expanded",
            emitter.source(),
        )
    value = tensor_of(viewed)
    options = {"dtype": torch.int64, "device": value.device}
    count = value.numel()
    numbers = emitter.call(aten.arange.default, (count,), options, Mode())
    places = emitter.reshape(numbers, value.shape, Mode())
    for step in steps:
        places = step.emit(emitter, places, Mode())
    flat = emitter.reshape(viewed, [-1], mode)
    written = emitter.call(
        aten.index_put.default,
        (flat, [emitter.reshape(places, [-1], Mode())], emitter.reshape(new, [-1], mode)),
        mode=mode,
    )
    return emitter.reshape(written, value.shape, mode)


def _identity(e: Emitter, step: ViewStep, viewed: fx.Node, new: fx.Node, mode: Mode) -> fx.Node:
    return new


def _undo_reshape(e: Emitter, step: ViewStep, viewed: fx.Node, new: fx.Node, mode: Mode) -> fx.Node:
    return e.reshape(new, tensor_of(viewed).shape, mode)


def _undo_expand(e: Emitter, step: ViewStep, viewed: fx.Node, new: fx.Node, mode: Mode) -> fx.Node:
    if tensor_of(new).numel() == tensor_of(viewed).numel():
        return _undo_reshape(e, step, viewed, new, mode)
    return undo_by_index(e, step, viewed, new, mode)


def _scatter(op: OpOverload) -> Inverse:
    """The inverse `op(viewed, new, *args)`, which writes where the view with these arguments
    reads."""

    def undo(e: Emitter, step: ViewStep, viewed: fx.Node, new: fx.Node, mode: Mode) -> fx.Node:
        return e.call(op, (viewed, new, *step.args), step.kwargs, mode)

    return undo


def _undo_permute(e: Emitter, step: ViewStep, viewed: fx.Node, new: fx.Node, mode: Mode) -> fx.Node:
    order = step.args[0]
    back = [0] * len(order)
    for position, axis in enumerate(order):
        back[axis % len(order)] = position
    return e.call(aten.permute.default, (new, back), mode=mode)


def _own_inverse(e: Emitter, step: ViewStep, viewed: fx.Node, new: fx.Node, mode: Mode) -> fx.Node:
    return e.call(step.op, (new, *step.args), step.kwargs, mode)


def _undo_unbind(e: Emitter, step: ViewStep, viewed: fx.Node, new: fx.Node, mode: Mode) -> fx.Node:
    axis = step.args[0] if step.args else 0
    return e.call(aten.select_scatter.default, (viewed, new, axis, step.output), mode=mode)


def _undo_split(e: Emitter, step: ViewStep, viewed: fx.Node, new: fx.Node, mode: Mode) -> fx.Node:
    assert step.output is not None
    sizes = step.args[0]
    axis = step.args[1] if len(step.args) > 1 else step.kwargs.get("dim", 0)
    before = sizes[: step.output] if isinstance(sizes, (list, tuple)) else [sizes] * step.output
    start = sum(before)
    stop = start + tensor_of(new).shape[axis]
    return e.call(aten.slice_scatter.default, (viewed, new, axis, start, stop), mode=mode)


def _undo_view_dtype(
    e: Emitter, step: ViewStep, viewed: fx.Node, new: fx.Node, mode: Mode
) -> fx.Node:
    return e.view(aten.view.dtype, new, (tensor_of(viewed).dtype,), {}, mode)


def _inverse_view(op: OpOverload) -> Inverse:
    def undo(e: Emitter, step: ViewStep, viewed: fx.Node, new: fx.Node, mode: Mode) -> fx.Node:
        return e.view(op, new, (), {}, mode)

    return undo


# Views that reinterpret memory: another dtype, conjugated or negated.
_REINTERPRETING = frozenset(
    {
        aten.view.dtype,
        aten.view_as_real.default,
        aten.view_as_complex.default,
        aten._conj.default,
        aten._neg_view.default,
    }
)

# Operators whose results share memory with the argument, but are no views for autograd; and the
# view op that shows the same.
UNSAFE_SPLITS: dict[OpOverload, OpOverload] = {
    aten.unsafe_split.Tensor: aten.split.Tensor,
    aten.unsafe_split_with_sizes.default: aten.split_with_sizes.default,
}

INVERSES: dict[object, Inverse] = {
    aten.detach.default: _identity,
    aten.alias.default: _identity,
    aten.lift_fresh.default: _identity,
    aten.select.int: _scatter(aten.select_scatter.default),
    aten.slice.Tensor: _scatter(aten.slice_scatter.default),
    aten.diagonal.default: _scatter(aten.diagonal_scatter.default),
    aten.as_strided.default: _scatter(aten.as_strided_scatter.default),
    aten.view.default: _undo_reshape,
    aten._unsafe_view.default: _undo_reshape,
    aten._reshape_alias.default: _undo_reshape,
    aten.unsqueeze.default: _undo_reshape,
    aten.squeeze.default: _undo_reshape,
    aten.squeeze.dim: _undo_reshape,
    aten.squeeze.dims: _undo_reshape,
    aten.expand.default: _undo_expand,
    aten.permute.default: _undo_permute,
    aten.t.default: _own_inverse,
    aten.transpose.int: _own_inverse,
    aten.unbind.int: _undo_unbind,
    aten.split.Tensor: _undo_split,
    aten.split_with_sizes.default: _undo_split,
    aten.view.dtype: _undo_view_dtype,
    aten.view_as_real.default: _inverse_view(aten.view_as_complex.default),
    aten.view_as_complex.default: _inverse_view(aten.view_as_real.default),
    aten._conj.default: _inverse_view(aten._conj_physical.default),
    aten._neg_view.default: _inverse_view(aten.neg.default),
}
