"""Scheduling: which nodes become kernels, which are library calls, and in which order they run.

Nodes with a definition become items, which are fused into groups.  A *unit* is a group, or a node
that is a library call.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable

import torch
from torch import fx

from adjoint.graph.metadata import output_node
from adjoint.graph.partial_writes import written
from adjoint.graph.purity import is_impure
from adjoint.graph.reachability import reachable
from adjoint.lower.calls import may_alias, needs_of_call, needs_of_tensors
from adjoint.lower.definitions import CONSTANTS
from adjoint.lower.fusion import fuse
from adjoint.lower.groups import Group
from adjoint.lower.inlining import inlined
from adjoint.lower.items import Item, base_of
from adjoint.lower.load_elimination import eliminate_loads
from adjoint.lower.products import is_plain_product
from adjoint.lower.recomputation import Recomputation
from adjoint.lower.row_tiles import Unit
from adjoint.lower.selection import Selection
from adjoint.lower.views import PARTS, view_of
from adjoint.target import Target

aten = torch.ops.aten


class Schedule:
    def __init__(
        self,
        graph_module: fx.GraphModule,
        target: Target,
        called: Collection[str],
        overwrites: bool = False,
    ) -> None:
        """`called`: names of nodes that have to be library calls.  `overwrites`: new values of
        inputs may be stored in the inputs."""
        self.target = target
        self.overwrites = overwrites
        self.device = target.device
        self.selection = Selection(target, called)
        self.module = graph_module
        self.graph = graph_module.graph
        self.items: dict[fx.Node, Item] = {}
        self.needs: dict[fx.Node, set[fx.Node]] = {}
        """The dependencies of each node that runs."""
        self.read_before: dict[fx.Node, set[fx.Node]] = {}
        """For calls that write to a part of a tensor: what reads the tensor before."""
        self.group_of: dict[fx.Node, Group] = {}
        self.stored: set[fx.Node] = set()
        """Items that are stored in memory."""
        self.twins: dict[fx.Node, fx.Node] = {}
        """Nodes that recompute a value, and the node of that value."""

    def scheduled(self) -> list[Unit]:
        """The units, each after its dependencies."""
        live = self._live()
        self._classify(live)
        live = [node for node in live if node in self.needs]
        self._fuse(live)
        live = [n for n in live if n not in self.items or n in self.group_of]
        self._decide_storage(live)
        self.escaping = self._escaping()
        units = self._sorted(live)
        if not self.target.is_memory_bound:
            return units
        search = Recomputation(units, self.graph, self.needs, self.stored, self.escaping, may_alias)
        units, self.twins = search.run(self.target.rates.operators_per_byte)
        return units

    def outputs(self) -> object:
        """What the graph returns, with nodes for values."""
        return output_node(self.graph).args[0]

    def returned(self) -> list[fx.Node]:
        """The nodes that the graph returns."""
        return output_node(self.graph).all_input_nodes

    # Items and library calls

    def _live(self) -> list[fx.Node]:
        """The nodes to run, in order: those that outputs depend on, and those with effects."""

        def read_by(node: fx.Node) -> list[fx.Node]:
            is_inlined = node.target in CONSTANTS and self.selection.item(node) is not None
            return [] if is_inlined else node.all_input_nodes

        ends = [node for node in self.graph.nodes if node.op == "output" or is_impure(node)]
        found = reachable(ends, read_by)
        return [n for n in self.graph.nodes if n in found and n.op not in ("output", "placeholder")]

    def _classify(self, live: Iterable[fx.Node]) -> None:
        """Find the items and the dependencies of all nodes."""
        found = {node: self.selection.item(node) for node in live}
        items = {node: item for node, item in found.items() if item is not None}
        if self.target.is_memory_bound:
            items = inlined(items)
        for node in found:
            if found[node] is None:
                self.needs[node] = needs_of_call(node)
            elif node in items:
                item = self.items[node] = items[node]
                self.needs[node] = {base for base, _ in item.reads}
                item.checked = needs_of_tensors(bound.node for bound in item.bounds)
                self.needs[node] |= item.checked
        # Nodes with effects keep their order.
        effects = [node for node in self.needs if is_impure(node)]
        for earlier, later in itertools.pairwise(effects):
            self.needs[later].add(earlier)
        if self.target.writes_in_place:
            self._write_last()

    def _write_last(self) -> None:
        """Let calls that write to a part of a tensor come after what reads the old value, so that
        they can do it in place (`in_place_calls.py`)."""
        returned = {base_of(node) for node in self.returned()}
        readers: dict[fx.Node, set[fx.Node]] = {}
        for node, needs in self.needs.items():
            base = base_of(node.all_input_nodes[0]) if node.target is written else None
            is_input = base is not None and base.op == "placeholder"
            for need in needs:
                readers.setdefault(need, set()).add(node)
            if base is not None and base not in returned and (self.overwrites or not is_input):
                self.read_before[node] = readers[base] - {node}
                self.needs[node] = needs | self.read_before[node]

    # Groups

    def _fuse(self, live: Iterable[fx.Node]) -> None:
        outside = {base_of(node) for node in self._needed_outside(live)}
        # They run before the write, not when their own users do.
        outside |= {node for readers in self.read_before.values() for node in readers}
        groups = fuse(self.items.values(), self.needs, outside, self.target)
        if self.target.is_memory_bound:
            groups = eliminate_loads(groups, self.items, outside)
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
        """Values that library calls, index checks or the caller need."""
        wanted = list(self.returned())
        for node in live:
            if node in self.items:
                wanted += [bound.node for bound in self.items[node].bounds]
            elif not (view_of(node) or node.target in PARTS):
                wanted += node.all_input_nodes
        return wanted

    def _decide_storage(self, live: Iterable[fx.Node]) -> None:
        """Find the values that are needed outside of the group that computes them."""
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
        """Values that outlive the program: outputs, and what they may share memory with."""

        def shared_with(node: fx.Node) -> list[fx.Node]:
            is_call = node not in self.items and node.op == "call_function"
            return node.all_input_nodes if is_call and may_alias(node) else []

        return reachable(self.returned(), shared_with)

    # Order

    def _unit_of(self, node: fx.Node) -> Unit | None:
        """The unit that computes `node`; inputs and views have none."""
        if node in self.group_of:
            return self.group_of[node]
        if node.op == "placeholder" or view_of(node) is not None or node.target in PARTS:
            return None
        return node

    def needed(self, unit: Unit) -> list[Unit]:
        """The units that a unit depends on."""
        nodes = list(unit.members) if isinstance(unit, Group) else [unit]
        found = [self._unit_of(need) for node in nodes for need in self.needs[node]]
        return [each for each in found if each is not None and each is not unit]

    def _sorted(self, live: list[fx.Node]) -> list[Unit]:
        """Each unit after its dependencies, and otherwise where the last of its nodes stands."""
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
                    stack += [(n, False) for n in self.needed(each) if id(n) not in done]
        return result
