"""Changing the caller's inputs as the program did: metadata, data, `requires_grad`, versions."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.autograd.function import FunctionCtx

from adjoint.graph.calling import (
    AssignData,
    BaseOf,
    CallingConvention,
    Constant,
    FromCaller,
    FromGraph,
    FromRecipe,
    MemoryOf,
    ReplayMetadataOp,
    View,
    Write,
)
from adjoint.graph.metadata import Mode
from adjoint.open_types import TorchValue
from adjoint.runtime.recipes import Results, autograd_mode
from adjoint.torch_private import trees
from adjoint.torch_private.autograd import set_version
from adjoint.torch_private.storages import foreach_copy


def mutate_inputs(
    calling: CallingConvention,
    inputs: Sequence[object],
    results: Results,
    early: EarlyChanges | None = None,
) -> None:
    """Apply the program's mutations to the caller's inputs, except for the `early` ones."""
    versions = Versions(calling, inputs) if early is None else early.versions
    written = () if early is None else early.outputs
    remaining = [write for write in calling.writes if write.value not in written]
    _write([each for each in remaining if not _is_moved(each)], inputs, results.outputs)
    if early is None or not early.has_moved:
        _move(calling, inputs, results)
    _write([each for each in remaining if _is_moved(each)], inputs, results.outputs)
    for flag in calling.requires_grad_changes:
        _target(FromCaller(flag.index), inputs).requires_grad_(flag.requires_grad)
    versions.advance()
    for write in calling.writes:
        if write.recorded:
            # In eager, what was written to is up to date; hooks on an outdated view crash torch.
            _update_history(_target(write.to, inputs))


def _move(calling: CallingConvention, inputs: Sequence[object], results: Results) -> None:
    """Change the metadata of inputs.

    Views of an input are made before a metadata op changes the memory that the input covers, and so
    are tensors that show the memory which another input moves to.
    """
    moving = {move.index for move in calling.metadata_changes}
    results.make_views_of(moving)
    for move in [_with_memory(move, moving, results) for move in calling.metadata_changes]:
        if isinstance(move, AssignData):
            _target(FromCaller(move.index), inputs).data = results.make(move.value)
        else:
            _replay_metadata_op(move, inputs, results)


class Versions:
    """The version counters that a program advances, as they are before it changes anything."""

    def __init__(self, calling: CallingConvention, inputs: Sequence[object]) -> None:
        counted = [(_target(FromCaller(index), inputs), by) for index, by in calling.versions]
        self._rows = [(t, t._version, by) for t, by in counted if not t.is_inference()]

    def advance(self) -> None:
        """Set them to what they are after the program, whatever changed them meanwhile."""
        # In two steps: tensors that are not views of each other may share a version counter.
        for tensor, version, _ in self._rows:
            set_version(tensor, version)
        for tensor, _, by in self._rows:
            set_version(tensor, tensor._version + by)


class EarlyChanges:
    """Changes of inputs, made before results that are computed from what has changed."""

    def __init__(self, calling: CallingConvention, inputs: Sequence[object]) -> None:
        self.calling = calling
        self.inputs = inputs
        self.has_moved = False
        """Whether metadata has changed."""
        self._unrecorded = [write for write in calling.writes if write.is_early_and_unrecorded]
        self.versions = Versions(calling, inputs)
        self.outputs: set[int] = set()
        """The outputs that were written."""

    def write(self, output: int, value: torch.Tensor, to: FromCaller | BaseOf) -> torch.Tensor:
        """Copy the `value` of an output into an input, or its base.

        Returns the value with the autograd history that the input has now.
        """
        self.outputs.add(output)
        target = _target(to, self.inputs)
        _copy(target, value, recorded=True)
        # A view that is made from now on would be regenerated if its version changed later.
        self.versions.advance()
        return with_history_of(target, value)

    def write_unrecorded(self, outputs: Sequence[object]) -> None:
        """Write what autograd does not record, before views of that memory are made."""
        if self._unrecorded:
            _write(self._unrecorded, self.inputs, outputs)
            self.outputs.update(write.value for write in self._unrecorded)
            self._unrecorded = []
            self.versions.advance()

    def move(self, results: Results) -> None:
        """Change the metadata of all inputs, once."""
        if not self.has_moved:
            self.has_moved = True
            _move(self.calling, self.inputs, results)
            self.versions.advance()


def with_history_of(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """`value` with the autograd history of `tensor`, which shows the same elements."""
    return _WithHistory.apply(tensor, (value,))  # type: ignore[no-any-return, no-untyped-call]


def _with_memory(
    move: ReplayMetadataOp | AssignData, moving: set[int], results: Results
) -> ReplayMetadataOp | AssignData:
    """`move`, with tensors in place of recipes that show the memory of an input in `moving`."""

    def kept(leaf: object) -> object:
        if isinstance(leaf, FromCaller | View) and results.input_of(leaf) in moving:
            return results.make(leaf).detach()
        return leaf

    if isinstance(move, ReplayMetadataOp):
        args, kwargs = trees.map_leaves(kept, (move.args, dict(move.kwargs)))
        return replace(move, args=tuple(args), kwargs=tuple(kwargs.items()))
    value = kept(move.value)
    return move if value is move.value else replace(move, value=Constant(value))


def _write(
    writes: Sequence[Write], inputs: Sequence[object], outputs: Sequence[TorchValue]
) -> None:
    """Copy outputs of the graph into the caller's inputs, those without a history all at once."""
    plain: list[tuple[torch.Tensor, torch.Tensor]] = []
    for write in writes:
        target, value = _target(write.to, inputs), outputs[write.value]
        if value is target:
            # A kernel has stored the new value there; a recorded write also ends its history.
            if not (write.recorded and target.requires_grad):
                continue
            value = value.detach()
        if not (write.recorded or target._is_view()) and _are_alike(target, value):
            plain.append((target, value))
            continue
        _copy(target, value, write.recorded)
    if plain:
        with autograd_mode(Mode(grad_enabled=False)):
            foreach_copy(plain)


