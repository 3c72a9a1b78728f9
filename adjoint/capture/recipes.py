"""Recipes: how tensors that a program returns are made outside the graph.

A tensor that aliases an input, or another result, is made by replaying in eager torch the view ops
that lead to it from there; any other is an output of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx
from typing_extensions import assert_never

from adjoint.capture.inputs import Inputs
from adjoint.capture.outputs import Outputs, Wanted
from adjoint.graph.calling import (
    BaseOf,
    Constant,
    FromCaller,
    FromGraph,
    FromRecipe,
    Overwrite,
    Recipe,
    Replay,
    RequireGrad,
    Step,
    View,
    Window,
    Write,
)
from adjoint.graph.metadata import Mode
from adjoint.graph.operations import as_leaf
from adjoint.open_types import OpArgument
from adjoint.torch_private import trees
from adjoint.torch_private.autograd import share_version_counter
from adjoint.torch_private.operators import OpOverload
from adjoint.trace import aliasing, geometry
from adjoint.trace.aliasing import Alias, Link
from adjoint.trace.tracer import Tracer
from adjoint.trace.views import Spread

aten = torch.ops.aten


class Recipes:
    """Collects the recipes of a calling convention, one for each distinct tensor."""

    def __init__(self, tracer: Tracer, inputs: Inputs, outputs: Outputs) -> None:
        self.tracer = tracer
        self.inputs = inputs
        self.outputs = outputs
        self.all: list[Recipe] = []
        self._by_tensor: dict[int, int] = {}
        """By the id of the tensor: the position of its recipe."""

    def add(self, recipe: Recipe) -> int:
        """Add a recipe; gives its position."""
        self.all.append(recipe)
        return len(self.all) - 1

    def for_result(self, tensor: torch.Tensor, wanted: Wanted) -> int:
        """The position of the recipe of a tensor that the program returns."""
        if id(tensor) not in self._by_tensor:
            self._by_tensor[id(tensor)] = self.add(self.of_tensor(tensor, wanted))
        return self._by_tensor[id(tensor)]

    def of_tensor(self, tensor: torch.Tensor, wanted: Wanted) -> Recipe:
        """How `tensor` is made."""
        if id(tensor) in self.inputs.index:
            return FromCaller(self.inputs.index[id(tensor)])
        if id(tensor) in self.inputs.base_of:
            return BaseOf(self.inputs.base_of[id(tensor)])
        return self.of_alias(self.tracer.origin(self.tracer.alias(tensor)), wanted)

    def of_alias(self, alias: Alias, wanted: Wanted) -> Recipe:
        """How a tensor with the sizes, strides, storage and history of `alias` is made."""
        if id(alias.tensor) in self.inputs.base_of:
            return BaseOf(self.inputs.base_of[id(alias.tensor)])
        chain = list(alias.origins())
        owns_memory = alias is self._current(chain[-1])
        if alias.link is Link.FOREIGN and not owns_memory and not self._is_input(alias):
            return self._in_shared_storage(alias, wanted)
        for count, each in enumerate(chain, 1):
            source = self._input_as(each)
            if source is not None:
                steps = self._steps(chain[:count])
                return View(source, tuple(steps)) if steps else source
            if each.tensor is alias.tensor or each is chain[-1]:
                continue
            if each.starts_family:
                # Its views have it as their `_base`, whether or not it is returned itself.
                return self._view_of(self._current(each), chain[:count], wanted)
        root = chain[-1]
        if id(root.tensor) in self.inputs.base_of:
            base = BaseOf(self.inputs.base_of[id(root.tensor)])
            return View(base, tuple(self._steps(chain)))
        current = self._current(root)
        whole = alias is current
        if not _shows_all(current, root):
            if not whole:
                return self._view_of(current, chain, wanted)
            of = FromGraph(self._base(root, wanted, whole=False))
            steps = self._steps(chain)
            if any(each.starts_family for each in chain[:-1]):
                steps.append(Replay(aten.detach_.default, (), (), None, Mode()))
            return View(of, tuple(steps))
        of = FromGraph(self._base(current, wanted, whole))
        steps = self._steps_from(chain, current)
        if whole and alias.tensor is not None and alias.tensor.requires_grad:
            steps += [RequireGrad()] if alias.tensor.is_leaf else []
        return View(of, tuple(steps)) if steps else of

    def _view_of(self, base: Alias, chain: Sequence[Alias], wanted: Wanted) -> View:
        """The first of `chain`, as a view of the tensor that the recipe of `base` makes."""
        key = id(base.tensor)
        if key not in self._by_tensor:
            self._by_tensor[key] = self.add(self.of_alias(base, wanted))
        return View(FromRecipe(self._by_tensor[key]), tuple(self._steps_from(chain, base)))

    def _in_shared_storage(self, alias: Alias, wanted: Wanted) -> Recipe:
        """A tensor that is not a view of its parent alias, but shares its storage."""
        tensor = alias.tensor
        assert tensor is not None
        assert alias.step is not None
        viewed = alias.reaches_out_of
        owner: torch.Tensor | None
        if tensor._is_view():
            owner = tensor._base if viewed is None else viewed.tensor
        else:
            root = geometry.root_of(alias)
            implicit = next((each for each in self.inputs.implicit if each.alias is root), None)
            index = None if implicit is None else implicit.source.index
            owner = root.tensor if index is None else self.inputs.leaves[index].value
        assert owner is not None
        recipe = self.of_tensor(owner, wanted)
        steps: list[Step]
        if tensor._is_view():
            steps = self._as_strided(tensor, owner, alias.step.mode)
        else:
            steps = [self._window(tensor, owner)]
        of = recipe if isinstance(recipe, FromCaller | BaseOf) else FromRecipe(self.add(recipe))
        return View(of, (*steps, *([] if viewed else self._own_history(alias))))

    def _base(self, alias: Alias, wanted: Wanted, whole: bool) -> int:
        """The output with the value of `alias`, of which results are views or which is one
        itself."""
        index = self.outputs.base(alias)
        if index is None:
            node = aliasing.read(self.tracer.emitter, alias)
            if alias.place is not None and geometry.shows(alias, alias.place):
                node = geometry.with_strides_of(self.tracer.emitter, node, alias.place)
            index = self.outputs.add_base(alias, node)
        self.outputs.want_base(index, wanted, whole)
        return index

    # Aliases and inputs -----------------------------------------------------------------------

    def _current(self, root: Alias) -> Alias:
        """The alias that the tensor of `root` has since metadata ops such as `t_` changed it."""
        if root.tensor is None:
            return root
        current = self.tracer.scope.aliases[id(root.tensor)]
        return current if current.storage is root.storage else root

    def _input_as(self, alias: Alias) -> FromCaller | None:
        """The input that has `alias`: since the beginning, or after it moved to another storage."""
        index = None if alias.tensor is None else self.inputs.index.get(id(alias.tensor))
        if index is None:
            return None
        first = self.inputs.aliases[index]
        moved = alias.storage is not first.storage and self._current(alias) is alias
        return FromCaller(index, moved) if moved or first is alias else None

    def _is_input(self, alias: Alias) -> bool:
        """Whether an input had `alias` when the program began."""
        if alias.tensor is None:
            return False
        index = self.inputs.index.get(id(alias.tensor))
        return index is not None and self.inputs.aliases[index] is alias

    # Views of other results -------------------------------------------------------------------

    def is_plain_view(self, position: int) -> bool:
        """Whether a recipe consists of view ops alone, none of which autograd regenerates."""
        recipe = self.all[position]
        if not isinstance(recipe, View) or recipe.is_regenerated:
            return False
        return all(isinstance(step, Replay) for step in recipe.steps)

    def derive_from_result(self, position: int, tensor: torch.Tensor) -> None:
        """Replay a returned view from the nearest result that it is a view of, if there is one."""
        chain = list(self.tracer.origin(self.tracer.alias(tensor)).origins())
        for count, each in enumerate(chain, 1):
            is_result = count > 1 and id(each.tensor) in self._by_tensor and self._is_current(each)
            of = self._by_tensor[id(each.tensor)] if is_result else None
            if is_result and not _has_history_through(each.tensor, tensor, count):
                of = None
            if of is not None and self.is_plain_view(of):
                self.all[position] = View(FromRecipe(of), tuple(self._steps(chain[:count])))
                return
            if each.starts_family:
                return

    def _is_current(self, alias: Alias) -> bool:
        """Whether `alias` is the current one of its tensor, whose views are then views of it."""
        tensor = alias.tensor
        return tensor is not None and self.tracer.origin(self.tracer.alias(tensor)) is alias

    def base_node(self, recipe: Recipe | FromRecipe, writes: Sequence[Write]) -> fx.Node | None:
        """The graph output that a recipe starts from, also if it is written to an input."""
        match recipe:
            case FromGraph(index):
                return self.outputs.nodes[index]
            case FromRecipe(index):
                return self.base_node(self.all[index], writes)
            case View(of, _):
                return self.base_node(of, writes)
            case FromCaller():
                values = (each.value for each in writes if each.to == recipe)
                return next((self.outputs.nodes[value] for value in values), None)
            case BaseOf() | Constant():
                return None
            case _:
                assert_never(recipe)

    # Steps ------------------------------------------------------------------------------------

    def _steps_from(self, chain: Sequence[Alias], current: Alias) -> list[Step]:
        """The steps to the first of `chain` from what the tensor of the last is now."""
        if current in chain:
            return self._steps(chain[: chain.index(current) + 1])
        return self._steps_by_strides(chain)

    def _steps(self, chain: Sequence[Alias]) -> list[Step]:
        """The steps that make the first of `chain` of the last: the program's own view ops."""
        steps: list[Step] = []
        first, last = chain[0], chain[-1]
        for alias in reversed(chain[:-1]):
            if alias.tensor is not None and _is_made_without_view_op(alias):
                assert first.place is not None
                assert last.place is not None
                steps = [self._window(first.place, last.place)]
                break
            if isinstance(alias.step, Spread):
                continue
            steps.append(self._replay(alias, in_place=alias.tensor is first.tensor))
        if any(alias.starts_family for alias in chain[:-1]):
            steps += self._own_history(first)
        return steps

    def _steps_by_strides(self, chain: Sequence[Alias]) -> list[Step]:
        """The steps as sizes, strides and offsets, needed if the last of `chain` has another shape
        now.
        """
        first, root = chain[0], chain[-1]
        assert first.tensor is not None
        assert first.step is not None
        assert root.tensor is not None
        if any(alias.starts_family for alias in chain[:-1]):
            return [self._window(first.tensor, root.tensor), *self._own_history(first)]
        if first.tensor.dtype != root.tensor.dtype or first.tensor.is_conj():
            raise self.tracer.unsupported("a view", "what it is a view of has changed its shape")
        return self._as_strided(first.tensor, root.tensor, first.step.mode)

    def _window(self, tensor: torch.Tensor, owner: torch.Tensor) -> Window:
        start = owner.storage_offset() * owner.dtype.itemsize // tensor.dtype.itemsize
        place = (tuple(tensor.shape), tensor.stride(), tensor.storage_offset() - start)
        return Window(tensor.dtype, *self.from_graph(place))

    def _as_strided(self, tensor: torch.Tensor, owner: torch.Tensor, mode: Mode) -> list[Step]:
        """The views that make `tensor` of `owner`, by where it lies in memory."""
        window = self._window(tensor, owner)
        has_parts = owner.dtype.is_complex and tensor.dtype == owner.dtype.to_real()
        strided = (aten.as_strided.default, (window.shape, window.stride, window.offset))
        calls: list[tuple[OpOverload, tuple[object, ...]]] = [strided]
        if has_parts or _lazy_bits(tensor) != _lazy_bits(owner):
            # Applied once more, a conjugation is undone.
            undone, applied = ([(op, ()) for op in _lazy_bits(x)] for x in (owner, tensor))
            parts = [(aten.view_as_real.default, ())] if has_parts else []
            calls = [*undone, *parts, strided, *applied]
        if owner.dtype != tensor.dtype and not has_parts:
            if owner.dtype.itemsize != tensor.dtype.itemsize:
                raise self.tracer.unsupported("a view", "it shows the memory of another dtype")
            calls = [(aten.view.dtype, (tensor.dtype,)), *calls]
        return [Replay(op, args, (), None, mode) for op, args in calls]

    def _own_history(self, alias: Alias) -> list[Step]:
        """The step that gives a tensor a history that it does not share with its base."""
        if not (alias.has_history and alias.tensor is not None):
            return []
        node = aliasing.read(self.tracer.emitter, alias)
        if not alias.tensor.is_leaf:
            return [Overwrite(self.outputs.replay_value(node))]
        if node.target is as_leaf and node.users:
            raise self.tracer.unsupported(
                "requires_grad_",
                "the new leaf is returned, other results depend on it, and it shares memory",
                "call requires_grad_() on a clone(), or return it from another function",
                node,
            )
        return [RequireGrad()]

    def _replay(self, alias: Alias, in_place: bool) -> Replay:
        """Replay the op that made `alias`; `in_place`: as the metadata op that it was."""
        step, before = alias.step, alias.moved_from
        assert step is not None
        args: tuple[object, ...] = step.args
        if alias.parent is not None and isinstance(alias.parent.step, Spread):
            before = alias.parent.parent
        if before is not None and before is not alias.parent:
            assert alias.place is not None
            assert before.place is not None
            window = self._window(alias.place, before.place)
            args = (window.shape, window.stride, window.offset)
        args, named = self.from_graph((args, step.kwargs))
        op = step.op
        if in_place and alias.moved_by is not None:
            op = alias.moved_by if before is alias.parent else aten.as_strided_.default
        # Autograd refuses to regenerate a view made under no_grad, or as one of several results.
        is_refused = not (step.mode.grad_enabled and step.output is None)
        regenerated = alias.is_regenerated and is_refused
        return Replay(op, tuple(args), tuple(named.items()), step.output, step.mode, regenerated)

    def from_graph(self, tree: object) -> OpArgument:
        """`tree`, with each node and each symbolic number read from the outputs of the graph."""
        return trees.map_leaves(
            lambda leaf: (
                FromGraph(self.outputs.replay_value(leaf)) if isinstance(leaf, fx.Node) else leaf
            ),
            self.tracer.emitter.number_nodes(tree),
        )


