"""In-place ops that change the metadata of a tensor (`t_`, `resize_`, `set_`, `.data =`,
`requires_grad_`), but no data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import fx

from adjoint.failing import call_user_code
from adjoint.graph.metadata import Mode
from adjoint.graph.operations import as_leaf
from adjoint.open_types import OpArguments, OpKeywords
from adjoint.torch_private.operators import OpOverload
from adjoint.trace import aliasing, geometry
from adjoint.trace.aliasing import Alias, Link
from adjoint.trace.emission import current_mode
from adjoint.trace.mutation import functional_variant
from adjoint.trace.views import ViewStep

if TYPE_CHECKING:
    from adjoint.trace.tracer import Tracer

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class MetadataOp:
    """A call of `t_`, `set_`, `resize_`, ..."""

    op: OpOverload
    args: OpArguments
    kwargs: OpKeywords
    mode: Mode


@dataclass(frozen=True, eq=False)
class DataAssigned:
    """An assignment to `.data`, for which torch dispatches no op; `now` is the new alias."""

    now: Alias


MetadataChange: TypeAlias = MetadataOp | DataAssigned


def change_metadata(
    tracer: Tracer, op: OpOverload, args: OpArguments, kwargs: OpKeywords
) -> object:
    """Run `op`, which changes the sizes, strides, offset or storage of its tensor."""
    tensor: torch.Tensor = args[0]
    before, mode = tracer.alias(tensor), current_mode()
    numbers, named = tracer.emitter.number_nodes((tuple(args[1:]), kwargs))
    old = aliasing.read(tracer.emitter, before)
    before.former = tracer.emitter.snapshot(tensor)
    memory = tensor.untyped_storage().nbytes()
    result = call_user_code(op, *args, **kwargs)
    change: MetadataChange = MetadataOp(op, tuple(args[1:]), kwargs, mode)
    name = op._schema.name
    if name == "aten::set_":
        _refuse_derivative(tracer, tensor)
        if geometry.same_memory(before.former, tensor):
            # `Module.to` assigns a parameter to itself if it has the dtype and device asked for.
            before.former = None
            return result
        now = _relocate(tracer, tensor, old)
        if tensor.requires_grad and op is aten.set_.source_Tensor:
            # This is how Dynamo writes an assignment to `.data`.  After the graph has run, `set_`
            # would give a leaf another gradient accumulator than the one that the graph refers to.
            change = DataAssigned(now)
    elif name == "aten::resize_" and not _stays_in(tensor, memory):
        _resize(tracer, before, tracer.emitter.call(aten.resize.default, (old, *numbers), named))
    elif name in ("aten::as_strided_", "aten::resize_"):
        tracer.displaced.refuse(before, counts=True)
        tracer.mark_offset_dependent(before)
        _replace_alias(tracer, op, before, geometry.strided(before, tensor, Link.FAMILY, mode))
    else:
        pure = functional_variant(op)
        assert pure is not None, op
        step = ViewStep(pure.op, numbers, named, None, mode)
        now = Alias(before.storage, tensor, before, step, link=Link.FAMILY)
        now.node = step.emit(tracer.emitter, old, mode)
        _replace_alias(tracer, op, before, now)
    tracer.metadata_changes.setdefault(id(tensor), []).append(change)
    return result


def _replace_alias(tracer: Tracer, op: OpOverload, before: Alias, now: Alias) -> None:
    assert now.tensor is not None
    now.moved_from, now.moved_by = before, op
    tracer.scope.add(now.tensor, now)


def _refuse_derivative(tracer: Tracer, tensor: torch.Tensor) -> None:
    """An error if autograd recorded that `tensor` was set."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise tracer.unsupported(
            "set_",
            "the tensor requires grad, and autograd has no derivative of set_",
            "call it under torch.no_grad(), or copy_() the new values",
        )


def _relocate(tracer: Tracer, tensor: torch.Tensor, old: fx.Node) -> Alias:
    """Move `tensor`, whose value was `old`, to the memory that it has now."""
    del tracer.scope.aliases[id(tensor)]
    found = geometry.locate(tracer.scope.aliases.values(), tensor)
    if found is None:
        raise tracer.unsupported(
            "set_",
            "the memory it moves to is unknown to capture",
            "pass set_ a tensor that is an argument, or that the program computes",
        )
    move_data(found, old)
    return tracer.scope.add(tensor, found)


def move_data(now: Alias, old: fx.Node) -> None:
    """Let the tensor of `now`, which shows other memory than before, keep the history of `old`."""
    now.link, now.node, now.stamp = Link.FOREIGN, old, -1


def _stays_in(tensor: torch.Tensor, memory: int) -> bool:
    """Whether `tensor` lies within the first `memory` bytes of its storage."""
    last = (tensor.storage_offset() + geometry.extent(tensor)) * tensor.dtype.itemsize
    return bool(last <= memory)


def _resize(tracer: Tracer, before: Alias, new: fx.Node) -> None:
    """The storage grew: the tensor has a new one, with the value of `new`."""
    tensor = before.tensor
    assert tensor is not None
    others = {id(a.tensor) for a in before.storage.aliases if a.tensor is not None}
    if others != {id(tensor)}:
        raise tracer.unsupported("resize_", "other tensors show the same memory")
    tracer.scope.new(tensor, new).written = True


def change_history(tracer: Tracer, tensor: torch.Tensor, change: Callable[[], object]) -> object:
    """Run `change`, which makes `tensor` a leaf or detaches it; torch dispatches no op for that."""
    if not tracer.scope.knows(tensor):
        return change()
    alias = tracer.alias(tensor)
    before = (tensor.requires_grad, tensor.is_leaf)
    node = tracer.node(tensor)
    result = change()
    if (tensor.requires_grad, tensor.is_leaf) == before:
        return result
    emitter = tracer.emitter
    if not tensor.requires_grad:
        node = emitter.call(aten.detach.default, (node,), mode=aliasing.UNRECORDED)
    elif not _is_input(alias):
        node = emitter.call(as_leaf, (node,), mode=aliasing.RECORDED)
    elif node.op == "placeholder":
        # The input is a leaf for the whole graph, but what was computed before must not depend on
        # it.
        emitter.detach_for_users(node)
    else:
        raise tracer.unsupported(
            "requires_grad_",
            "the input was written to or moved before",
            "call requires_grad_() first, or outside the compiled function",
        )
    if alias.parent is not None:
        alias.link = Link.FOREIGN
    alias.node, alias.stamp = node, alias.storage.writes
    return result


def _is_input(alias: Alias) -> bool:
    """Whether the caller holds the tensor of `alias`."""
    return any(each.is_input and each.tensor is alias.tensor for each in alias.origins())
