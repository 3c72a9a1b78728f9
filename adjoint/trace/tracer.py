"""Watching a program run on fake tensors, and writing down what it computes as a functional graph.

The program runs as eager would run it: on fake tensors that alias, are views, require grad and
count versions as the real ones, with torch's autograd above.  The tracer sees each ATen op below
autograd and appends its pure counterpart to the graph of the current *scope*.

A scope is one graph under construction.  The program itself has one; so has each body that stays a
subgraph (a branch of `cond`, the two halves of a custom `autograd.Function`).  A tensor of an outer
scope that an inner one uses is *lifted*: it becomes an input of the inner graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import fx

from adjoint.errors import CaptureError
from adjoint.failing import call_user_code, works_on
from adjoint.graph.metadata import Mode
from adjoint.graph.operations import in_order, on_copies, take_attribute
from adjoint.torch_private import symbols, trees
from adjoint.torch_private.effects import is_effectful
from adjoint.torch_private.fake import FakeTensor, FakeTensorMode, fake_call, storage_key
from adjoint.torch_private.modes import (
    TorchDispatchMode,
    below_autograd,
    dispatch_modes,
    is_traceable_wrapper_subclass,
    preserving_versions,
    set_version,
    without_torch_function,
)
from adjoint.torch_private.operators import HigherOrderOperator, OpOverload
from adjoint.trace import aliasing, geometry, metadata_changes, overlap, subclasses
from adjoint.trace.aliasing import Alias, Link, Storage
from adjoint.trace.checkpoints import CheckpointRegions
from adjoint.trace.emission import Emitter, Quietly, current_mode
from adjoint.trace.metadata_changes import DataAssigned, MetadataChange, MetadataOp
from adjoint.trace.mutation import (
    bind,
    changes_metadata_only,
    functional_variant,
    keeps_history,
    returns_fit,
    unbind,
    written_by,
)
from adjoint.trace.views import ViewStep

aten = torch.ops.aten

# What these answer is a fact of the tensor, not a value of the program.
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


class Scope:
    """A graph under construction, the tensors it has values for, and what it takes from outside."""

    def __init__(self, quietly: Quietly, outer: Scope | None = None) -> None:
        self.emitter = Emitter(quietly)
        self.outer = outer
        self.aliases: dict[int, Alias] = {}
        self.lifted: list[Any] = []
        """Tensors and symbolic numbers of outer scopes, in the order of this graph's inputs."""
        self._lifted_nodes: list[fx.Node] = []
        self.entry_token: fx.Node | None = None
        self.token: fx.Node | None = None
        """Given to the next op with effects; absent while there was none."""
        if outer is not None:
            self.emitter.unbound = self.lift_number

    def add(self, tensor: torch.Tensor, alias: Alias) -> Alias:
        """Remember `alias` as the one for `tensor`."""
        self.aliases[id(tensor)] = alias
        return alias

    def new(self, tensor: torch.Tensor, node: fx.Node | None) -> Alias:
        """`tensor` has memory of its own and the value of `node`."""
        return self.add(tensor, Alias(Storage(), tensor, node=node))

    def input(self, tensor: torch.Tensor, name: str) -> Alias:
        """`tensor` is the next input of this graph."""
        return self.new(tensor, self.emitter.placeholder(name, tensor))

    def lift(self, tensor: torch.Tensor) -> Alias:
        """`tensor`, which belongs to an outer scope, is an input of this graph once it is read."""
        alias = self.new(tensor, None)
        alias.make_node = lambda: self._lift("lifted", tensor)
        return alias

    def lift_number(self, value: Any) -> fx.Node:
        """The same for a symbolic number."""
        return self._lift("size", value)

    def _lift(self, name: str, value: Any) -> fx.Node:
        node = self.emitter.placeholder(name, value)
        self.lifted.append(value)
        self._lifted_nodes.append(node)
        return node

    def place(self, value: Any) -> fx.Node:
        """The input that stands for `value`, a tensor or number from outside."""
        for known, node in zip(self.lifted, self._lifted_nodes, strict=True):
            if known is value:
                return node
        if isinstance(value, torch.Tensor):
            return aliasing.read(self.emitter, self.lift(value))
        return self.lift_number(value)

    def all_aliases(self) -> list[Alias]:
        """The aliases of this scope and of those around it."""
        around = [] if self.outer is None else self.outer.all_aliases()
        return [*self.aliases.values(), *around]

    def knows(self, tensor: torch.Tensor) -> bool:
        """This scope or one around it has a value for `tensor`."""
        return id(tensor) in self.aliases or (self.outer is not None and self.outer.knows(tensor))