def _shows_all(current: Alias, root: Alias) -> bool:
    """Whether the owner of a storage still shows all elements that it showed at first."""
    if current is root or current.place is None or root.place is None:
        return True
    return bool(current.place.numel() == root.place.numel())


def _is_made_without_view_op(alias: Alias) -> bool:
    """Whether a tensor came to share its storage by `set_` or an assignment to `.data`."""
    if alias.tensor is None or alias.parent is None or not alias.starts_family:
        return False
    if alias.tensor.is_inference():
        return False  # An inference tensor does not know its base.
    if alias.step is not None and alias.step.op is aten.detach.default:
        # `.data` is a `detach` with a version counter of its own.
        viewed = alias.parent.tensor
        return viewed is not None and not share_version_counter(alias.tensor, viewed)
    return not alias.tensor._is_view()


def _has_history_through(other: torch.Tensor | None, view: torch.Tensor, steps: int) -> bool:
    """Whether the history of a view leads to that of `other` by at most `steps` view ops.

    Not after a write: autograd then regenerates each view from the base.
    """
    found = view.grad_fn
    for _ in range(steps):
        if found is None or other is None or found is other.grad_fn:
            break
        found = found.next_functions[0][0] if found.next_functions else None
    return other is not None and found is other.grad_fn


def _lazy_bits(tensor: torch.Tensor) -> list[OpOverload]:
    """The views that apply the conjugation and negation that `tensor` carries."""
    conjugation = [aten._conj.default] if tensor.is_conj() else []
    return conjugation + ([aten._neg_view.default] if tensor.is_neg() else [])
