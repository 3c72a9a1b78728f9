"""View ops: how each is undone, so that a write through a view becomes a new value of its base."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from adjoint.errors import CaptureError
from adjoint.graph.metadata import Mode
from adjoint.torch_private.operators import OpOverload
from adjoint.trace.emission import Emitter

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class ViewStep:
    """One view op that the program ran: how an alias is obtained from what it is a view of."""

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: int | None
    """Which of several views (`split`, `unbind`) is meant."""
    mode: Mode

    def emit(self, emitter: Emitter, viewed: fx.Node, mode: Mode) -> fx.Node:
        """This view of `viewed`."""
        node = emitter.view(self.op, viewed, self.args, self.kwargs, mode)
        return node if self.output is None else emitter.item(node, self.output)


@dataclass(frozen=True, eq=False)
class Spread(ViewStep):
    """All memory from the first element that a tensor shows to its last, as one axis.

    What lies in the gaps of the tensor is no part of its value, and is 0 here.
    """

    def emit(self, emitter: Emitter, viewed: fx.Node, mode: Mode) -> fx.Node:
        extent, _, _, repeats = self.args
        value = viewed.meta["val"]
        options = {"dtype": value.dtype, "device": value.device}
        places = emitter.reshape(self._places(emitter, value.device), [-1], Mode())
        new = emitter.reshape(viewed, [-1], mode)
        nothing = emitter.call(aten.zeros.default, ([extent],), options, Mode())
        repeats &= value.is_floating_point() or value.is_complex()
        if repeats:
            # Of elements in one place each has its share of the gradient, as eager has it.
            ones = emitter.call(aten.ones.default, ([places.meta["val"].numel()],), options, Mode())
            counts = emitter.call(
                aten.index_put.default, (nothing, [places], ones, True), {}, Mode()
            )
            shares = emitter.call(aten.index.Tensor, (counts, [places]), {}, Mode())
            new = emitter.call(aten.div.Tensor, (new, shares), {}, mode)
        return emitter.call(aten.index_put.default, (nothing, [places], new, repeats), {}, mode)

    def _places(self, emitter: Emitter, device: torch.device) -> fx.Node:
        """Where in the memory each element of the tensor is."""
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
        """The value of the tensor, of which this is the memory."""
        _, shape, stride, _ = self.args
        return emitter.call(aten.as_strided.default, (new, shape, stride, 0), {}, mode)


def undo(
    emitter: Emitter, steps: Sequence[ViewStep], viewed: fx.Node, new: fx.Node, mode: Mode
) -> fx.Node:
    """`viewed` with the elements that `steps`, one after the other, show replaced by `new`."""
    if len(steps) > 1:
        return undo_at_once(emitter, steps, viewed, new, mode)
    if isinstance(steps[0], Spread):
        return steps[0].undo(emitter, new, mode)
    inverse = INVERSES.get(steps[0].op, undo_by_index)
    return inverse(emitter, steps[0], viewed, new, mode)


def has_internal_overlap(tensor: torch.Tensor) -> bool:
    """Not all of its elements are in places of their own (an expanded tensor, sliding windows)."""
    if tensor.layout is not torch.strided:
        return False
    axes: list[tuple[Any, Any]] = list(zip(tensor.stride(), tensor.shape, strict=True))
    if not all(isinstance(step, int) for step, _ in axes):
        # To compare symbols would be to decide what they are.
        return any(isinstance(step, int) and step == 0 for step, _ in axes)
    reached: Any = 0
    for step, size in sorted(axes, key=lambda axis: axis[0]):
        if isinstance(size, int) and size <= 1:
            continue
        if not isinstance(reached, int):
            return False
        if step <= reached:
            return not any(isinstance(each, int) and each == 0 for _, each in axes)
        reached += (size - 1) * step
    return False


Inverse = Callable[[Emitter, ViewStep, fx.Node, fx.Node, Mode], fx.Node]


def undo_by_index(
    emitter: Emitter, step: ViewStep, viewed: fx.Node, new: fx.Node, mode: Mode
) -> fx.Node:
    """Any view that moves elements: number them, take the view of the numbers, write there."""
    return undo_at_once(emitter, [step], viewed, new, mode)


def undo_at_once(
    emitter: Emitter, steps: Sequence[ViewStep], viewed: fx.Node, new: fx.Node, mode: Mode
) -> fx.Node:
    """`viewed` with the elements that the last of `steps` shows replaced by `new`.

    One by one the steps cannot be undone where a view shows an element more than once: of those
    that stand for it, only the ones that were written are new.
    """
    if any(step.op in _READ_OTHERWISE for step in steps) and len(steps) > 1:
        raise CaptureError(
            "a write",
            "its tensor is seen in another dtype, and as a part of one that repeats elements",
            "write to the tensor that was expanded",
            emitter.source(),
        )
    value = viewed.meta["val"]
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


def _reshaped(e: Emitter, step: ViewStep, viewed: fx.Node, new: fx.Node, mode: Mode) -> fx.Node:
    return e.reshape(new, viewed.meta["val"].shape, mode)


def _expanded(e: Emitter, step: ViewStep, viewed: fx.Node, new: fx.Node, mode: Mode) -> fx.Node:
    if new.meta["val"].numel() == viewed.meta["val"].numel():
        return _reshaped(e, step, viewed, new, mode)
    return undo_by_index(e, step, viewed, new, mode)


def _scattered(op: OpOverload) -> Inverse:
    """`op(viewed, new, *args)` writes where the view with the same arguments reads."""

    def undo(e: Emitter, step: ViewStep, viewed: fx.Node, new: fx.Node, mode: Mode) -> fx.Node:
        return e.call(op, (viewed, new, *step.args), step.kwargs, mode)

    return undo


def _permuted(e: Emitter, step: ViewStep, viewed: fx.Node, new: fx.Node, mode: Mode) -> fx.Node:
    order = step.args[0]
    back = [0] * len(order)
    for position, axis in enumerate(order):
        back[axis % len(order)] = position
    return e.call(aten.permute.default, (new, back), mode=mode)


def _same_again(e: Emitter, step: ViewStep, viewed: fx.Node, new: fx.Node, mode: Mode) -> fx.Node:
    return e.call(step.op, (new, *step.args), step.kwargs, mode)


def _unbound(e: Emitter, step: ViewStep, viewed: fx.Node, new: fx.Node, mode: Mode) -> fx.Node:
    axis = step.args[0] if step.args else 0
    return e.call(aten.select_scatter.default, (viewed, new, axis, step.output), mode=mode)


def _split(e: Emitter, step: ViewStep, viewed: fx.Node, new: fx.Node, mode: Mode) -> fx.Node:
    assert step.output is not None
    sizes = step.args[0]
    axis = step.args[1] if len(step.args) > 1 else step.kwargs.get("dim", 0)
    before = sizes[: step.output] if isinstance(sizes, (list, tuple)) else [sizes] * step.output
    start = sum(before)
    stop = start + new.meta["val"].shape[axis]
    return e.call(aten.slice_scatter.default, (viewed, new, axis, start, stop), mode=mode)


def _dtype_back(e: Emitter, step: ViewStep, viewed: fx.Node, new: fx.Node, mode: Mode) -> fx.Node:
    return e.view(aten.view.dtype, new, (viewed.meta["val"].dtype,), {}, mode)


def _by(op: OpOverload) -> Inverse:
    def undo(e: Emitter, step: ViewStep, viewed: fx.Node, new: fx.Node, mode: Mode) -> fx.Node:
        return e.view(op, new, (), {}, mode)

    return undo


# Views that show the same memory as elements of another kind.
_READ_OTHERWISE = frozenset(
    {
        aten.view.dtype,
        aten.view_as_real.default,
        aten.view_as_complex.default,
        aten._conj.default,
        aten._neg_view.default,
    }
)

INVERSES: dict[Any, Inverse] = {
    aten.detach.default: _identity,
    aten.alias.default: _identity,
    aten.lift_fresh.default: _identity,
    aten.select.int: _scattered(aten.select_scatter.default),
    aten.slice.Tensor: _scattered(aten.slice_scatter.default),
    aten.diagonal.default: _scattered(aten.diagonal_scatter.default),
    aten.as_strided.default: _scattered(aten.as_strided_scatter.default),
    aten.view.default: _reshaped,
    aten._unsafe_view.default: _reshaped,
    aten._reshape_alias.default: _reshaped,
    aten.unsqueeze.default: _reshaped,
    aten.squeeze.default: _reshaped,
    aten.squeeze.dim: _reshaped,
    aten.squeeze.dims: _reshaped,
    aten.expand.default: _expanded,
    aten.permute.default: _permuted,
    aten.t.default: _same_again,
    aten.transpose.int: _same_again,
    aten.unbind.int: _unbound,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    aten.view.dtype: _dtype_back,
    aten.view_as_real.default: _by(aten.view_as_complex.default),
    aten.view_as_complex.default: _by(aten.view_as_real.default),
    aten._conj.default: _by(aten._conj_physical.default),
    aten._neg_view.default: _by(aten.neg.default),
}
