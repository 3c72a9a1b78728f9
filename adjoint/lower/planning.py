"""A graph becomes a plan: groups of items become kernels, everything else is called as it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import torch
from torch import fx

from adjoint.graph.evaluation import callable_of
from adjoint.graph.metadata import source_of
from adjoint.graph.purity import must_run
from adjoint.loops.plan import Argument, Invoke, Kind, Launch, Number, Plan, Slot, Step
from adjoint.loops.verify import verify
from adjoint.lower.decompositions import decompose
from adjoint.lower.definitions import CONSTANTS, Bound, Mapped, Reduced, definition_of
from adjoint.lower.fusion import Group, fuse
from adjoint.lower.items import Item, item_of, strides_of
from adjoint.lower.nests import nest_of
from adjoint.lower.sizes import size_of
from adjoint.lower.views import PARTS, shape_of, view_of
from adjoint.torch_private import trees
from adjoint.torch_private.operators import OpOverload
from adjoint.torch_private.symbols import input_symbols

aten = torch.ops.aten

DTYPES = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    }
)

Unit: TypeAlias = "Group | fx.Node"


def lower(graph_module: fx.GraphModule) -> Plan:
    """The plan that computes the outputs of a graph."""
    return _Planning(decompose(graph_module)).run()


def is_plain(value: Any) -> bool:
    """A tensor that kernels can read and write."""
    return (
        isinstance(value, torch.Tensor)
        and value.dtype in DTYPES
        and value.device.type == "cpu"
        and value.layout is torch.strided
    )


def require_within(index: torch.Tensor, low: int, high: int) -> None:
    """Indices must be in range(low, high)."""
    if index.numel():
        least, most = torch.aminmax(index)
        if int(least) < low or int(most) >= high:
            wrong = int(least) if int(least) < low else int(most)
            raise IndexError(f"index {wrong} is out of bounds for dimension with size {high}")


def _filled(shape: list[int], strides: list[int], value: float, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype).fill_(value)


# Tensors like others: what fills them, or which argument does.
FILLED: dict[Any, bool | int] = {
    aten.zeros_like.default: False,
    aten.ones_like.default: True,
    aten.full_like.default: 1,
    aten.new_zeros.default: False,
    aten.new_ones.default: True,
    aten.new_full.default: 2,
}


class _Planning:
    def __init__(self, graph_module: fx.GraphModule) -> None:
        self.module = graph_module
        self.graph = graph_module.graph
        self.order = {node: place for place, node in enumerate(self.graph.nodes)}
        self.items: dict[fx.Node, Item] = {}
        self.needs: dict[fx.Node, set[fx.Node]] = {}
        self.slots: dict[fx.Node, Slot] = {}
        self.extra: list[Slot] = []
        self.steps: list[Step] = []
        self.stored: set[fx.Node] = set()
        self.group_of: dict[fx.Node, Group] = {}
        self.bounds: dict[Bound, fx.Node] = {}
        self.checked: set[Any] = set()

    def run(self) -> Plan:
        live = self._live()
        self._classify(live)
        for group in fuse(self.items.values(), self.needs):
            for node in group.members:
                self.group_of[node] = group
        self._decide_storage(live)
        self.escaping = self._escaping()
        inputs = [n for n in self.graph.nodes if n.op == "placeholder"]
        for node in inputs:
            self._slot(node, Kind.INPUT)
        for unit in self._sorted(live):
            self._emit(unit)
        outputs = trees.map_leaves(self._argument, self._output())
        slots = sorted([*self.slots.values(), *self.extra], key=lambda slot: slot.number)
        return Plan(
            tuple(slots),
            tuple(self.slots[node].number for node in inputs),
            tuple(input_symbols([node.meta.get("val") for node in inputs])),
            tuple(self.steps),
            outputs,
        )

    # What there is

    def _output(self) -> Any:
        return next(node for node in self.graph.nodes if node.op == "output").args[0]

    def _live(self) -> list[fx.Node]:
        """The nodes to run, in order: those the outputs need, and those with effects."""
        found: set[fx.Node] = set()
        work = [node for node in self.graph.nodes if node.op == "output" or must_run(node)]
        while work:
            node = work.pop()
            if node not in found:
                found.add(node)
                if not (node.target in FILLED and self._is_constant(node)):
                    work += node.all_input_nodes
        return [n for n in self.graph.nodes if n in found and n.op not in ("output", "placeholder")]

    def _classify(self, live: Iterable[fx.Node]) -> None:
        for node in live:
            if node.target in CONSTANTS and is_plain(node.meta.get("val")):
                self.needs[node] = set()
                if definition_of(node) is None:
                    self.needs[node] = set(node.all_input_nodes)
                continue
            item = self._item(node)
            if item is not None:
                self.items[node] = item
                self.needs[node] = {base for base, _ in item.reads}
                self.needs[node] |= {resolve_base(b.node) for b in _bounds(item)}
            else:
                self.needs[node] = {resolve_base(n) for n in node.all_input_nodes}
                self.needs[node] |= set(node.all_input_nodes)

    def _item(self, node: fx.Node) -> Item | None:
        values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
        if not all(map(is_plain, values)):
            return None
        definition = definition_of(node)
        if definition is None:
            return None
        try:
            item = item_of(node, definition)
        except NotImplementedError:
            return None
        # Rows and columns of nothing are not worth a loop; what eager makes of them, a call does.
        return None if 0 in item.domain else item

    def _is_constant(self, node: fx.Node) -> bool:
        return node.target in CONSTANTS and isinstance(definition_of(node), Mapped)

    def _decide_storage(self, live: Iterable[fx.Node]) -> None:
        """Values that are needed outside the group that computes them."""
        wanted = list(self._tensors_of(self._output()))
        for node in live:
            if node in self.items:
                here = self.group_of[node]
                wanted += [n for n in self.needs[node] if self.group_of.get(n) is not here]
                wanted += [bound.node for bound in _bounds(self.items[node])]
            elif not (view_of(node) or self._is_constant(node) or node.target in PARTS):
                wanted += node.all_input_nodes
        self.as_tensors: set[fx.Node] = set()
        for node in wanted:
            base = resolve_base(node)
            if base in self.items:
                self.stored.add(base)
            if self._is_constant(base):
                self.as_tensors.add(base)
            while view_of(node) is not None:
                self.as_tensors.add(node)
                node = node.all_input_nodes[0]
                if node.target in PARTS:
                    self.as_tensors.add(node)
                    node = node.all_input_nodes[0]

    def _escaping(self) -> set[fx.Node]:
        """What the caller may hold on to: outputs, and what they may share memory with."""
        found: set[fx.Node] = set()
        work = self._tensors_of(self._output())
        while work:
            node = work.pop()
            if node not in found:
                found.add(node)
                if node not in self.items and node.op == "call_function" and _may_alias(node):
                    work += node.all_input_nodes
        return found

    def _tensors_of(self, tree: Any) -> list[fx.Node]:
        found: list[fx.Node] = []
        fx.map_arg(tree, found.append)
        return found

    # Order

    def _sorted(self, live: list[fx.Node]) -> list[Unit]:
        """Each unit after all it needs, otherwise as late as the last of its nodes stands."""
        done: set[int] = set()
        result: list[Unit] = []

        def unit_of(node: fx.Node) -> Unit | None:
            if node in self.group_of:
                return self.group_of[node]
            if node.op == "placeholder":
                return None
            if self._is_constant(node) or view_of(node) is not None or node.target in PARTS:
                return node if node in self.as_tensors else None
            return node

        def needed(unit: Unit) -> list[Unit]:
            nodes = list(unit.members) if isinstance(unit, Group) else [unit]
            found: list[Unit] = []
            for node in nodes:
                for need in self.needs[node]:
                    other = unit_of(need)
                    if other is not None and other is not unit:
                        found.append(other)
            return found

        for node in live:
            unit = unit_of(node)
            if unit is None or (isinstance(unit, Group) and node is not list(unit.members)[-1]):
                continue
            stack: list[tuple[Unit, bool]] = [(unit, False)]
            while stack:
                each, ready = stack.pop()
                if id(each) in done:
                    continue
                if ready:
                    done.add(id(each))
                    result.append(each)
                else:
                    stack.append((each, True))
                    stack += [(n, False) for n in needed(each) if id(n) not in done]
        return result

    # Steps

    def _slot(self, node: fx.Node, kind: Kind) -> Slot:
        value: Any = node.meta.get("val")
        number = len(self.slots) + len(self.extra)
        if is_plain(value):
            slot = Slot(number, kind, shape_of(node), strides_of(node), value.dtype)
        else:
            slot = Slot(number, kind)
        self.slots[node] = slot
        return slot

    def _emit(self, unit: Unit) -> None:
        if isinstance(unit, Group):
            self._launch(unit)
        else:
            self._call(unit)

    def _launch(self, group: Group) -> None:
        for item in group.items:
            for bound in _bounds(item):
                self._check(bound, item)
            if item.node in self.stored:
                kind = Kind.OUTPUT if item.node in self.escaping else Kind.TEMPORARY
                self._slot(item.node, kind)
        needed = {node for node in group.members if node in self.stored}
        nest = nest_of(group, needed)
        operands = tuple(
            self.slots[each].number if isinstance(each, fx.Node) else each for each in nest.operands
        )
        self.steps.append(Launch(verify(nest.kernel), operands, nest.extents, nest.work))

    def _check(self, bound: Bound, item: Item) -> None:
        key = (bound.node, bound.low, bound.high)
        if key in self.checked:
            return
        self.checked.add(key)
        args = (Argument(self.slots[bound.node].number), Number(bound.low), Number(bound.high))
        slot = Slot(len(self.slots) + len(self.extra), Kind.RESULT)
        self.extra.append(slot)
        line = source_of(item.node)
        self.steps.append(
            Invoke(require_within, args, {}, slot.number, line=str(line) if line else "")
        )

    def _argument(self, leaf: Any) -> Any:
        if isinstance(leaf, fx.Node):
            return Argument(self.slots[leaf].number)
        return Number(size_of(leaf)) if isinstance(leaf, torch.SymInt) else leaf

    def _filled_arguments(self, node: fx.Node) -> tuple[Any, ...]:
        value, place = node.meta["val"], FILLED[node.target]
        number = place if isinstance(place, bool) else node.args[place]
        sizes = ([Number(size) for size in each] for each in (shape_of(node), strides_of(node)))
        return (*sizes, number, value.dtype)

    def _call(self, node: fx.Node) -> None:
        line = source_of(node)
        if node.op == "get_attr":
            value = getattr(self.module, str(node.target))
            self._slot(node, Kind.RESULT)
            self.steps.append(Invoke(lambda: value, (), {}, self.slots[node].number))
            return
        target: Any = callable_of(node.target)
        if node.target in FILLED and self._is_constant(node):
            # Of the tensor that it is like, only sizes matter: that may not be there at all.
            target, args, kwargs = _filled, self._filled_arguments(node), {}
        else:
            args, kwargs = trees.map_leaves(self._argument, (node.args, node.kwargs))
        writer = _WRITERS.get(node.target)
        writes = writer is not None and is_plain(node.meta["val"])
        kind = Kind.RESULT
        if writes:
            assert writer is not None
            target = writer
            kind = Kind.OUTPUT if node in self.escaping else Kind.TEMPORARY
        slot = self._slot(node, kind)
        self.steps.append(
            Invoke(
                target,
                args,
                dict(kwargs),
                slot.number,
                not writes and _may_alias(node),
                # What is called as `reshape` may copy, and then must in every call.
                view_of(node) is not None and _is_alias(target),
                writes,
                str(line) if line else "",
            )
        )


def _may_alias(node: fx.Node) -> bool:
    if node.target in _WRITERS or not isinstance(node.target, OpOverload):
        return node.target not in _WRITERS
    if node.target in _COPIES:
        return True
    return _is_alias(node.target)


def _is_alias(target: Any) -> bool:
    """Its result always shares memory with an argument; that of `flip` never does."""
    return isinstance(target, OpOverload) and any(
        result.alias_info is not None for result in target._schema.returns
    )


def resolve_base(node: fx.Node) -> fx.Node:
    """The tensor that a view is of; any other is itself."""
    while (view := view_of(node)) is not None:
        node = view[0]
    return node


def _bounds(item: Item) -> tuple[Bound, ...]:
    return () if isinstance(item.definition, Reduced) else item.definition.bounds


# Operators that write their result where they are told.
_WRITERS: dict[Any, Any] = {
    aten.mm.default: torch.mm,
    aten.bmm.default: torch.bmm,
    aten.addmm.default: torch.addmm,
}


# Said to copy, but called as something that need not.
_COPIES = frozenset({aten._unsafe_view.default, aten.reshape.default, aten.contiguous.default})