def _copy(target: torch.Tensor, value: torch.Tensor, recorded: bool) -> None:
    with autograd_mode(Mode(grad_enabled=recorded)):
        _update_history(target)
        target.copy_(value)


class _WithHistory(torch.autograd.Function):
    """A tensor with the history of another one, which shows the same values in other memory."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, history: torch.Tensor, value: tuple[torch.Tensor]
    ) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return value[0].detach()

    @staticmethod
    def backward(ctx: object, cotangent: torch.Tensor | None) -> tuple[torch.Tensor | None, None]:
        return cotangent, None


def _is_moved(write: Write) -> bool:
    """Whether the input has other memory once metadata ops have changed it."""
    return isinstance(write.to, FromCaller) and write.to.moved


def _are_alike(target: torch.Tensor, value: torch.Tensor) -> bool:
    if type(target) not in (torch.Tensor, torch.nn.Parameter) or type(value) is not torch.Tensor:
        return False
    if target.is_neg() or target.is_conj():
        return False
    return (target.dtype, target.device, target.shape) == (value.dtype, value.device, value.shape)


def _update_history(view: torch.Tensor) -> None:
    """Update the history of `view` after a write to its base; in-place ops do not do that."""
    with contextlib.suppress(RuntimeError):
        _ = view.grad_fn


def _target(to: FromCaller | BaseOf | MemoryOf, inputs: Sequence[TorchValue]) -> torch.Tensor:
    tensor: torch.Tensor = inputs[to.index]
    match to:
        case FromCaller():
            return tensor
        case BaseOf():
            assert tensor._base is not None
            return tensor._base
        case MemoryOf(_, dtype):
            return whole_memory(tensor, dtype)


def _replay_metadata_op(move: ReplayMetadataOp, inputs: Sequence[object], results: Results) -> None:
    def filled(leaf: object) -> object:
        if isinstance(leaf, FromCaller | FromGraph | FromRecipe | View):
            return results.make(leaf)
        return leaf

    args, kwargs = trees.map_leaves(filled, (move.args, dict(move.kwargs)))
    with autograd_mode(move.mode):
        move.op(inputs[move.index], *args, **kwargs)


def whole_memory(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The whole storage of a tensor, as a flat tensor of `dtype`."""
    storage = tensor.untyped_storage()
    flat = torch.empty(0, dtype=dtype, device=tensor.device)
    with torch.no_grad():
        return flat.set_(storage, 0, (storage.nbytes() // dtype.itemsize,), (1,))
