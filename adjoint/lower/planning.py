"""A graph becomes a plan: groups of items become kernels, everything else is called as it is."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from adjoint.failing import works_on
from adjoint.graph.capturable import why_not_capturable
from adjoint.graph.evaluation import eager_callable
from adjoint.graph.metadata import source_of
from adjoint.graph.purity import is_impure
from adjoint.loops.plan import (
    Argument,
    Launch,
    LibraryCall,
    Matrix,
    Number,
    Plan,
    Product,
    RowTiles,
    Scratch,
    Slot,
    SlotKind,
    Step,
    operands_of,
)
from adjoint.loops.verify import verify
from adjoint.lower.calls import (
    READS_LAYOUT,
    WRITERS,
    expected_of,
    is_returned,
    is_view,
    may_alias,
    needs_of_call,
    needs_of_tensors,
)
from adjoint.lower.definitions import (
    CONSTANTS,
    Bound,
    Definition,
    Scattered,
    definition_of,
)
from adjoint.lower.draws import streams_of
from adjoint.lower.fusion import Group, fuse
from adjoint.lower.grids import grids_of
from adjoint.lower.inlining import inlined
from adjoint.lower.items import Item, base_of, item_of, strides_of, text_of
from adjoint.lower.nests import nest_of, parts_of, sum_of_parts
from adjoint.lower.operands import Nest
from adjoint.lower.products import is_plain_product, product_nests, product_of
from adjoint.lower.recomputation import Recomputation
from adjoint.lower.rereading import read_less
from adjoint.lower.sizes import Size, simplified, size_of
from adjoint.lower.tiling import Region, Unit, is_product, row_stride, side_of, tiled
from adjoint.lower.views import PARTS, shape_of, view_of
from adjoint.target import CPU, Target
from adjoint.torch_private import trees
from adjoint.torch_private.symbols import input_symbols

aten = torch.ops.aten

# A row of a region counts as so many elements when threads are shared out.
WORK_IN_A_ROW = 256

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


def lower(
    graph_module: fx.GraphModule, target: Target, called: Collection[str] = frozenset()
) -> Plan:
    """The plan that computes the outputs of a graph on a target.

    The passes before lowering (`pipeline.py`) have rewritten the graph, and lowering may change it.
    `called`: names of nodes that are to be called as they are.
    """
    plan = _Planning(graph_module, target, called).run()
    return replace(plan, streams=streams_of(graph_module.graph))


def is_plain(value: Any, device: torch.device = CPU) -> bool:
    """A tensor that kernels for `device` can read and write."""
    return (
        isinstance(value, torch.Tensor)
        and value.dtype in DTYPES
        and value.device == device
        and value.layout is torch.strided
    )


def require_within(
    index: torch.Tensor, low: int, high: int, dim: int, op: str, error: type[Exception]
) -> None:
    """Indices must be in range(low, high)."""
    if index.numel():
        least, most = torch.aminmax(index)
        if int(least) < low or int(most) >= high:
            wrong = int(least) if int(least) < low else int(most)
            where = f"dimension {dim} with size {high} ({op})"
            raise error(f"index {wrong} is out of bounds for {where}")


class _Planning:
    def __init__(
        self,
        graph_module: fx.GraphModule,
        target: Target,
        called: Collection[str],
    ) -> None:
        self.target = target
        self.device = target.device
        self.called = called
        self.module = graph_module
        self.graph = graph_module.graph
        self.items: dict[fx.Node, Item] = {}
        self.needs: dict[fx.Node, set[fx.Node]] = {}
        self.slots: dict[fx.Node, Slot] = {}
        self.extra: list[Slot] = []
        self.steps: list[Step] = []
        self.stored: set[fx.Node] = set()
        self.group_of: dict[fx.Node, Group] = {}
        self.checked: set[Any] = set()
        self.twins: dict[fx.Node, fx.Node] = {}
        """What is computed again, and which value it is."""

    def run(self) -> Plan:
        live = self._live()
        self._classify(live)
        live = [node for node in live if node in self.needs]
        self._fuse(live)
        live = [n for n in live if n not in self.items or n in self.group_of]
        self._decide_storage(live)
        self.escaping = self._escaping()
        inputs = [n for n in self.graph.nodes if n.op == "placeholder"]
        for node in inputs:
            self._slot(node, SlotKind.INPUT)
        ordered = self._sorted(live)
        if self.target.waits_for_memory:
            ordered, self.twins = Recomputation(
                ordered,
                self.graph,
                self.needs,
                self.stored,
                self.escaping,
                may_alias,
                self.target.rates.operators_per_byte,
            ).run()
        units: Sequence[Unit | Region] = ordered
        if self.target.tiles_rows:
            units = tiled(ordered, self._needed, self._may_be_tiled)
        self.users = self._users(units)
        for unit in units:
            self._emit(unit)
        for node in self._tensors_of(self._output()):
            self._ensure(node)
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
        work = [node for node in self.graph.nodes if node.op == "output" or is_impure(node)]
        while work:
            node = work.pop()
            if node not in found:
                found.add(node)
                if node.target not in CONSTANTS or self._item(node) is None:
                    work += node.all_input_nodes
        return [n for n in self.graph.nodes if n in found and n.op not in ("output", "placeholder")]

    def _classify(self, live: Iterable[fx.Node]) -> None:
        found: dict[fx.Node, Item | None] = {}
        texts: dict[Any, fx.Node] = {}
        for node in live:
            item = found[node] = self._item(node)
            first = node if item is None else texts.setdefault(text_of(item), node)
            # However the graph spells it, what comes after reads the first; two tensors that are
            # returned are two.
            if first is not node and not is_returned(node):
                node.replace_all_uses_with(first)
                del found[node]
                # Or it would be taken for a reader of what it was made of.
                self.graph.erase_node(node)
        items = {node: item for node, item in found.items() if item is not None}
        if self.target.waits_for_memory:
            items = inlined(items)
        for node in found:
            if found[node] is None:
                self.needs[node] = needs_of_call(node)
            elif node in items:
                item = self.items[node] = items[node]
                self.needs[node] = {base for base, _ in item.reads}
                item.checked = needs_of_tensors(bound.node for bound in item.bounds)
                self.needs[node] |= item.checked
        # Effects happen in the order of the program, whatever is fused around them.
        effects = [node for node in self.needs if is_impure(node)]
        for earlier, later in itertools.pairwise(effects):
            self.needs[later].add(earlier)

    @works_on("node")
    def _item(self, node: fx.Node) -> Item | None:
        # What is made of nothing takes no more than a size from its arguments.
        given = [] if node.target in CONSTANTS else node.all_input_nodes
        if not is_plain(node.meta.get("val"), self.device) or not all(
            map(self._is_readable, given)
        ):
            return None
        definition = None if node.name in self.called else definition_of(node)
        if self.target.has_product_kernels and node.name not in self.called:
            definition = definition or product_of(node)
        if definition is None or _differs_from_eager(node, definition, self.target):
            return None
        if self.target.checks_indices_in_kernels:
            definition = replace(definition, bounds=())
        try:
            item = item_of(node, definition)
        except NotImplementedError:
            return None
        # Rows and columns of nothing are not worth a loop; what eager makes of them, a call does.
        return None if 0 in item.domain else item

    def _is_readable(self, node: fx.Node) -> bool:
        value: Any = node.meta.get("val")
        # A number that the program makes is known to kernels, wherever it lies.
        is_number = isinstance(value, torch.Tensor) and not value.dim()
        is_number = is_number and base_of(node).target in CONSTANTS
        return is_plain(value, value.device if is_number else self.device)

    def _fuse(self, live: Iterable[fx.Node]) -> None:
        outside = {base_of(node) for node in self._needed_outside(live)}
        groups = fuse(self.items.values(), self.needs, outside, alike=self.target.waits_for_memory)
        if self.target.waits_for_memory:
            groups = read_less(groups, self.items, outside)
        for group in groups:
            if is_plain_product(group):
                (node,) = group.members
                del self.items[node]
                self.needs[node] = needs_of_call(node)
                continue
            for item in group.items:
                self.group_of[item.node] = group
                self.items[item.node] = item
                self.needs[item.node] = {base for base, _ in item.reads} | item.checked

    def _needed_outside(self, live: Iterable[fx.Node]) -> list[fx.Node]:
        """What is needed by others than items."""
        wanted = list(self._tensors_of(self._output()))
        for node in live:
            if node in self.items:
                wanted += [bound.node for bound in self.items[node].bounds]
            elif not (view_of(node) or node.target in PARTS):
                wanted += node.all_input_nodes
        return wanted

    def _decide_storage(self, live: Iterable[fx.Node]) -> None:
        """Values that are needed outside the group that computes them."""
        live = list(live)
        wanted = self._needed_outside(live)
        for node in live:
            if node in self.items:
                here = self.group_of[node]
                reads = [base for base, _ in self.items[node].reads]
                wanted += [base for base in reads if self.group_of.get(base) is not here]
        for node in wanted:
            base = base_of(node)
            if base in self.items:
                self.stored.add(base)

    def _escaping(self) -> set[fx.Node]:
        """What the caller may hold on to: outputs, and what they may share memory with."""
        found: set[fx.Node] = set()
        work = self._tensors_of(self._output())
        while work:
            node = work.pop()
            if node not in found:
                found.add(node)
                if node not in self.items and node.op == "call_function" and may_alias(node):
                    work += node.all_input_nodes
        return found

    def _tensors_of(self, tree: Any) -> list[fx.Node]:
        found: list[fx.Node] = []
        fx.map_arg(tree, found.append)
        return found

    # Order

    def _unit_of(self, node: fx.Node) -> Unit | None:
        """What computes `node`; views are made where they are needed."""
        if node in self.group_of:
            return self.group_of[node]
        if node.op == "placeholder" or view_of(node) is not None or node.target in PARTS:
            return None
        return node

    def _needed(self, unit: Unit) -> list[Unit]:
        nodes = list(unit.members) if isinstance(unit, Group) else [unit]
        found = [self._unit_of(need) for node in nodes for need in self.needs[node]]
        return [each for each in found if each is not None and each is not unit]

    def _sorted(self, live: list[fx.Node]) -> list[Unit]:
        """Each unit after all it needs, otherwise as late as the last of its nodes stands."""
        done: set[int] = set()
        result: list[Unit] = []
        for node in live:
            unit = self._unit_of(node)
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
                    stack += [(n, False) for n in self._needed(each) if id(n) not in done]
        return result

    # Steps

    def _slot(self, node: fx.Node, kind: SlotKind) -> Slot:
        value: Any = node.meta.get("val")
        number = len(self.slots) + len(self.extra)
        if is_plain(value, self.device):
            slot = Slot(number, kind, shape_of(node), strides_of(node), value.dtype)
        else:
            slot = Slot(number, kind)
        self.slots[node] = slot
        return slot

    def _may_be_tiled(self, unit: Unit) -> bool:
        if isinstance(unit, Group):
            return any(node in self.stored for node in unit.members)
        return is_product(unit) and is_plain(unit.meta["val"], self.device)

    def _users(self, units: Sequence[Unit | Region]) -> dict[fx.Node, set[int]]:
        """For each value, the regions (or other units) that need it; 0 stands for the caller."""
        users: dict[fx.Node, set[int]] = {}
        for node in self._tensors_of(self._output()):
            users.setdefault(base_of(node), set()).add(0)
        for unit in units:
            inside = unit.units if isinstance(unit, Region) else [unit]
            for each in inside:
                nodes = list(each.members) if isinstance(each, Group) else [each]
                for need in {need for node in nodes for need in self.needs[node]}:
                    users.setdefault(need, set()).add(id(unit))
                for node in nodes:
                    for bound in self.items[node].bounds if node in self.items else ():
                        users.setdefault(base_of(bound.node), set()).add(0)
        return users

    def _ensure(self, node: fx.Node) -> None:
        """A view, made where a tensor is needed."""
        if node in self.slots or not (view_of(node) or node.target in PARTS):
            return
        for source in node.all_input_nodes:
            self._ensure(source)
        self._call(node)

    @works_on("unit")
    def _emit(self, unit: Unit | Region) -> None:
        if isinstance(unit, Region):
            self._tile(unit)
        elif isinstance(unit, Group):
            self._launch(unit)
        else:
            self._call(unit)

    def _launch(self, group: Group) -> None:
        needed = self._prepare(group)
        # Constants that no one reads but kernels, which know them, need no memory.
        if needed:
            self.steps += [self._launched(nest) for nest in self._nests(group, needed)]

    def _nests(self, group: Group, stored: set[fx.Node]) -> list[Nest]:
        if group.product is not None:
            return product_nests(group, stored)
        return grids_of(group, stored) if self.target.has_grid else [nest_of(group, stored)]

    def _prepare(self, group: Group, region: Region | None = None) -> set[fx.Node]:
        """Check indices, and give slots to what is stored, which is returned."""
        for item in group.items:
            for bound in item.bounds:
                self._check(bound, item)
        for node in group.members:
            if node in self.stored:
                self._slot(node, self._kind(node, region))
        return {node for node in group.members if node in self.stored}

    def _kind(self, node: fx.Node, region: Region | None = None) -> SlotKind:
        if node in self.escaping:
            return SlotKind.OUTPUT
        if region is not None and node in region.made and self.users[node] == {id(region)}:
            return SlotKind.LOCAL
        return SlotKind.TEMPORARY

    def _launched(self, nest: Nest, work: Size | None = None) -> Launch:
        operands = tuple(
            self.slots[each].number if isinstance(each, fx.Node) else each for each in nest.operands
        )
        work = nest.work if work is None else work
        nodes = tuple(self.twins.get(item.node, item.node).name for item in nest.items)
        return Launch(verify(nest.kernel), operands, nest.extents, work, nest.grid, nodes)

    def _tile(self, region: Region) -> None:
        work = simplified(region.rows * WORK_IN_A_ROW)
        begin: list[Launch] = []
        body: list[Launch | Product] = []
        finale: list[Launch] = []
        for unit in region.units:
            if isinstance(unit, Group):
                parts = parts_of(unit, self._prepare(unit, region), region.rows)
                if parts.begin is not None:
                    begin.append(self._launched(parts.begin, work))
                body.append(self._launched(parts.rows, work))
                if parts.finale is not None:
                    finale.append(self._launched(parts.finale, work))
            elif unit in region.after:
                clear, part, whole = self._summed(unit, work)
                begin.append(clear)
                body.append(part)
                finale.append(whole)
            else:
                self._slot(unit, self._kind(unit, region))
                body.append(self._product(unit, self.slots[unit].number, False))
        tiles = RowTiles(region.rows, work, tuple(begin), tuple(body), {})
        strides = self._row_strides(tiles)
        self.steps.append(replace(tiles, strides=strides))
        self.steps += finale

    def _row_strides(self, tiles: RowTiles) -> dict[int, Size]:
        used = {operand for operand in operands_of(tiles) if isinstance(operand, int)}
        nodes = {slot.number: node for node, slot in self.slots.items()}
        found = {number: row_stride(nodes[number], tiles.rows) for number in used}
        return {number: stride for number, stride in found.items() if stride is not None}

    def _product(self, node: fx.Node, result: int | Scratch, sums: bool) -> Product:
        left, right = (side_of(arg) for arg in node.args[:2] if isinstance(arg, fx.Node))
        assert left is not None
        assert right is not None
        sides = [Matrix(self.slots[s.base].number, s.offset, s.strides) for s in (left, right)]
        rows, inner = shape_of(node.args[0])  # type: ignore[arg-type]
        columns = shape_of(node)[1]
        dtype = node.meta["val"].dtype
        return Product(sides[0], sides[1], result, (rows, columns, inner), sums, dtype)

    def _summed(self, node: fx.Node, work: Size) -> tuple[Launch, Product, Launch]:
        """A product over all rows: each thread has a part, and they are added at the end."""
        self._slot(node, self._kind(node))
        scratch, begin, finale = sum_of_parts(node)
        return (
            self._launched(begin, work),
            self._product(node, scratch, True),
            self._launched(finale, work),
        )

    def _check(self, bound: Bound, item: Item) -> None:
        key = (bound.node, bound.low, bound.high)
        if key in self.checked:
            return
        self.checked.add(key)
        self._ensure(bound.node)
        index = Argument(self.slots[bound.node].number)
        limits = (Number(bound.low), Number(bound.high))
        args = (index, *limits, bound.dim, bound.op, bound.error)
        slot = Slot(len(self.slots) + len(self.extra), SlotKind.RESULT)
        self.extra.append(slot)
        line = str(source_of(item.node) or "")
        self.steps.append(LibraryCall(require_within, args, {}, slot.number, line=line))

    def _argument(self, leaf: Any) -> Any:
        if isinstance(leaf, fx.Node):
            return Argument(self.slots[leaf].number)
        return Number(size_of(leaf)) if isinstance(leaf, torch.SymInt) else leaf

    def _call(self, node: fx.Node) -> None:
        line = source_of(node)
        if node.op == "get_attr":
            value = getattr(self.module, str(node.target))
            self._slot(node, SlotKind.RESULT)
            why = why_not_capturable(node, self.device)
            number = self.slots[node].number
            self.steps.append(LibraryCall(lambda: value, (), {}, number, uncapturable=why))
            return
        for source in node.all_input_nodes:
            self._ensure(source)
        args, kwargs = trees.map_leaves(self._argument, (node.args, node.kwargs))
        target: Any = eager_callable(node.target)
        writer = WRITERS.get(node.target)
        writes = writer is not None and is_plain(node.meta["val"], self.device)
        kind = SlotKind.RESULT
        if writes:
            assert writer is not None
            target = writer
            kind = self._kind(node)
        slot = self._slot(node, kind)
        self.steps.append(
            LibraryCall(
                target,
                args,
                dict(kwargs),
                slot.number,
                not writes and may_alias(node),
                # A tensor made here lies as its fake does, so that a view of it copies nothing.
                is_view(node),
                writes,
                str(line) if line else "",
                why_not_capturable(node, self.device),
                node.target,
                () if writes else expected_of(node),
                node.target in READS_LAYOUT,
            )
        )


def _differs_from_eager(node: fx.Node, definition: Definition, target: Target) -> bool:
    """A kernel would give other numbers than eager does, or than the same kernel in another run."""
    if node.target in _WHOLE_QUOTIENTS and node.meta["val"].dtype.itemsize == 2:
        return not target.divides_halves_as_eager
    if not isinstance(definition, Scattered) or target.scatters_in_order:
        return False
    return torch.are_deterministic_algorithms_enabled()


_WHOLE_QUOTIENTS = frozenset(
    getattr(packet, overload)
    for packet in (aten.div, aten.fmod, aten.remainder, aten.floor_divide)
    for overload in packet.overloads()
    if packet is not aten.div or overload.endswith("_mode")
)
