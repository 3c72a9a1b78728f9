"""A graph becomes a plan: scheduled units become kernel launches, library calls and row tiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from torch import fx

from adjoint.failing import works_on
from adjoint.graph.capturable import why_not_capturable
from adjoint.graph.evaluation import eager_callable
from adjoint.graph.metadata import (
    callee_of,
    inputs_of,
    run_of,
    source_of,
    tensor_of,
    value_or_none,
)
from adjoint.graph.operations import require_within
from adjoint.loops.plan import (
    Argument,
    HeldConstant,
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
from adjoint.loops.runs import freeing_early
from adjoint.loops.verify import verify
from adjoint.lower.calls import (
    READS_LAYOUT,
    expected_of,
    is_view,
    may_alias,
    writer_of,
)
from adjoint.lower.definitions import (
    Bound,
)
from adjoint.lower.draws import streams_of
from adjoint.lower.grids import grid_nests
from adjoint.lower.groups import Group
from adjoint.lower.in_place import new_values, overwrite_inputs
from adjoint.lower.in_place_calls import write_in_place
from adjoint.lower.index_sets import split_index_sets
from adjoint.lower.items import Item, base_of, strides_of
from adjoint.lower.nests import partial_product, tile_nests
from adjoint.lower.operands import Nest
from adjoint.lower.products import product_nests
from adjoint.lower.row_tiles import RowTiling, Unit, is_product, row_stride, side_of, with_row_tiles
from adjoint.lower.scheduling import Schedule
from adjoint.lower.selection import is_plain
from adjoint.lower.sizes import Size, is_one, product, simplified, size_of, sizes
from adjoint.lower.strided_rows import nest_of
from adjoint.lower.titles import title_of
from adjoint.lower.views import PARTS, dtype_of, shape_of, view_of
from adjoint.target import Target
from adjoint.torch_private import trees
from adjoint.torch_private.fake import storage_key
from adjoint.torch_private.symbols import input_symbols, same_number

aten = torch.ops.aten

# Dtypes that the BLAS has matrix products for.
BLAS_DTYPES = (torch.float32, torch.float64)

# How many elements a row of row tiles counts as, when the number of threads is decided.
ROW_WORK_ELEMENTS = 256


def lower(
    graph_module: fx.GraphModule,
    target: Target,
    called: Collection[str] = frozenset(),
    overwrites: bool = False,
) -> Plan:
    """The plan that computes the outputs of a graph on a target.

    The passes before lowering (`pipeline.py`) have rewritten the graph, and lowering may change it.
    `called`: names of nodes that have to be library calls.  `overwrites`: new values of inputs may
    be stored in the inputs.
    """
    plan = _Planning(graph_module, target, called, overwrites).run()
    if target.writes_in_place:
        new = new_values(plan, graph_module.graph) if overwrites else []
        plan = overwrite_inputs(write_in_place(plan, new), new)
    gives_back = any(run_of(node) is not None for node in graph_module.graph.nodes)
    plan = freeing_early(plan) if gives_back else plan
    return replace(plan, gives_back=gives_back, streams=streams_of(graph_module.graph))


def _shows_all(view: fx.Node, base: fx.Node, slot: Slot) -> bool:
    """Whether the view spans the memory of a result, and has as many elements."""
    if slot.kind is not SlotKind.OUTPUT:
        return False
    shown, whole = tensor_of(view), tensor_of(base)
    if storage_key(shown) != storage_key(whole) or shown.dtype != whole.dtype:
        return False
    offsets = sizes((shown.storage_offset(), whole.storage_offset()))
    strides = zip(shape_of(base), sizes(whole.stride()), slot.strides, strict=True)
    if not same_number(*offsets):
        return False
    if not all(same_number(a, b) or is_one(size) for size, a, b in strides):
        return False
    # An expanded part of the result may have as many elements as the whole.
    counts = [product(shape_of(each)) for each in (view, base)]
    return same_number(*counts) and same_number(_span(view), _span(base))


def _span(node: fx.Node) -> Size:
    """The elements of memory from the first to the last that a tensor has; it must not be empty."""
    axes = zip(shape_of(node), sizes(tensor_of(node).stride()), strict=True)
    return simplified(sum(((size - 1) * stride for size, stride in axes), 1))


class _Planning(Schedule):
    def __init__(
        self,
        graph_module: fx.GraphModule,
        target: Target,
        called: Collection[str],
        overwrites: bool,
    ) -> None:
        super().__init__(graph_module, target, called, overwrites)
        self.slots: dict[fx.Node, Slot] = {}
        self.shown: dict[fx.Node, fx.Node] = {}
        """Returned views, and the results that are allocated with their shape and strides."""
        self.check_slots: list[Slot] = []
        """Results of index checks, which are no values of the graph."""
        self.steps: list[Step] = []
        self.checked: set[tuple[fx.Node, Size, Size]] = set()

    def run(self) -> Plan:
        scheduled = self.scheduled()
        inputs = inputs_of(self.graph)
        for node in inputs:
            self._slot(node, SlotKind.INPUT)
        units: Sequence[Unit | RowTiling] = scheduled
        if self.target.tiles_rows:
            units = with_row_tiles(scheduled, self.needed, self._may_be_tiled)
        self.users = self._users(units)
        for unit in units:
            self._step(unit)
        for node in self._views_to_make():
            self._ensure(node)
        outputs = trees.map_leaves(self._argument, self.outputs())
        slots = sorted([*self.slots.values(), *self.check_slots], key=lambda slot: slot.number)
        return Plan(
            tuple(slots),
            tuple(self.slots[node].number for node in inputs),
            tuple(input_symbols([value_or_none(node) for node in inputs])),
            tuple(self.steps),
            outputs,
        )

    # Slots

    def _next_slot(self) -> int:
        return len(self.slots) + len(self.check_slots)

    def _slot(self, node: fx.Node, kind: SlotKind) -> Slot:
        value = value_or_none(node)
        number = self._next_slot()
        if is_plain(value, self.device):
            slot = Slot(number, kind, shape_of(node), strides_of(node), value.dtype)
        else:
            slot = Slot(number, kind)
        self.slots[node] = slot
        return slot

    def _may_be_tiled(self, unit: Unit) -> bool:
        if isinstance(unit, Group):
            return any(node in self.stored for node in unit.members)
        return is_product(unit) and is_plain(tensor_of(unit), self.device)

    def _users(self, units: Sequence[Unit | RowTiling]) -> dict[fx.Node, set[int]]:
        """For each value, the ids of the units that need it; 0 stands for the caller."""
        users: dict[fx.Node, set[int]] = {}
        for node in self.returned():
            users.setdefault(base_of(node), set()).add(0)
        for unit in units:
            inside = unit.units if isinstance(unit, RowTiling) else [unit]
            for each in inside:
                nodes = list(each.members) if isinstance(each, Group) else [each]
                for need in {need for node in nodes for need in self.needs[node]}:
                    users.setdefault(need, set()).add(id(unit))
                for node in nodes:
                    for bound in self.items[node].bounds if node in self.items else ():
                        users.setdefault(base_of(bound.node), set()).add(0)
        return users

    def _views_to_make(self) -> list[fx.Node]:
        """The returned nodes, except for views that the tensor of their result is allocated as.

        A result of which the caller gets one view alone is allocated with the shape and strides of
        that view.  Kernels may write to it, because they take addresses and have strides of their
        own.
        """
        called = [step for step in self.steps if isinstance(step, LibraryCall)]
        leaves = [leaf for call in called for leaf in trees.leaves((call.args, call.kwargs))]
        tensors = {leaf.slot for leaf in leaves if isinstance(leaf, Argument)}
        tensors |= {call.result for call in called}
        returned = self.returned()
        bases = Counter(map(base_of, returned))
        remaining: list[fx.Node] = []
        for node in returned:
            base = base_of(node)
            slot = self.slots.get(base)
            is_alone = slot is not None and slot.number not in tensors and bases[base] == 1
            if node is base or slot is None or not (is_alone and _shows_all(node, base, slot)):
                remaining.append(node)
                continue
            shown = replace(slot, shape=shape_of(node), strides=sizes(tensor_of(node).stride()))
            self.slots[base] = shown
            self.shown[node] = base
        return remaining

    def _ensure(self, node: fx.Node) -> None:
        """Give a slot to a view that a library call or the caller needs as a tensor."""
        if node in self.slots or not (view_of(node) or node.target in PARTS):
            return
        for source in node.all_input_nodes:
            self._ensure(source)
        self._call(node)

    # Steps

    @works_on("unit")
    def _step(self, unit: Unit | RowTiling) -> None:
        if isinstance(unit, RowTiling):
            self._tile(unit)
        elif isinstance(unit, Group):
            self._launch(unit)
        else:
            self._call(unit)

    def _launch(self, group: Group) -> None:
        stored = self._prepare(group)
        # Constants that only kernels read are not stored.
        if stored:
            self.steps += [self._launched(nest) for nest in self._nests(group, stored)]

    def _nests(self, group: Group, stored: set[fx.Node]) -> list[Nest]:
        if group.product is not None:
            return product_nests(group, stored)
        return grid_nests(group, stored) if self.target.has_grid else [nest_of(group, stored)]

    def _prepare(self, group: Group, tiling: RowTiling | None = None) -> set[fx.Node]:
        """Check indices, and give slots to stored members, which are returned."""
        for item in group.items:
            for bound in item.bounds:
                self._check(bound, item)
        for node in group.members:
            if node in self.stored:
                self._slot(node, self._kind(node, tiling))
        return {node for node in group.members if node in self.stored}

    def _kind(self, node: fx.Node, tiling: RowTiling | None = None) -> SlotKind:
        if node in self.escaping:
            return SlotKind.OUTPUT
        if tiling is not None and node in tiling.tiled and self.users[node] == {id(tiling)}:
            return SlotKind.LOCAL
        return SlotKind.TEMPORARY

    def _launched(self, nest: Nest, work: Size | None = None) -> Launch:
        operands = tuple(
            self.slots[each].number if isinstance(each, fx.Node) else each for each in nest.operands
        )
        work = nest.work if work is None else work
        nodes = [self.twins.get(item.node, item.node) for item in nest.items]
        names, title = tuple(node.name for node in nodes), title_of(nodes)
        kernel = nest.kernel if self.target.has_grid else split_index_sets(nest.kernel)
        kernel = verify(kernel)
        return Launch(kernel, operands, nest.extents, work, nest.grid, names, title)

    def _tile(self, tiling: RowTiling) -> None:
        work = simplified(tiling.rows * ROW_WORK_ELEMENTS)
        begin: list[Launch] = []
        body: list[Launch | Product] = []
        finale: list[Launch] = []
        for unit in tiling.units:
            if isinstance(unit, Group):
                nests = tile_nests(unit, self._prepare(unit, tiling), tiling.rows)
                if nests.begin is not None:
                    begin.append(self._launched(nests.begin, work))
                body.append(self._launched(nests.rows, work))
                if nests.finale is not None:
                    finale.append(self._launched(nests.finale, work))
            elif unit in tiling.after:
                clear, partial, total = self._summed(unit, work)
                begin.append(clear)
                body.append(partial)
                finale.append(total)
            else:
                self._slot(unit, self._kind(unit, tiling))
                body.append(self._product(unit, self.slots[unit].number, False))
        tiles = RowTiles(tiling.rows, work, tuple(begin), tuple(body), {})
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
        shape = (rows, columns, inner)
        line = source_of(node)
        return Product(sides[0], sides[1], result, shape, sums, dtype_of(node), line)

    def _summed(self, node: fx.Node, work: Size) -> tuple[Launch, Product, Launch]:
        """A product that sums over rows: each thread has a partial result, added at the end."""
        self._slot(node, self._kind(node))
        scratch, begin, finale = partial_product(node)
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
        slot = Slot(self._next_slot(), SlotKind.RESULT)
        self.check_slots.append(slot)
        line = str(source_of(item.node) or "")
        self.steps.append(LibraryCall(require_within, args, {}, slot.number, line=line))

    def _argument(self, leaf: object) -> object:
        if isinstance(leaf, fx.Node):
            return Argument(self.slots[self.shown.get(leaf, leaf)].number)
        return Number(size_of(leaf)) if isinstance(leaf, torch.SymInt) else leaf

    def _is_native_product(self, node: fx.Node) -> bool:
        """Whether this is a matrix product whose operands have strides that the BLAS supports."""
        if not (self.target.has_native_products and is_product(node)):
            return False
        if dtype_of(node) not in BLAS_DTYPES or not is_plain(tensor_of(node), self.device):
            return False
        sides = [side_of(arg) for arg in node.args[:2] if isinstance(arg, fx.Node)]
        return all(
            each is not None and is_plain(tensor_of(each.base), self.device) for each in sides
        )

    def _call(self, node: fx.Node) -> None:
        line = source_of(node)
        if node.op == "get_attr":
            constant = HeldConstant(str(node.target), getattr(self.module, str(node.target)))
            self._slot(node, SlotKind.RESULT)
            why = why_not_capturable(node, self.device)
            number = self.slots[node].number
            self.steps.append(LibraryCall(constant, (), {}, number, uncapturable=why))
            return
        if self._is_native_product(node):
            slot = self._slot(node, self._kind(node))
            self.steps.append(self._product(node, slot.number, False))
            return
        for source in node.all_input_nodes:
            self._ensure(source)
        args, kwargs = trees.map_leaves(self._argument, (node.args, node.kwargs))
        callee = callee_of(node)
        target = eager_callable(callee)
        writer = writer_of(node, self.target)
        writes = writer is not None and is_plain(tensor_of(node), self.device)
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
                is_view(node),
                writes,
                str(line) if line else "",
                why_not_capturable(node, self.device),
                callee,
                () if writes else expected_of(node),
                node.target in READS_LAYOUT,
            )
        )
