"""How a program changes its caller's inputs: data, metadata, `requires_grad`, version counters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import fx
from typing_extensions import assert_never

from adjoint.capture.inputs import Inputs, history
from adjoint.capture.recipes import Recipes
from adjoint.graph.calling import (
    AssignData,
    BaseOf,
    FromCaller,
    MemoryOf,
    ReplayMetadataOp,
    SetRequiresGrad,
    StoragePlacement,
    Write,
)
from adjoint.graph.descriptors import InputMutation, MetadataMutation
from adjoint.graph.metadata import Mode
from adjoint.graph.operations import with_data
from adjoint.torch_private import trees
from adjoint.trace import aliasing, geometry
from adjoint.trace.aliasing import Alias, Storage, version
from adjoint.trace.metadata_changes import DataAssigned, MetadataChange, MetadataOp
from adjoint.trace.tracer import Tracer

aten = torch.ops.aten


class InputChanges:
    """Compares the inputs of a traced program with what they were before it ran."""

    def __init__(self, tracer: Tracer, inputs: Inputs, recipes: Recipes) -> None:
        self.tracer = tracer
        self.inputs = inputs
        self.recipes = recipes

    def writes(self) -> tuple[Write, ...]:
        """The inputs whose data changed, and the outputs that have their new values."""
        writes = []
        outputs = self.recipes.outputs
        self._write_to_bases()
        for index, alias in self.inputs.aliases.items():
            leaf = self.inputs.leaves[index]
            current = self.tracer.scope.aliases.get(id(leaf.value))
            moved_away = current is not None and current.storage is not alias.storage
            if current is not None and moved_away and alias.written:
                raise self.tracer.unsupported(
                    "set_",
                    "the tensor was written to before it was moved to other memory",
                    "write to it in another function, or copy_() the new values",
                    geometry.root_of(current).node,
                )
            if not (alias.written or (moved_away and current is not None and current.written)):
                continue
            if moved_away and geometry.root_of(current).tensor is not leaf.value:  # type: ignore[arg-type]
                continue  # It aliases another tensor now, which has the write.
            if any(each.written for each in self._written_with(alias)):
                continue
            # What is still in its memory is written before metadata ops change what it shows of it.
            node = (
                self.tracer.node(leaf.value)
                if moved_away
                else aliasing.read(self.tracer.emitter, alias)
            )
            recorded = history(leaf.value) not in (None, self.inputs.states[index].history)
            if not recorded and node.target is with_data:
                node = cast("fx.Node", node.args[1])  # Its history stays that of the input.
            value = outputs.add(node, InputMutation(self.inputs.described(index)))
            writes.append(Write(FromCaller(index, moved_away), value, recorded))
        for implicit in self.inputs.implicit:
            if implicit.alias.written:
                node = aliasing.read(self.tracer.emitter, implicit.alias)
                value = outputs.add(node, InputMutation(implicit.descriptor))
                writes.append(Write(implicit.source, value, implicit.has_new_history))
        return tuple(writes)

    def _write_to_bases(self) -> None:
        """Write to the base what was written to an input that is a view of it.

        So other inputs that are views of it, and the base, have the history that autograd gives
        them in eager.
        """
        for index, alias in self.inputs.aliases.items():
            now = history(self.inputs.leaves[index].value)
            if alias.written and now not in (None, self.inputs.states[index].history):
                for base in [*self._written_with(alias)][-1:]:
                    base.written = True

    def _written_with(self, alias: Alias) -> Iterator[Alias]:
        """The caller's tensors that `alias` is a differentiable view of: a write to them is one to
        it."""
        bases = [each.alias for each in self.inputs.implicit if isinstance(each.source, BaseOf)]
        for each in alias.ancestors():
            if each is not alias and (each.is_input or each in bases):
                yield each
            if each.starts_family:
                return

    def metadata(self) -> tuple[ReplayMetadataOp | AssignData, ...]:
        """The changes of the inputs' sizes, strides, offsets and storages, in order."""
        changes: list[ReplayMetadataOp | AssignData] = []
        for index in self.inputs.states:
            self.tracer.alias(self.inputs.leaves[index].value)  # Finds assignments to `.data`.
        for tensor, made in self.tracer.metadata_changes.items():
            if tensor in self.inputs.index:
                index = self.inputs.index[tensor]
                moves = [self._metadata(index, change) for change in made]
                changes += [] if self._returned_to_its_place(index, moves) else moves
        for index, state in self.inputs.states.items():
            if not state.is_leaf and self._became_leaf(index):
                changes.append(ReplayMetadataOp(index, aten.detach_.default, (), (), Mode()))
        return tuple(changes)

    def _returned_to_its_place(
        self, index: int, moves: Sequence[ReplayMetadataOp | AssignData]
    ) -> bool:
        """Whether an input that was written to shows what it did, as after `t_` without two axes.

        Moves after the graph has run would take the history from what the write gave it.
        """
        before, tensor = self.inputs.aliases[index], self.inputs.leaves[index].value
        if not before.storage.writes or before.former is None:
            return False
        are_recorded = all(isinstance(n, ReplayMetadataOp) and _is_recorded(n) for n in moves)
        return are_recorded and geometry.same_memory(before.former, tensor)

    def late_storages(
        self, writes: Sequence[Write], moves: Sequence[ReplayMetadataOp | AssignData]
    ) -> set[Storage]:
        """The storages that change after the graph has been made known to autograd."""
        written = [write.to for write in writes if isinstance(write.to, MemoryOf)]
        late = set()
        for index in (each.index for each in (*written, *moves)):
            late.add(self.inputs.aliases[index].storage)
            late.add(self.tracer.alias(self.inputs.leaves[index].value).storage)
        return late

    def moved_early(
        self, writes: Sequence[Write], moves: Sequence[ReplayMetadataOp | AssignData]
    ) -> set[int]:
        """The inputs that were moved, if by view ops which autograd records, and not written to.

        They may be moved before results are computed from them.
        """
        if not all(isinstance(each, ReplayMetadataOp) and _is_recorded(each) for each in moves):
            return set()
        moved = {each.index for each in moves}
        written = {self.inputs.aliases[each.to.index].storage for each in writes}
        is_written = any(self.inputs.aliases[index].storage in written for index in moved)
        return set() if is_written else moved

    def _metadata(self, index: int, change: MetadataChange) -> ReplayMetadataOp | AssignData:
        wanted = MetadataMutation(self.inputs.described(index))

        def argument(leaf: object) -> object:
            if isinstance(leaf, torch.Tensor):
                return self.recipes.of_tensor(leaf, wanted)
            return self.recipes.from_graph(leaf)

        match change:
            case MetadataOp(op, args, kwargs, mode):
                args, named = trees.map_leaves(argument, (args, dict(kwargs)))
                return ReplayMetadataOp(index, op, tuple(args), tuple(named.items()), mode)
            case DataAssigned(now):
                assert now.parent is not None
                assert now.step is not None
                assert now.step.op is aten.alias.default
                return AssignData(index, self.recipes.of_alias(now.parent, wanted))
            case _:
                assert_never(change)

    def requires_grad(self) -> tuple[SetRequiresGrad, ...]:
        """The inputs on which `requires_grad_` was called."""
        return tuple(
            SetRequiresGrad(index, self.inputs.leaves[index].value.requires_grad)
            for index, state in self.inputs.states.items()
            if state.is_leaf and self._became_leaf(index)
        )

    def _became_leaf(self, index: int) -> bool:
        """Whether an input became a leaf, or is a leaf whose `requires_grad` changed."""
        tensor, state = self.inputs.leaves[index].value, self.inputs.states[index]
        if tensor._is_view():
            # Other views are leaves or not as their bases are.
            return not state.requires_grad and aliasing.requires_grad_by_itself(tensor)
        now = (tensor.requires_grad, tensor.is_leaf)
        return tensor.is_leaf and now != (state.requires_grad, state.is_leaf)

    def versions(self) -> tuple[tuple[int, int], ...]:
        """One row for each version counter of the inputs: an input that has it, and its advance."""
        advances: dict[int, tuple[int, int]] = {}
        for index, state in self.inputs.states.items():
            tensor = self.inputs.leaves[index].value
            by = version(tensor) - state.version
            alias = self.inputs.aliases[index]
            if by or alias.storage.writes or not geometry.shows(alias, tensor):
                counter = id(tensor._base) if tensor._is_view() else id(tensor)
                advances.setdefault(counter, (index, by))
        return tuple(advances.values())

    def placements(self) -> tuple[StoragePlacement, ...]:
        """The storage offsets, at entry, of inputs on which the graph depends.

        Symbolic offsets are left out, because Dynamo guards on them.
        """
        tensors = (
            (index, self.inputs.leaves[index].value if alias.place is None else alias.place)
            for index, alias in self.inputs.aliases.items()
            if alias.storage.depends_on_offset
        )
        rows = ((index, t.storage_offset(), t.untyped_storage().nbytes()) for index, t in tensors)
        return tuple(
            StoragePlacement(index, offset, nbytes)
            for index, offset, nbytes in rows
            if isinstance(offset, int) and isinstance(nbytes, int)
        )


def _is_recorded(move: ReplayMetadataOp) -> bool:
    """Whether it is an in-place view op that autograd records."""
    has_derivative = move.op._schema.name not in ("aten::set_", "aten::resize_", "aten::detach_")
    return has_derivative and move.mode.grad_enabled and not move.mode.inference