class Tracer(TorchDispatchMode):
    """The mode under which a program is captured."""

    supports_higher_order_operators = True

    def __init__(
        self, fake_mode: FakeTensorMode, adopt: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        """`adopt` makes an input of a real tensor that the program closes over."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake_mode = fake_mode
        self.adopt = adopt
        self.is_paused = False
        self.is_in_transform = False
        """What runs is differentiated by a transform inside the program."""
        self.root = self.scope = Scope(self.quietly)
        self.regions = CheckpointRegions()
        self.answer: tuple[OpOverload, Any] | None = None
        """A call about to be made whose value the graph already has."""
        self.reversing: list[type] = []
        """The custom functions whose backward is being captured, one inside the other."""
        self.about_to_run: Callable[[OpOverload, Any], None] = _nothing
        """Called before an op, with its arguments."""
        self.metadata_changes: dict[int, list[MetadataChange]] = {}
        """By tensor: what changed its shape or place and not its data, in order."""
        self.displaced = geometry.Displaced()

    @property
    def emitter(self) -> Emitter:
        """Where nodes go now."""
        return self.scope.emitter

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Run ops that are no part of the program."""
        before, self.is_paused = self.is_paused, True
        try:
            with without_torch_function():
                yield
        finally:
            self.is_paused = before

    @contextlib.contextmanager
    def quietly(self) -> Iterator[None]:
        """Run ops on fakes that are no part of the program, without history."""
        with self.paused(), self.fake_mode, below_autograd(), torch.no_grad():
            yield

    @contextlib.contextmanager
    def inside(self, scope: Scope) -> Iterator[Scope]:
        """Write into the graph of `scope`."""
        around, self.scope = self.scope, scope
        scope.emitter.line = around.emitter.line
        try:
            yield scope
        finally:
            self.scope = around

    # Values -----------------------------------------------------------------------------------

    def alias(self, tensor: torch.Tensor) -> Alias:
        """The alias that stands for `tensor` in the current scope."""
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
            # An assignment to `.data` leaves the tensor its history.
            near.link, near.node, near.stamp = Link.FOREIGN, aliasing.read(self.emitter, found), -1
            self.metadata_changes.setdefault(id(tensor), []).append(DataAssigned(near))
        return self.scope.add(tensor, near)

    def _inner(self, tensor: torch.Tensor) -> Alias | None:
        """`tensor`, if it is a subclass the program made, or was taken out of one."""
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
        """Autograd detaches the outputs it saves, and gives them their history back when it unpacks
        them: a detached tensor with the gradient edge of what it was detached from *is* that."""
        edge = alias.gradient_edge
        for origin in self._detached_from(alias) if edge else ():
            if origin.gradient_edge == edge:
                assert origin.tensor is not None
                return self.alias(origin.tensor)
        return alias

    def _detached_from(self, alias: Alias) -> Iterator[Alias]:
        """What `alias` was detached from, and what that was; a scope may have it from outside."""
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

    def nodes(self, tree: Any) -> Any:
        """`tree` with a node in place of each tensor and symbolic number."""
        return trees.map_leaves(self._leaf_node, tree)

    def _leaf_node(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self.node(leaf)
        return self.emitter.number(leaf) if isinstance(leaf, symbols.SYMBOLIC) else leaf

    def register(self, output: Any, node: fx.Node) -> None:
        """`output` of an op, which is new, has the value of `node`."""
        if isinstance(output, torch.Tensor):
            self.scope.new(output, node)
        elif isinstance(output, (tuple, list)):
            for index, each in enumerate(output):
                if _has_value(each):
                    self.register(each, self.emitter.item(node, index))
        self.emitter.bind_symbols(node, output)

    def unknown_number(self, of_tensor: bool = False) -> torch.SymInt:
        """An integer that is known only when the program runs; `of_tensor`: it is a size."""
        assert self.fake_mode.shape_env is not None
        made = symbols.unbacked_size if of_tensor else symbols.unbacked_int
        return made(self.fake_mode.shape_env)

    # Ops --------------------------------------------------------------------------------------

    @works_on("op")
    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
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
        if op is aten.lift_fresh.default and not isinstance(args[0], FakeTensor):
            return self._constant(op, args[0])
        args, kwargs = trees.map_leaves(self.known, (args, kwargs))
        symbols.guard_open_decisions(op, args, kwargs)
        self.emitter.region = self.regions.current()
        self.emitter.hooks = self.regions.hooks()
        if self.answer is not None and op is self.answer[0]:
            return self._recognise(op, args, kwargs)
        self.about_to_run(op, (args, kwargs))
        if changes_metadata_only(op):
            return metadata_changes.move(self, op, args, kwargs)
        if op._schema.is_mutable or written_by(op, bind(op, args, kwargs)):
            return self._mutate(op, args, kwargs)
        if op.is_view:
            return self._view(op, args, kwargs)
        return self._compute(op, args, kwargs)

    def known(self, leaf: Any) -> Any:
        """`leaf`, or what stands for it if it is a tensor from outside."""
        if not isinstance(leaf, torch.Tensor) or self.scope.knows(leaf):
            return leaf
        return leaf if subclasses.is_made_of_fakes(leaf) else self.adopt(leaf)

    def _recognise(self, op: OpOverload, args: Any, kwargs: Any) -> Any:
        """The op runs for what autograd makes of it; its results have nodes already."""
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
        attribute.meta["val"] = self.emitter.snapshot(result)
        # A copy: the program may write to what it made, the graph must not.
        self.scope.new(result, self.emitter.call(aten.lift_fresh_copy.default, (attribute,)))
        return result

    def _compute(self, op: OpOverload, args: Any, kwargs: Any) -> Any:
        """A pure op."""
        node_args, node_kwargs = self._arguments(op, args), self._arguments(op, kwargs)
        result = call_user_code(fake_call, op, args, kwargs)
        if is_effectful(op):
            self._in_order(op, node_args, node_kwargs, result)
        elif result is None or _has_value(result):
            exact = _lie_alike(trees.leaves((node_args, node_kwargs)), trees.leaves((args, kwargs)))
            value = result if exact else None
            node = self.emitter.call(op, node_args, node_kwargs, value=value)
            self.register(result, node)
            self._unsaid_views(result, args)
        return result

    def _arguments(self, op: OpOverload, tree: Any) -> Any:
        """`tree` with nodes, as arguments of `op`."""
        if torch.Tag.nondeterministic_seeded not in op.tags:
            return self.nodes(tree)
        # In which order random numbers are drawn depends on how a tensor lies in memory.
        return trees.map_leaves(
            lambda leaf: (
                geometry.laid_out(self.emitter, self.node(leaf), leaf)
                if isinstance(leaf, torch.Tensor)
                else self._leaf_node(leaf)
            ),
            tree,
        )

    def _unsaid_views(self, result: Any, args: Any) -> None:
        """Results that share memory with an argument though the op's schema does not say so."""
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

    def _in_order(self, op: OpOverload, args: Any, kwargs: Any, result: Any) -> None:
        if self.scope.token is None:
            with self.quietly():
                self.scope.token = self.emitter.placeholder("token", torch.empty(0))
            self.scope.entry_token = self.scope.token
        token = self.scope.token
        outputs = result if isinstance(result, tuple) else (result,)
        value = (token.meta["val"], *outputs)
        node = self.emitter.call(in_order, (token, op, *args), kwargs, value=value)
        self.scope.token = self.emitter.item(node, 0)
        for index, output in enumerate(outputs):
            if _has_value(output):
                self.register(output, self.emitter.item(node, index + 1))

    def _view(self, op: OpOverload, args: Any, kwargs: Any) -> Any:
        """An op whose results share memory with its first argument."""
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
                # Eager refuses it; fakes let their memory grow.
                raise geometry.outside()
            counts = bind(op, args, kwargs).get("storage_offset") is not None
            self.displaced.refuse(parent, counts)
            if counts:
                self.mark_placed(parent)
            if parent.has_history and not geometry.covers(args[0], result):
                alias = geometry.reaching_out(self.emitter, parent, result, mode)
            else:
                alias = geometry.strided(parent, result, mode=mode)
            self.scope.add(result, alias)
            return result
        if viewed is None:
            # Whether this is autograd's own `detach` shows only when it is read.
            step = ViewStep(op, (), {}, None, mode)
            alias = Alias(parent.storage, result, parent, step)
            alias.make_node = lambda: step.emit(
                self.emitter, aliasing.read(self.emitter, parent), mode
            )
            self.scope.add(result, alias)
            return result
        # Run once more, the op would make other symbols for sizes that it does not know.
        value = result if symbols.has_new_symbols(result, args[0]) else None
        node = self.emitter.view(op, viewed, numbers, named, mode, value)
        several = isinstance(result, (tuple, list))
        for index, output in enumerate(result if several else [result]):
            step = ViewStep(op, numbers, named, index if several else None, mode)
            alias = self.scope.add(output, Alias(parent.storage, output, parent, step))
            alias.node = self.emitter.item(node, index) if several else node
            if value is not None:
                self.emitter.bind_symbols(alias.node, output)
        return result

    def mark_placed(self, alias: Alias) -> None:
        """The program looked at where in its memory the tensor of `alias` is."""
        tensor, scope = geometry.root_of(alias).tensor, self.scope.outer
        alias.storage.is_placed = True
        while scope is not None and tensor is not None:
            if id(tensor) in scope.aliases:
                scope.aliases[id(tensor)].storage.is_placed = True
            scope = scope.outer

    def unsupported(self, construct: str, why: str) -> CaptureError:
        """The error for what eager can do and capture cannot."""
        return CaptureError(
            construct, why, "use the out-of-place form of the op", self.emitter.source()
        )

    def _mutate(self, op: OpOverload, args: Any, kwargs: Any) -> Any:
        """An op that writes to some of its arguments."""
        named = bind(op, args, kwargs)
        written = written_by(op, named)
        if why := overlap.conflict(op, named, written):
            raise CaptureError(f"op {op}", why, "write to a clone() of it", self.emitter.source())
        if overlap.is_in_sequence(named, written):
            return self._one_by_one(op, named, written)
        shapes = {id(t): t.shape for name in written for t in _tensors(named[name])}
        nodes = {name: self._arguments(op, value) for name, value in named.items()}
        mode = current_mode()
        if keeps_history(op):
            mode = Mode(grad_enabled=False, inference=mode.inference)
        custom = [] if op.namespace == "aten" else [t for n in written for t in _tensors(named[n])]
        with preserving_versions(custom):
            result = call_user_code(op, *args, **kwargs)
        pure = functional_variant(op)
        if pure is not None and returns_fit(op, pure.op, len(written)):
            arguments = pure.arguments(op, nodes)
            node = self.emitter.call(pure.op, *unbind(pure.op, arguments), mode=mode)
        else:
            node_args, node_kwargs = unbind(op, nodes)
            node = self.emitter.call(on_copies, (op, written, node_args, node_kwargs), mode=mode)
        returned = result if isinstance(result, tuple) else (result,)
        fresh = [
            value
            for spec, value in zip(op._schema.returns, returned, strict=False)
            if spec.alias_info is None
        ]
        single = not isinstance(node.meta["val"], (tuple, list))
        for index, value in enumerate(fresh):
            if _has_value(value):
                self.register(value, self.emitter.item(node, index))
        for index, name in enumerate(written):
            many = not isinstance(named[name], torch.Tensor)
            place = node if single or (many and len(written) == 1 and not fresh and pure) else None
            new = place if place is not None else self.emitter.item(node, len(fresh) + index)
            for position, tensor in enumerate(_tensors(named[name])):
                each = self.emitter.item(new, position) if many else new
                if each.meta["val"].dtype != tensor.dtype:
                    dropped = () if pure is None else pure.dropped
                    read = [nodes[name] for name in nodes if name not in dropped]
                    each = self._cast(tensor, each, mode, read)
                self._write(tensor, each, shapes[id(tensor)], mode)
                if many and not custom:
                    # Torch's own kernel writes to each in turn, and each write is counted.
                    set_version(tensor, tensor._version + 1)
        return result

    def _one_by_one(self, op: OpOverload, named: dict[str, Any], written: tuple[str, ...]) -> Any:
        """An op on lists of tensors, some of which share memory: eager goes from left to right."""
        lists = {name: value for name, value in named.items() if isinstance(value, (list, tuple))}
        lengths = {len(value) for value in lists.values()}
        if not op._schema.name.startswith("aten::_foreach_") or len(lengths) != 1:
            raise self.unsupported(f"op {op}", "two of the tensors it writes to share memory")
        for position in range(lengths.pop()):
            one = {name: [value[position]] for name, value in lists.items()}
            self._mutate(op, *unbind(op, {**named, **one}))
        return None

    def _cast(
        self, tensor: torch.Tensor, new: fx.Node, mode: Mode, arguments: Iterable[Any]
    ) -> fx.Node:
        """`new` in the dtype of `tensor`, which an op on `arguments` writes to.

        To autograd a comparison in place is a function of its arguments, whose derivative is zero.
        """
        kind = tensor.dtype
        if not mode.grad_enabled or new.meta["val"].dtype != torch.bool:
            return self.emitter.call(aten._to_copy.default, (new,), {"dtype": kind}, mode)
        for argument in arguments:
            value = argument.meta["val"] if isinstance(argument, fx.Node) else None
            if (
                isinstance(value, torch.Tensor)
                and value.dtype.is_floating_point | value.is_complex()
            ):
                if value.shape != tensor.shape:
                    sizes = (self.emitter.number_nodes(list(tensor.shape)),)
                    argument = self.emitter.call(aten.expand.default, (argument, *sizes), {}, mode)
                if value.dtype != kind:
                    dtype = {"dtype": kind}
                    argument = self.emitter.call(aten._to_copy.default, (argument,), dtype, mode)
                new = self.emitter.call(aten.copy.default, (argument, new), {}, mode)
        if new.meta["val"].dtype != kind:
            return self.emitter.call(aten._to_copy.default, (new,), {"dtype": kind}, mode)
        return new

    def _write(self, tensor: torch.Tensor, new: fx.Node, shape: torch.Size, mode: Mode) -> None:
        if tensor.shape != shape:
            # An `out=` tensor of another size is resized first.
            resize = MetadataOp(aten.resize_.default, (list(tensor.shape),), {}, mode)
            self.metadata_changes.setdefault(id(tensor), []).append(resize)
            self.scope.new(tensor, new).written = True
            return
        aliasing.write(self.emitter, self.alias(tensor), new, mode)


def _nothing(op: OpOverload, arguments: Any) -> None: ...


def _tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


def _has_value(output: Any) -> bool:
    return any(isinstance(leaf, (torch.Tensor, *symbols.SYMBOLIC)) for leaf in trees.leaves(output))


def _lie_alike(nodes: list[Any], tensors: list[Any]) -> bool:
    """The graph's values lie in memory as the program's tensors do, so that results do as well."""
    return all(
        geometry.same_layout(node.meta["val"], tensor)
        for node, tensor in zip(nodes, tensors, strict=True)
        if isinstance(tensor, torch.Tensor)
    )


def current_tracer() -> Tracer | None:
    """The tracer of the capture under way, if there is one."""
    for mode in reversed(dispatch_modes()):
        if isinstance(mode, Tracer):
            return None if mode.is_paused else mode
    return None
