"""The tracer: runs a program on fake tensors and records what it computes as a functional graph.

The program runs as in eager: on fake tensors that alias, are views, require grad and count versions
as the real ones would, with torch's autograd above them.  The tracer is a dispatch mode that sees
each ATen op below autograd and appends its functional counterpart to the graph of the current
scope.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import fx

from adjoint.errors import CaptureError
from adjoint.failing import call_user_code, works_on
from adjoint.graph.metadata import set_value, source_of, tensor_of, value_of
from adjoint.graph.operations import in_order, take_attribute
from adjoint.open_types import OpArgument, OpArguments, OpKeywords, TorchValue
from adjoint.torch_private import size_guards, symbols, trees
from adjoint.torch_private.autograd import below_autograd
from adjoint.torch_private.effects import is_effectful
from adjoint.torch_private.fake import FakeTensor, FakeTensorMode, fake_call, storage_key
from adjoint.torch_private.modes import (
    TorchDispatchMode,
    dispatch_modes,
    is_traceable_wrapper_subclass,
    without_torch_function,
)
from adjoint.torch_private.operators import HigherOrderOperator, OpOverload, is_composite
from adjoint.trace import aliasing, geometry, metadata_changes, subclasses, writes
from adjoint.trace.aliasing import Alias, Link
from adjoint.trace.checkpoints import CheckpointRegions
from adjoint.trace.emission import Emitter, current_mode, needs_node
from adjoint.trace.metadata_changes import DataAssigned, MetadataChange
from adjoint.trace.mutation import bind, changes_metadata_only, written_by
from adjoint.trace.scope import Scope
from adjoint.trace.views import UNSAFE_SPLITS, ViewStep

aten = torch.ops.aten

# Queries of metadata.  Their answers are known while tracing and need no node.
_QUERIES = frozenset(
    {
        aten.sym_size.int,
        aten.sym_size.default,
        aten.sym_stride.int,
        aten.sym_stride.default,
        aten.sym_numel.default,
        aten.sym_storage_offset.default,
        aten.is_contiguous.default,
        aten.is_contiguous.memory_format,
        aten.is_strides_like_format.default,
        aten.is_non_overlapping_and_dense.default,
        aten.size.default,
        aten.stride.default,
        aten.storage_offset.default,
        aten.numel.default,
        aten.dim.default,
    }
)


class Tracer(TorchDispatchMode):
    """The dispatch mode under which a program is traced."""

    supports_higher_order_operators = True

    def __init__(
        self, fake_mode: FakeTensorMode, adopt: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        """`adopt` turns a real tensor that the program closes over into an input."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake_mode = fake_mode
        self.adopt = adopt
        self.is_paused = False
        self.is_in_transform = False
        """A transform inside the program is differentiating what runs now."""
        self.root = self.scope = Scope(self.untraced)
        self.regions = CheckpointRegions()
        self.answer: tuple[OpOverload, object] | None = None
        """The next call of this op has these results, for which the graph already has nodes."""
        self.reversing: list[type] = []
        """The custom functions whose backward is being traced, outermost first."""
        self.about_to_run: Callable[[OpOverload, object], None] = _nothing
        """Called before an op, with its arguments."""
        self.metadata_changes: dict[int, list[MetadataChange]] = {}
        """By the id of the tensor: the changes of its metadata, in order."""
        self.displaced = geometry.Displaced()

    @property
    def emitter(self) -> Emitter:
        """The emitter of the current scope."""
        return self.scope.emitter

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Run ops that are not part of the program."""
        before, self.is_paused = self.is_paused, True
        try:
            with without_torch_function():
                yield
        finally:
            self.is_paused = before

    @contextlib.contextmanager
    def untraced(self) -> Iterator[None]:
        """Run ops on fakes that are not part of the program and that autograd does not record."""
        with self.paused(), self.fake_mode, below_autograd(), torch.no_grad():
            yield

    @contextlib.contextmanager
    def inside(self, scope: Scope) -> Iterator[Scope]:
        """Trace into the graph of `scope`."""
        around, self.scope = self.scope, scope
        scope.emitter.line = around.emitter.line
        try:
            yield scope
        finally:
            self.scope = around

    # Values -----------------------------------------------------------------------------------

    def alias(self, tensor: torch.Tensor) -> Alias:
        """The alias of `tensor` in the current scope."""
        found = self.scope.aliases.get(id(tensor))
        if found is not None and geometry.shows(found, tensor):
            return found
        if found is None and self.scope.outer is not None and self.scope.outer.knows(tensor):
            return self.scope.lift(tensor)
        near = self._inner(tensor) or geometry.locate(self.scope.aliases.values(), tensor)
        if near is None:
            raise CaptureError(
                "a tensor",
                "it was made in a way that capture cannot see",
                "pass it as an argument",
                self.emitter.source(),
            )
        if found is not None:
            # An assignment to `.data` moved the tensor to other memory; its history stays.
            metadata_changes.move_data(near, aliasing.read(self.emitter, found))
            self.metadata_changes.setdefault(id(tensor), []).append(DataAssigned(near))
        return self.scope.add(tensor, near)

    def _inner(self, tensor: torch.Tensor) -> Alias | None:
        """The alias of a tensor subclass that the program made, or of a tensor inside one."""
        if is_traceable_wrapper_subclass(tensor):
            node = subclasses.construction(self.emitter, self.node, tensor)
            return self.scope.new(tensor, node)
        held = subclasses.holder(self.scope.all_aliases(), tensor)
        if held is None:
            return None
        outer, name = held
        args = (self.node(outer), name)
        node = self.emitter.call(take_attribute, args, mode=aliasing.UNRECORDED, value=tensor)
        return self.scope.new(tensor, node)

    def node(self, tensor: torch.Tensor) -> fx.Node:
        """The node with the current value of `tensor`."""
        return aliasing.read(self.emitter, self.origin(self.alias(tensor)))

    def origin(self, alias: Alias) -> Alias:
        """The alias that a saved output was detached from, else `alias` itself.

        Autograd detaches the outputs that it saves and restores their history when it unpacks them.
        So a detached tensor with the gradient edge of what it was detached from has the same value
        and the same history.
        """
        origins = list(self._detached_from(alias))
        edge = alias.gradient_edge if origins else None
        for origin in origins if edge else ():
            if origin.gradient_edge == edge:
                assert origin.tensor is not None
                return self.alias(origin.tensor)
        return alias

    def _detached_from(self, alias: Alias) -> Iterator[Alias]:
        """What `alias` was detached from, what that was detached from, and so on, across scopes."""
        scope: Scope | None = self.scope
        while scope is not None:
            while alias.step is not None and alias.step.op is aten.detach.default:
                assert alias.parent is not None
                alias = alias.parent
                yield alias
            scope = scope.outer
            while scope is not None and id(alias.tensor) not in scope.aliases:
                scope = scope.outer
            if scope is not None:
                alias = scope.aliases[id(alias.tensor)]

    def nodes(self, tree: object) -> OpArgument:
        """`tree` with a node in place of each tensor and symbolic number."""
        return trees.map_leaves(self._leaf_node, tree)

    def _leaf_node(self, leaf: object) -> object:
        if isinstance(leaf, torch.Tensor):
            return self.node(leaf)
        return self.emitter.number(leaf) if isinstance(leaf, symbols.SYMBOLIC) else leaf

    def register(self, output: object, node: fx.Node) -> None:
        """Register `output`, a new result of an op, as the value of `node`."""
        if isinstance(output, torch.Tensor):
            self.scope.new(output, node)
        elif isinstance(output, (tuple, list)):
            self.register_items(output, node)
        self.emitter.bind_symbols(node, output)

    def register_items(self, outputs: Sequence[object], node: fx.Node) -> None:
        """Register the first results of an op that returns several as the items of `node`."""
        for index, each in enumerate(outputs):
            if needs_node(each):
                self.register(each, self.emitter.item(node, index))

    def unknown_number(self, of_tensor: bool = False) -> torch.SymInt:
        """An unbacked symbolic integer; `of_tensor`: one that is a size."""
        assert self.fake_mode.shape_env is not None
        make = symbols.unbacked_size if of_tensor else symbols.unbacked_int
        return make(self.fake_mode.shape_env)

    # Ops --------------------------------------------------------------------------------------

    @works_on("op")
    def __torch_dispatch__(
        self,
        op: OpOverload | HigherOrderOperator,
        types: object,
        args: OpArguments = (),
        kwargs: OpKeywords | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if self.is_paused:
            return op(*args, **kwargs)
        if isinstance(op, HigherOrderOperator):
            raise CaptureError(
                f"the higher-order operator {op}",
                "capture does not know it",
                "express it with ordinary ops, or keep it outside the compiled function",
                self.emitter.source(),
            )
        if op.namespace == "prim" or op in _QUERIES:
            return call_user_code(op, *args, **kwargs)
        is_answer = self.answer is not None and op is self.answer[0]
        if is_composite(op) and not is_answer:
            # Autograd decomposes it; below autograd it arrives here.
            with self:
                return op.decompose(*args, **kwargs)
        meaning = geometry.MEMORY_OPS.get(op)
        if meaning is not None and not is_answer and geometry.reads_memory_around(*args, **kwargs):
            with self:
                return meaning(self.emitter, *args, **kwargs)
        if op is aten._efficientzerotensor.default:
            op = aten.zeros.default  # A view of a fake ZeroTensor is not a fake (torch 2.13).
        if op is aten.lift_fresh.default and not isinstance(args[0], FakeTensor):
            return self._constant(op, args[0])
        args, kwargs = trees.map_leaves(self.known, (args, kwargs))
        size_guards.guard_open_decisions(op, args, kwargs)
        self.emitter.region = self.regions.current()
        self.emitter.hooks = self.regions.hooks()
        if is_answer:
            return self._recognise(op, args, kwargs)
        self.about_to_run(op, (args, kwargs))
        if changes_metadata_only(op):
            return metadata_changes.change_metadata(self, op, args, kwargs)
        if op._schema.is_mutable or written_by(op, bind(op, args, kwargs)):
            return writes.mutate(self, op, args, kwargs)
        if op.is_view or op in UNSAFE_SPLITS:
            return self._view(op, args, kwargs)
        return self._compute(op, args, kwargs)

    def known(self, leaf: object) -> TorchValue:
        """`leaf`, or the traced tensor that replaces it if it is a real tensor."""
        if not isinstance(leaf, torch.Tensor) or self.scope.knows(leaf):
            return leaf
        return leaf if subclasses.is_made_of_fakes(leaf, self.fake_mode) else self.adopt(leaf)

    def _recognise(self, op: OpOverload, args: object, kwargs: object) -> object:
        """Run `op` for the autograd history of its results, which already have nodes."""
        assert self.answer is not None
        known, self.answer = trees.leaves(self.answer[1]), None
        result = call_user_code(fake_call, op, args, kwargs)
        for output, value in zip(trees.leaves(result), known, strict=True):
            if isinstance(output, torch.Tensor):
                self.scope.new(output, self.node(value))
        return result

    def _constant(self, op: OpOverload, value: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = op(value)
        attribute = self.emitter.attribute("constant", value)
        set_value(attribute, self.emitter.snapshot(result))
        # A copy, because the program may write to its constant but the graph must not.
        self.scope.new(result, self.emitter.call(aten.lift_fresh_copy.default, (attribute,)))
        return result

    def _compute(self, op: OpOverload, args: object, kwargs: object) -> object:
        """Trace a pure op."""
        node_args, node_kwargs = self.arguments(op, args), self.arguments(op, kwargs)
        result = call_user_code(fake_call, op, args, kwargs)
        if is_effectful(op):
            self._in_order(op, node_args, node_kwargs, result)
        elif result is None or needs_node(result):
            exact = _have_traced_strides(
                trees.leaves((node_args, node_kwargs)), trees.leaves((args, kwargs))
            )
            value = result if exact else None
            node = self.emitter.call(op, node_args, node_kwargs, value=value)
            self.register(result, node)
            self._undeclared_views(result, args)
        return result

    def arguments(self, op: OpOverload, tree: object) -> OpArgument:
        """`tree` with nodes in place of tensors, as arguments of `op`."""
        if torch.Tag.nondeterministic_seeded not in op.tags:
            return self.nodes(tree)
        # The order in which random numbers are drawn depends on the strides.
        return trees.map_leaves(
            lambda leaf: (
                geometry.with_strides_of(self.emitter, self.node(leaf), leaf)
                if isinstance(leaf, torch.Tensor)
                else self._leaf_node(leaf)
            ),
            tree,
        )

    def _undeclared_views(self, result: object, args: object) -> None:
        """Register results that alias an argument though the op's schema does not say so."""
        memories = {
            storage_key(each): each for each in trees.leaves(args) if isinstance(each, torch.Tensor)
        }
        for output in trees.leaves(result):
            memory = storage_key(output) if isinstance(output, torch.Tensor) else None
            viewed = memories.get(memory) if memory else None
            if viewed is not None and output is not viewed:
                new = self.scope.aliases[id(output)]
                parent = geometry.root_of(self.alias(viewed))
                alias = geometry.strided(parent, output, Link.FOREIGN)
                alias.node = new.node
                self.scope.add(output, alias)

    def _in_order(
        self,
        op: OpOverload,
        args: tuple[object, ...],
        kwargs: OpKeywords,
        result: object,
    ) -> None:
        if self.scope.token is None:
            with self.untraced():
                self.scope.token = self.emitter.placeholder("token", torch.empty(0))
            self.scope.entry_token = self.scope.token
        token = self.scope.token
        outputs = result if isinstance(result, tuple) else (result,)
        value = (value_of(token), *outputs)
        node = self.emitter.call(in_order, (token, op, *args), kwargs, value=value)
        self.scope.token = self.emitter.item(node, 0)
        for index, output in enumerate(outputs):
            if needs_node(output):
                self.register(output, self.emitter.item(node, index + 1))

    def _view(self, op: OpOverload, args: OpArguments, kwargs: OpKeywords) -> object:
        """Trace an op whose results share the memory of its first argument."""
        parent, mode = self.alias(args[0]), current_mode()
        if parent.is_hidden:
            result = call_user_code(op, *args, **kwargs)
            for output in trees.leaves(result):
                self.scope.add(output, Alias(parent.storage, output, is_hidden=True))
            return result
        numbers, named = self.emitter.number_nodes((tuple(args[1:]), kwargs))
        viewed = None if op is aten.detach.default else self.node(args[0])
        memory = args[0].untyped_storage().nbytes() if op is aten.as_strided.default else 0
        result = call_user_code(op, *args, **kwargs)
        if op is aten.as_strided.default:
            if result.untyped_storage().nbytes() > memory:
                # An error in eager; a fake storage grows instead.
                raise geometry.outside()
            counts = bind(op, args, kwargs).get("storage_offset") is not None
            self.displaced.refuse(parent, counts)
            if counts:
                self.mark_offset_dependent(parent)
            if parent.has_history and not geometry.covers(args[0], result):
                alias = geometry.reaching_out(self.emitter, parent, result, mode)
            else:
                alias = geometry.strided(parent, result, mode=mode)
            self.scope.add(result, alias)
            return result
        if viewed is None:
            # It may be autograd's own `detach` of a saved output (`origin`), so no node is made
            # yet.
            step = ViewStep(op, (), {}, None, mode)
            alias = Alias(parent.storage, result, parent, step)
            alias.make_node = lambda: step.emit(
                self.emitter, aliasing.read(self.emitter, parent), mode
            )
            self.scope.add(result, alias)
            return result
        # To evaluate the op again would create new unbacked symbols.
        has_new_symbols = symbols.has_new_symbols(result, args[0])
        is_known = has_new_symbols or geometry.same_memory(tensor_of(viewed), args[0])
        value = result if is_known else None
        link = Link.FOREIGN if op in UNSAFE_SPLITS else Link.AUTOGRAD
        op = UNSAFE_SPLITS.get(op, op)
        node = self.emitter.view(op, viewed, numbers, named, mode, value)
        several = isinstance(result, (tuple, list))
        for index, output in enumerate(result if several else [result]):
            step = ViewStep(op, numbers, named, index if several else None, mode)
            alias = self.scope.add(output, Alias(parent.storage, output, parent, step, link=link))
            alias.node = self.emitter.item(node, index) if several else node
            if has_new_symbols:
                self.emitter.bind_symbols(alias.node, output)
        return result

    def mark_offset_dependent(self, alias: Alias) -> None:
        """Note that the program used the storage offset of the tensor of `alias`."""
        tensor, scope = geometry.root_of(alias).tensor, self.scope.outer
        alias.storage.depends_on_offset = True
        while scope is not None and tensor is not None:
            if id(tensor) in scope.aliases:
                scope.aliases[id(tensor)].storage.depends_on_offset = True
            scope = scope.outer

    def unsupported(
        self,
        construct: str,
        why: str,
        remedy: str = "use the out-of-place form of the op",
        node: fx.Node | None = None,
    ) -> CaptureError:
        """The error for what eager supports and capture does not.

        `node`: computed at the line to name, if that is not the line that runs now.
        """
        source = None if node is None else source_of(node)
        return CaptureError(construct, why, remedy, source or self.emitter.source())


def _nothing(op: OpOverload, arguments: object) -> None: ...


def _have_traced_strides(nodes: Sequence[OpArgument], tensors: Sequence[object]) -> bool:
    """Whether the nodes have the strides of the traced tensors, so that results have them too."""
    return all(
        geometry.same_layout(tensor_of(node), tensor)
        for node, tensor in zip(nodes, tensors, strict=True)
        if isinstance(tensor, torch.Tensor)
    )


def current_tracer() -> Tracer | None:
    """The tracer of the current capture, if any."""
    for mode in reversed(dispatch_modes()):
        if isinstance(mode, Tracer):
            return None if mode.is_paused else mode
    return None
