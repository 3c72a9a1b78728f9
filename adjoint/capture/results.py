"""What a program returns and leaves behind, said as graph outputs and a calling convention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from adjoint.capture.inputs import Inputs, history
from adjoint.errors import CaptureError
from adjoint.graph.calling import (
    AssignData,
    BaseOf,
    CallingConvention,
    Constant,
    FromCaller,
    FromGraph,
    FromRecipe,
    Overwrite,
    Recipe,
    Replay,
    ReplayMetadataOp,
    RequireGrad,
    SetRequiresGrad,
    Step,
    StoragePlacement,
    View,
    Window,
    Write,
)
from adjoint.graph.descriptors import (
    EffectTokenOut,
    InputMutation,
    IntermediateBase,
    MetadataMutation,
    Output,
    Result,
    ViewArgument,
    ViewValue,
)
from adjoint.graph.metadata import Mode
from adjoint.graph.operations import as_leaf
from adjoint.torch_private import symbols, trees
from adjoint.torch_private.modes import share_version_counter
from adjoint.trace import aliasing, geometry
from adjoint.trace.aliasing import Alias, Link, version
from adjoint.trace.metadata_changes import DataAssigned, MetadataOp
from adjoint.trace.tracer import Tracer
from adjoint.trace.views import Spread

aten = torch.ops.aten


class Results:
    """Collects the outputs of a graph, and says how the caller's results are made of them."""

    def __init__(self, tracer: Tracer, inputs: Inputs) -> None:
        self.tracer = tracer
        self.inputs = inputs
        self.outputs: list[fx.Node] = []
        self.descriptors: list[Output | None] = []
        """None for a base until all results that are views of it are known."""
        self._made: list[Recipe] = []
        self._by_tensor: dict[int, int] = {}
        self._bases: dict[Alias, int] = {}
        self._bases_of: dict[int, list[Result | MetadataMutation]] = {}
        self._numbers: dict[fx.Node, int] = {}

    def calling(self, leaves: Sequence[tuple[str, Any]]) -> CallingConvention:
        """The convention for a program that returned `leaves` (each with its path)."""
        writes = self._writes()
        results = tuple(self._result(i, path, leaf) for i, (path, leaf) in enumerate(leaves))
        moves = self._moves()
        shown = () if writes or moves else self._shown(results, leaves)
        for index, of in self._bases_of.items():
            if self.descriptors[index] is None:
                results_of = tuple(each for each in of if isinstance(each, Result))
                self.descriptors[index] = IntermediateBase(results_of) if results_of else of[0]
        if self.tracer.scope.token is not None:
            assert self.tracer.scope.entry_token is not None
            self.inputs.describe_token(self.tracer.scope.entry_token)
            self._output(self.tracer.scope.token, EffectTokenOut(0))
        placeholders = [n for n in self.tracer.emitter.graph.nodes if n.op == "placeholder"]
        return CallingConvention(
            sources=tuple(self.inputs.sources[node] for node in placeholders),
            metadata_changes=moves,
            writes=writes,
            requires_grad_changes=self._flags(),
            versions=self._versions(),
            recipes=tuple(self._made),
            results=results,
            placements=self._places(),
            view_values=shown,
        )

    def _shown(
        self, results: Sequence[int], leaves: Sequence[tuple[str, Any]]
    ) -> tuple[tuple[int, int], ...]:
        """Views whose values other results are computed from: these have their history from them.

        A view is made outside the graph, which has its value as one more output.
        """
        views = {
            position: leaf
            for position, (_, leaf) in zip(results, leaves, strict=True)
            if self._is_plain_view(self._made[position]) and leaf.requires_grad
        }
        for position, leaf in views.items():
            self._made[position] = self._of_another_view(self._made[position], leaf)
        shown: dict[int, int] = {}
        outputs = set(self.outputs)
        for position, leaf in views.items():
            node = self.tracer.node(leaf)
            if node.op != "call_function" or node in outputs or not _leads_to(node, outputs):
                continue
            # What was written through a view is made of it, and not it of that.
            base = self._base_node(self._made[position])
            if base is None or not _leads_to(node, {base}):
                shown[self._view_argument(node)] = position
        return tuple(shown.items())

    def _is_plain_view(self, made: Recipe) -> bool:
        """It is made by view ops alone, of what it is a view of now."""
        if not isinstance(made, View) or made.is_regenerated:
            return False
        return all(isinstance(step, Replay) for step in made.steps)

    def _of_another_view(self, made: Recipe, leaf: torch.Tensor) -> Recipe:
        """The view, made of the nearest one that is a result, too, if it is a view of one."""

        def is_as_it_was(alias: Alias) -> bool:
            """Its tensor was not moved since: what is made of that tensor is made of it."""
            tensor = alias.tensor
            return tensor is not None and self.tracer.origin(self.tracer.alias(tensor)) is alias

        chain = list(self.tracer.origin(self.tracer.alias(leaf)).origins())
        for count, each in enumerate(chain, 1):
            is_result = count > 1 and id(each.tensor) in self._by_tensor and is_as_it_was(each)
            position = self._by_tensor[id(each.tensor)] if is_result else None
            if position is not None and self._is_plain_view(self._made[position]):
                return View(FromRecipe(position), tuple(self._steps(chain[:count])))
            if each.starts_family:
                break
        return made

    def _base_node(self, made: Recipe | FromRecipe) -> fx.Node | None:
        """The output that `made` is a view of."""
        match made:
            case FromGraph(index):
                return self.outputs[index]
            case FromRecipe(index):
                return self._base_node(self._made[index])
            case View(of, _):
                return self._base_node(of)
            case _:
                return None

    def _output(self, node: fx.Node, descriptor: Output | None) -> int:
        self.outputs.append(node)
        self.descriptors.append(descriptor)
        return len(self.outputs) - 1

    # What becomes of inputs -------------------------------------------------------------------

    def _writes(self) -> tuple[Write, ...]:
        writes = []
        for place, alias in self.inputs.aliases.items():
            leaf = self.inputs.leaves[place]
            current = self.tracer.scope.aliases.get(id(leaf.value))
            moved_away = current is not None and current.storage is not alias.storage
            if moved_away and alias.written:
                raise self.tracer.unsupported(
                    "set_", "the tensor was written to before it was moved to other memory"
                )
            if not (alias.written or (moved_away and current is not None and current.written)):
                continue
            if moved_away and geometry.root_of(current).tensor is not leaf.value:  # type: ignore[arg-type]
                continue  # It shows memory of another tensor now, which has the write.
            if any(each.written for each in self._covering(alias)):
                continue
            value = self._output(
                self.tracer.node(leaf.value), InputMutation(self.inputs.described(place))
            )
            recorded = history(leaf.value) not in (None, self.inputs.states[place].history)
            writes.append(Write(FromCaller(place), value, recorded))
        for behind in self.inputs.behind:
            if behind.alias.written:
                node = aliasing.read(self.tracer.emitter, behind.alias)
                value = self._output(node, InputMutation(behind.descriptor))
                writes.append(Write(behind.source, value, behind.has_new_history))
        return tuple(writes)

    def _covering(self, alias: Alias) -> Iterator[Alias]:
        """What the caller has that `alias` is a differentiable view of, and is written with."""
        bases = [each.alias for each in self.inputs.behind if isinstance(each.source, BaseOf)]
        for each in alias.ancestors():
            if each is not alias and (each.is_input or each in bases):
                yield each
            if each.starts_family:
                return

    def _moves(self) -> tuple[ReplayMetadataOp | AssignData, ...]:
        moves: list[ReplayMetadataOp | AssignData] = []
        for place in self.inputs.states:
            self.tracer.alias(self.inputs.leaves[place].value)  # It may have been assigned to.
        for tensor, made in self.tracer.metadata_changes.items():
            if tensor in self.inputs.index:
                moves += [self._move(self.inputs.index[tensor], each) for each in made]
        for place, state in self.inputs.states.items():
            if not state.is_leaf and self._came_to_be_leaf(place):
                moves.append(ReplayMetadataOp(place, aten.detach_.default, (), (), Mode()))
        return tuple(moves)

    def _move(self, place: int, move: MetadataOp | DataAssigned) -> ReplayMetadataOp | AssignData:
        new = MetadataMutation(self.inputs.described(place))
        match move:
            case MetadataOp(op, args, kwargs, mode):
                args, named = trees.map_leaves(partial(self._argument, new), (args, dict(kwargs)))
                return ReplayMetadataOp(place, op, tuple(args), tuple(named.items()), mode)
            case DataAssigned(now):
                assert now.parent is not None
                assert now.step is not None
                if now.step.op is not aten.alias.default:
                    raise self.tracer.unsupported(
                        "an assignment to .data", "the tensor that was assigned is gone"
                    )
                return AssignData(place, self._made_as(now.parent, new))

    def _argument(self, descriptor: MetadataMutation, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self._made_of(leaf, descriptor)
        return self._number(self.tracer.emitter.number_nodes(leaf))

    def _flags(self) -> tuple[SetRequiresGrad, ...]:
        return tuple(
            SetRequiresGrad(place, self.inputs.leaves[place].value.requires_grad)
            for place, state in self.inputs.states.items()
            if state.is_leaf and self._came_to_be_leaf(place)
        )

    def _came_to_be_leaf(self, place: int) -> bool:
        tensor, state = self.inputs.leaves[place].value, self.inputs.states[place]
        if tensor._is_view():
            return False
        now = (tensor.requires_grad, tensor.is_leaf)
        return tensor.is_leaf and now != (state.requires_grad, state.is_leaf)

    def _versions(self) -> tuple[tuple[int, int], ...]:
        """One row for each version counter that the program's inputs have among them."""
        advances: dict[int, tuple[int, int]] = {}
        for place, state in self.inputs.states.items():
            tensor = self.inputs.leaves[place].value
            by = version(tensor) - state.version
            alias = self.inputs.aliases[place]
            if by or alias.storage.writes or not geometry.shows(alias, tensor):
                counter = id(tensor._base) if tensor._is_view() else id(tensor)
                advances.setdefault(counter, (place, by))
        return tuple(advances.values())

    def _places(self) -> tuple[StoragePlacement, ...]:
        """Where the inputs lay for which that matters, at entry; symbols have guards."""
        tensors = (
            (place, self.inputs.leaves[place].value if alias.place is None else alias.place)
            for place, alias in self.inputs.aliases.items()
            if alias.storage.is_placed
        )
        rows = ((place, t.storage_offset(), t.untyped_storage().nbytes()) for place, t in tensors)
        return tuple(
            StoragePlacement(place, offset, memory)
            for place, offset, memory in rows
            if isinstance(offset, int) and isinstance(memory, int)
        )

    # What is returned -------------------------------------------------------------------------

    def _result(self, index: int, path: str, leaf: Any) -> int:
        descriptor = Result(index, f"result{path}")
        if isinstance(leaf, torch.Tensor):
            return self._tensor(leaf, descriptor)
        if isinstance(leaf, symbols.SYMBOLIC):
            node = self.tracer.emitter.number(leaf)
            if isinstance(node, fx.Node):
                return self._make(FromGraph(self._output(node, descriptor)))
            return self._make(Constant(node))
        if any(isinstance(each, torch.Tensor) for each in trees.leaves(vars_of(leaf))):
            raise CaptureError(
                f"a result of type {type(leaf).__name__}",
                "it holds tensors, and capture does not know how to take it apart",
                "register it with torch.utils._pytree.register_pytree_node, or return the tensors",
                self.tracer.emitter.source(),
            )
        return self._make(Constant(leaf))

    def _make(self, made: Recipe) -> int:
        self._made.append(made)
        return len(self._made) - 1

    def _tensor(self, tensor: torch.Tensor, descriptor: Result) -> int:
        if id(tensor) not in self._by_tensor:
            self._by_tensor[id(tensor)] = self._make(self._made_of(tensor, descriptor))
        return self._by_tensor[id(tensor)]

    def _at(self, alias: Alias, descriptor: Result | MetadataMutation) -> int:
        key = id(alias.tensor)
        if key not in self._by_tensor:
            self._by_tensor[key] = self._make(self._made_as(alias, descriptor))
        return self._by_tensor[key]

    def _made_of(self, tensor: torch.Tensor, descriptor: Result | MetadataMutation) -> Recipe:
        if id(tensor) in self.inputs.index:
            return FromCaller(self.inputs.index[id(tensor)])
        if id(tensor) in self.inputs.base_of:
            return BaseOf(self.inputs.base_of[id(tensor)])
        return self._made_as(self.tracer.origin(self.tracer.alias(tensor)), descriptor)

    def _made_as(self, alias: Alias, descriptor: Result | MetadataMutation) -> Recipe:
        if id(alias.tensor) in self.inputs.base_of:
            return BaseOf(self.inputs.base_of[id(alias.tensor)])
        chain = list(alias.origins())
        owns_memory = alias is self._now(chain[-1])
        if alias.link is Link.FOREIGN and not owns_memory and self._input_place(alias) is None:
            return self._made_in_memory(alias, descriptor)
        for count, each in enumerate(chain, 1):
            source = self._input_as(each)
            if source is not None:
                steps = self._steps(chain[:count])
                return View(source, tuple(steps)) if steps else source
            if each.tensor is alias.tensor or each is chain[-1]:
                continue
            if each.starts_family:
                # Views of it have it for their `_base`, whether or not it is returned itself.
                return self._view_of(self._now(each), chain[:count], descriptor)
        root = chain[-1]
        if id(root.tensor) in self.inputs.base_of:
            base = BaseOf(self.inputs.base_of[id(root.tensor)])
            return View(base, tuple(self._steps(chain)))
        now = self._now(root)
        whole = alias is now
        if not _shows_all(now, root):
            if not whole:
                return self._view_of(now, chain, descriptor)
            of = FromGraph(self._base(root, descriptor, whole=False))
            steps = self._steps(chain)
            if any(each.starts_family for each in chain[:-1]):
                steps.append(Replay(aten.detach_.default, (), (), None, Mode()))
            return View(of, tuple(steps))
        of = FromGraph(self._base(now, descriptor, whole))
        steps = self._steps_from(chain, now)
        if whole and alias.tensor is not None and alias.tensor.requires_grad:
            steps += [RequireGrad()] if alias.tensor.is_leaf else []
        return View(of, tuple(steps)) if steps else of

    def _view_of(
        self, base: Alias, chain: Sequence[Alias], descriptor: Result | MetadataMutation
    ) -> View:
        """The first of `chain`, as a view of another of what is made."""
        of = FromRecipe(self._at(base, descriptor))
        return View(of, tuple(self._steps_from(chain, base)))

    def _made_in_memory(self, alias: Alias, descriptor: Result | MetadataMutation) -> Recipe:
        """A tensor that is no view of what its alias is derived from."""
        tensor = alias.tensor
        assert tensor is not None
        assert alias.step is not None
        of: FromCaller | BaseOf | FromRecipe
        viewed = alias.reaches_out_of
        if tensor._is_view():
            owner: torch.Tensor | None = tensor._base if viewed is None else viewed.tensor
            assert owner is not None
            made = self._made_of(owner, descriptor)
            place = self._window(tensor, owner)
            args = (place.shape, place.stride, place.offset)
            step: Step = Replay(aten.as_strided.default, args, (), None, alias.step.mode)
        else:
            memory = geometry.root_of(alias)
            behind = next((each for each in self.inputs.behind if each.alias is memory), None)
            index = None if behind is None else behind.source.index
            owner = memory.tensor if index is None else self.inputs.leaves[index].value
            assert owner is not None
            made = self._made_of(owner, descriptor)
            step = self._window(tensor, owner)
        of = made if isinstance(made, FromCaller | BaseOf) else FromRecipe(self._make(made))
        return View(of, (step, *([] if viewed else self._own_history(alias))))

    def _now(self, root: Alias) -> Alias:
        """What the owner of the memory is since `t_` and its like changed its shape."""
        if root.tensor is None:
            return root
        current = self.tracer.scope.aliases[id(root.tensor)]
        return current if current.storage is root.storage else root

    def _input_as(self, alias: Alias) -> FromCaller | None:
        """The input that shows `alias`: from the beginning, or moved to other memory."""
        place = None if alias.tensor is None else self.inputs.index.get(id(alias.tensor))
        if place is None:
            return None
        first = self.inputs.aliases[place]
        moved = alias.storage is not first.storage and self._now(alias) is alias
        return FromCaller(place, moved) if moved or first is alias else None

    def _input_place(self, alias: Alias) -> int | None:
        if alias.tensor is None:
            return None
        place = self.inputs.index.get(id(alias.tensor))
        return place if place is not None and self.inputs.aliases[place] is alias else None

    def _base(self, root: Alias, descriptor: Result | MetadataMutation, whole: bool) -> int:
        """The output with the value of `root`, which results are views of or are themselves."""
        if root not in self._bases:
            node = aliasing.read(self.tracer.emitter, root)
            if root.place is not None and geometry.shows(root, root.place):
                node = geometry.with_strides_of(self.tracer.emitter, node, root.place)
            self._bases[root] = self._output(node, None)
        index = self._bases[root]
        if whole and self.descriptors[index] is None:
            self.descriptors[index] = descriptor
        self._bases_of.setdefault(index, []).append(descriptor)
        return index

    def _steps_from(self, chain: Sequence[Alias], now: Alias) -> list[Step]:
        """How the first of `chain` is made of what the tensor of the last shows now."""
        # A view of what the tensor shows now is made as the program made it.
        return self._steps(chain[: chain.index(now) + 1]) if now in chain else self._by_place(chain)

    def _steps(self, chain: Sequence[Alias]) -> list[Step]:
        """How the first of `chain` is made of the last."""
        steps: list[Step] = []
        made = chain[0]
        for alias in reversed(chain[:-1]):
            if alias.tensor is not None and _is_a_window(alias):
                assert made.place is not None
                assert chain[-1].place is not None
                steps = [self._window(made.place, chain[-1].place)]
                break
            if isinstance(alias.step, Spread):
                continue
            steps.append(self._replay(alias, in_place=alias.tensor is made.tensor))
        if any(alias.starts_family for alias in chain[:-1]):
            steps += self._own_history(made)
        return steps

    def _by_place(self, chain: Sequence[Alias]) -> list[Step]:
        """The same, by place in memory: the last of `chain` has changed its shape since."""
        first, root = chain[0], chain[-1]
        assert first.tensor is not None
        assert first.step is not None
        assert root.tensor is not None
        place = self._window(first.tensor, root.tensor)
        if any(alias.starts_family for alias in chain[:-1]):
            return [place, *self._own_history(first)]
        if place.dtype != root.tensor.dtype or first.tensor.is_conj():
            raise self.tracer.unsupported("a view", "what it is a view of has changed its shape")
        args = (place.shape, place.stride, place.offset)
        return [Replay(aten.as_strided.default, args, (), None, first.step.mode)]

    def _window(self, tensor: torch.Tensor, owner: torch.Tensor) -> Window:
        start = owner.storage_offset() * owner.dtype.itemsize // tensor.dtype.itemsize
        place = (tuple(tensor.shape), tensor.stride(), tensor.storage_offset() - start)
        place = self.tracer.emitter.number_nodes(place)
        return Window(tensor.dtype, *trees.map_leaves(self._number, place))

    def _own_history(self, alias: Alias) -> list[Step]:
        if not (alias.has_history and alias.tensor is not None):
            return []
        node = aliasing.read(self.tracer.emitter, alias)
        if not alias.tensor.is_leaf:
            return [Overwrite(self._view_argument(node))]
        if node.target is as_leaf and node.users:
            raise self.tracer.unsupported(
                "requires_grad_",
                "the new leaf is returned, other results depend on it, and it shares memory",
            )
        return [RequireGrad()]

    def _replay(self, alias: Alias, in_place: bool) -> Replay:
        """The op that made `alias`; `in_place`: nobody else has the tensor that an op moved."""
        step, before = alias.step, alias.moved_from
        assert step is not None
        args: Any = step.args
        if alias.parent is not None and isinstance(alias.parent.step, Spread):
            before = alias.parent.parent
        if before is not None and before is not alias.parent:
            assert alias.place is not None
            assert before.place is not None
            place = self._window(alias.place, before.place)
            args = (place.shape, place.stride, place.offset)
        args, named = trees.map_leaves(self._number, (args, step.kwargs))
        op = step.op
        if in_place and alias.moved_by is not None:
            op = alias.moved_by if before is alias.parent else aten.as_strided_.default
        # Autograd refuses to derive anew what was made without grad, or as one of several views.
        anew = alias.is_regenerated and not (step.mode.grad_enabled and step.output is None)
        return Replay(op, tuple(args), tuple(named.items()), step.output, step.mode, anew)

    def _number(self, leaf: Any) -> Any:
        return FromGraph(self._view_argument(leaf)) if isinstance(leaf, fx.Node) else leaf

    def _view_argument(self, node: fx.Node) -> int:
        if node not in self._numbers:
            kind = ViewValue if isinstance(node.meta["val"], torch.Tensor) else ViewArgument
            self._numbers[node] = self._output(node, kind(len(self._numbers)))
        return self._numbers[node]


def _leads_to(node: fx.Node, outputs: set[fx.Node]) -> bool:
    """One of `outputs` is computed from `node`."""
    seen, waiting = {node}, [node]
    while waiting:
        for user in waiting.pop().users:
            if user in outputs:
                return True
            if user not in seen:
                seen.add(user)
                waiting.append(user)
    return False


def _shows_all(now: Alias, root: Alias) -> bool:
    """What the owner of a memory has become shows all that it showed at first."""
    if now is root or now.place is None or root.place is None:
        return True
    return bool(now.place.numel() == root.place.numel())


def _is_a_window(alias: Alias) -> bool:
    """It came to share memory by no view op: `set_`, or an assignment to `.data`."""
    if alias.tensor is None or alias.parent is None or not alias.starts_family:
        return False
    if alias.tensor.is_inference():
        return False  # What a view is a view of, torch does not note there.
    if alias.step is not None and alias.step.op is aten.detach.default:
        # `.data` is a `detach` with a version counter of its own.
        viewed = alias.parent.tensor
        return viewed is not None and not share_version_counter(alias.tensor, viewed)
    return not alias.tensor._is_view()


def vars_of(value: Any) -> dict[str, Any]:
    """The attributes of an object that has any of its own; functions and classes have none here."""
    if callable(value):
        return {}
    return dict(getattr(value, "__dict__", {}))
