"""Functionalizing ops that write to their arguments.

A mutating op runs on the traced tensors, and its pure counterpart is appended to the graph; what
that returns becomes the new value of each tensor written to (`aliasing.write`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import fx

from adjoint.errors import CaptureError
from adjoint.failing import call_user_code
from adjoint.graph.metadata import Mode, tensor_of, value_of
from adjoint.graph.operations import on_copies
from adjoint.open_types import OpKeywords
from adjoint.torch_private.autograd import preserving_versions, set_version
from adjoint.torch_private.operators import OpOverload, fresh_results
from adjoint.trace import aliasing, geometry, overlap
from adjoint.trace.emission import current_mode
from adjoint.trace.metadata_changes import MetadataOp
from adjoint.trace.mutation import (
    Functional,
    bind,
    functional_variant,
    keeps_history,
    returns_fit,
    unbind,
    written_by,
)

if TYPE_CHECKING:
    from adjoint.trace.tracer import Tracer

aten = torch.ops.aten


def mutate(tracer: Tracer, op: OpOverload, args: tuple[object, ...], kwargs: OpKeywords) -> object:
    """Run and functionalize `op`, which writes to some of its arguments."""
    named = bind(op, args, kwargs)
    written = written_by(op, named)
    if why := overlap.conflict(op, named, written):
        raise CaptureError(f"op {op}", why, "write to a clone() of it", tracer.emitter.source())
    if overlap.is_in_sequence(named, written):
        _one_by_one(tracer, op, named, written)
        return None
    targets = {name: _tensors(named[name]) for name in written}
    shapes = {id(tensor): tensor.shape for name in written for tensor in targets[name]}
    nodes = {name: tracer.arguments(op, value) for name, value in named.items()}
    mode = current_mode()
    if keeps_history(op):
        mode = Mode(grad_enabled=False, inference=mode.inference)
    is_custom = op.namespace != "aten"
    with preserving_versions([t for name in written for t in targets[name]] if is_custom else []):
        result = call_user_code(op, *args, **kwargs)
    variant = functional_variant(op)
    dropped = () if variant is None else variant.dropped
    if variant is not None and not returns_fit(op, variant.op, len(written)):
        variant = None
    if variant is not None and _is_drawn_in_gaps(
        op, [t for name in written for t in targets[name]]
    ):
        variant = None
    node = _pure_call(tracer, op, variant, written, nodes, mode)
    fresh = fresh_results(op, result)
    tracer.register_items(fresh, node)
    read = [value for name, value in nodes.items() if name not in dropped]
    for index, name in enumerate(written):
        is_list = not isinstance(named[name], torch.Tensor)
        is_whole = is_list and len(written) == 1 and not fresh and variant is not None
        if is_whole or not isinstance(value_of(node), (tuple, list)):
            new = node
        else:
            new = tracer.emitter.item(node, len(fresh) + index)
        for position, tensor in enumerate(targets[name]):
            value = tracer.emitter.item(new, position) if is_list else new
            if tensor_of(value).dtype != tensor.dtype:
                value = _cast(tracer, tensor, value, mode, read)
            _write(tracer, tensor, value, shapes[id(tensor)], mode)
            if is_list and not is_custom:
                # ATen's kernel writes to each tensor in turn, and each write advances its version.
                set_version(tensor, tensor._version + 1)
    return result


def _is_drawn_in_gaps(op: OpOverload, targets: Sequence[torch.Tensor]) -> bool:
    """Whether random numbers are drawn for tensors that are not dense.

    For such a tensor eager draws the numbers one after another, for a dense one it may draw
    several at once. The pure op writes to a new tensor, which is dense, so it would draw others.
    """
    seeded = torch.Tag.nondeterministic_seeded in op.tags
    return seeded and any(geometry.dense_order(each) is None for each in targets)


def _pure_call(
    tracer: Tracer,
    op: OpOverload,
    variant: Functional | None,
    written: tuple[str, ...],
    nodes: dict[str, object],
    mode: Mode,
) -> fx.Node:
    """The node that returns the op's own results, then the new value of each written argument."""
    if variant is None:
        args, kwargs = unbind(op, nodes)
        return tracer.emitter.call(on_copies, (op, written, args, kwargs), mode=mode)
    arguments = variant.arguments(op, nodes, tracer.emitter.source())
    return tracer.emitter.call(variant.op, *unbind(variant.op, arguments), mode=mode)


def _one_by_one(
    tracer: Tracer, op: OpOverload, named: dict[str, object], written: tuple[str, ...]
) -> None:
    """An op on lists of tensors, some of which alias: eager writes from left to right."""
    lists = {name: value for name, value in named.items() if isinstance(value, (list, tuple))}
    lengths = {len(value) for value in lists.values()}
    if not op._schema.name.startswith("aten::_foreach_") or len(lengths) != 1:
        raise tracer.unsupported(f"op {op}", "two of the tensors it writes to share memory")
    for position in range(lengths.pop()):
        one = {name: [value[position]] for name, value in lists.items()}
        mutate(tracer, op, *unbind(op, {**named, **one}))


def _cast(
    tracer: Tracer, tensor: torch.Tensor, new: fx.Node, mode: Mode, arguments: Iterable[object]
) -> fx.Node:
    """`new` in the dtype of `tensor`, which an op on `arguments` writes to.

    For autograd an in-place comparison depends on its arguments, with a derivative of zero.
    """
    emitter, dtype = tracer.emitter, tensor.dtype
    if mode.grad_enabled and tensor_of(new).dtype == torch.bool:
        for argument in arguments:
            value = value_of(argument) if isinstance(argument, fx.Node) else None
            if not isinstance(value, torch.Tensor):
                continue
            if not (value.dtype.is_floating_point or value.is_complex()):
                continue
            if value.shape != tensor.shape:
                sizes = (emitter.number_nodes(list(tensor.shape)),)
                argument = emitter.call(aten.expand.default, (argument, *sizes), {}, mode)
            if value.dtype != dtype:
                argument = emitter.call(aten._to_copy.default, (argument,), {"dtype": dtype}, mode)
            new = emitter.call(aten.copy.default, (argument, new), {}, mode)
    if tensor_of(new).dtype == dtype:
        return new
    return emitter.call(aten._to_copy.default, (new,), {"dtype": dtype}, mode)


def _write(
    tracer: Tracer, tensor: torch.Tensor, new: fx.Node, shape: torch.Size, mode: Mode
) -> None:
    if tensor.shape != shape:
        # An `out=` tensor of another size is resized first.
        resize = MetadataOp(aten.resize_.default, (list(tensor.shape),), {}, mode)
        tracer.metadata_changes.setdefault(id(tensor), []).append(resize)
        tracer.scope.new(tensor, new).written = True
        return
    aliasing.write(tracer.emitter, tracer.alias(tensor), new, mode)


def _tensors(value: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)
