"""Serializing graphs; `graph_reading.py` reads them back.

A graph is written relative to its *ground*: the graph that it was derived from, which the process
that reads the text has as well.  The user's lines, the origins of values and the constants of the
ground are written as numbers and names of the ground.  So the text does not depend on where the
source file is, and what is read refers to the lines and origins of the reading process.

The text contains everything that a stage may look at.  A graph with something that has no text -
hooks, subclasses, sparse tensors - is unwritable, and nothing derived from it is cached.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

import sympy
import torch
from torch import fx

from adjoint.errors import SourceLine
from adjoint.forms.constants import content_of, elements_of
from adjoint.forms.form import Tree, Unwritable, Writing
from adjoint.forms.vocabulary import GRAPH_FORM, KNOWN_META, PLAIN_META, REPEATED
from adjoint.graph.derivative import Backward, Derivative
from adjoint.graph.metadata import entry_mode, value_or_none
from adjoint.graph.origins import Origin, origins_of
from adjoint.open_types import TorchValue
from adjoint.store.entries import digest_of
from adjoint.torch_private import expressions, trees
from adjoint.torch_private.fake import (
    FakeTensor,
    FakeTensorMode,
    fake_mode_of,
    storage_key,
)
from adjoint.torch_private.modes import isolated
from adjoint.torch_private.operators import OpOverload, operator_name
from adjoint.torch_private.size_guards import guards_of

Key = TypeVar("Key", bound=Hashable)


class Ground:
    """The graph that texts refer to, with numbers for its lines, origins and checkpoint runs."""

    guards_are_checked = False
    """Whether Dynamo will guard on what is assumed about sizes from now on."""

    def __init__(self, graph_module: fx.GraphModule) -> None:
        self.graph_module = graph_module
        self._symbolic: list[object] = []

    @functools.cached_property
    def lines(self) -> dict[SourceLine, int]:
        """The user's lines that its nodes are of."""
        found = (node.meta.get("source") for node in _all_nodes(self.graph_module))
        return _numbered(line for line in found if line is not None)

    @functools.cached_property
    def runs(self) -> dict[int, int]:
        """The runs of checkpointed regions; 0: the program's own."""
        found = (node.meta.get("region") for node in _all_nodes(self.graph_module))
        return _numbered([0, *(each.recomputed for each in found if each is not None)])

    @functools.cached_property
    def origins(self) -> dict[Origin, int]:
        """The origins of its values."""
        return _numbered(_origins_in(self.graph_module))

    @functools.cached_property
    def fakes(self) -> list[FakeTensor]:
        """The values of its nodes, each once; graphs derived from it share many of them."""
        values = map(value_or_none, self.graph_module.graph.nodes)
        found = {id(leaf): leaf for value in values for leaf in trees.leaves(value)}
        return [leaf for leaf in found.values() if isinstance(leaf, FakeTensor)]

    @functools.cached_property
    def fake_mode(self) -> FakeTensorMode:
        return fake_mode_of(self.graph_module)

    @functools.cached_property
    def digest(self) -> str:
        """A digest of the text: equal for graphs that no stage can tell apart."""
        return _DIGESTS.get(self.graph_module) or digest_of(self.text)

    @functools.cached_property
    def text(self) -> str:
        """The text of the graph itself; raises `Unwritable`."""
        writing = GraphWriting(self)
        # A capture may be under way, which must not see these operations.
        with isolated():
            tree = writing.tree(self.graph_module)
        self._symbolic = writing.symbolic
        names = [each.name for each in self.origins]
        return json.dumps([names, tree, self.sizes()], separators=(",", ":"))

    def held(self, name: str) -> object:
        """The constant of this name; None: there is none."""
        return attribute_of(self.graph_module, name)

    def sizes(self) -> list[str]:
        """What torch knows of the symbolic sizes now; branches on a size add to it."""
        return expressions.environment(self.fake_mode.shape_env, self._symbolic)

    def guards(self) -> list[sympy.Basic]:
        """All branches on sizes that were taken so far."""
        shape_env = self.fake_mode.shape_env
        return [] if shape_env is None else guards_of(shape_env)

    @functools.cached_property
    def symbols(self) -> frozenset[sympy.Symbol]:
        """The symbols of its sizes."""
        if self.graph_module in _DIGESTS:
            return frozenset()
        _ = self.text
        return expressions.symbols_in(self._symbolic)

    @functools.cached_property
    def namespaces(self) -> frozenset[str]:
        """The namespaces of its operators."""
        targets = [node.target for node in _all_nodes(self.graph_module)]
        return frozenset(each.namespace for each in targets if isinstance(each, OpOverload))


def _numbered(values: Iterable[Key]) -> dict[Key, int]:
    """A number for each distinct value, in order."""
    return {value: place for place, value in enumerate(dict.fromkeys(values))}


# The digests of graphs that are part of a document; they do not change any more.
_DIGESTS: weakref.WeakKeyDictionary[fx.GraphModule, str] = weakref.WeakKeyDictionary()


def name_graphs(graphs: Sequence[fx.GraphModule], ground: Ground, text: str | bytes) -> None:
    """Give the graphs of a document digests, so that they need no text of their own.

    A graph is determined by the ground, the document and its position there.  This does not hold
    for symbolic sizes, about which guards may say more later.
    """
    document = digest_of(text)
    for place, graph_module in enumerate(graphs):
        _DIGESTS[graph_module] = digest_of(f"{place} of {document} made of {ground.digest}")


def _all_nodes(graph_module: fx.GraphModule) -> Iterator[fx.Node]:
    """The nodes of a graph, and of the graphs in it."""
    for node in graph_module.graph.nodes:
        yield node
        if node.op == "get_attr":
            held = attribute_of(graph_module, str(node.target))
            if isinstance(held, fx.GraphModule):
                yield from _all_nodes(held)


def _origins_in(value: object) -> list[Origin]:
    """The origins of all values of the graphs in `value`, the oldest first."""
    nodes = (node for graph_module in _graphs_in(value) for node in _all_nodes(graph_module))
    found = {origin for node in nodes for origin in origins_of(node)}
    return sorted(found, key=lambda each: each.number)


def _graphs_in(value: object) -> Iterator[fx.GraphModule]:
    match value:
        case fx.GraphModule():
            yield value
        case tuple() | list():
            for each in value:
                yield from _graphs_in(each)
        case Derivative() | Backward():
            for field in dataclasses.fields(value):
                yield from _graphs_in(getattr(value, field.name))
        case _:
            return


def attribute_of(graph_module: fx.GraphModule, name: str) -> object:
    """The attribute of a graph with this dotted name."""
    found: object = graph_module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


class GraphWriting(Writing):
    """Writes graphs that were derived from a ground, and records that hold such graphs."""

    def __init__(self, ground: Ground, refers: bool = False) -> None:
        """`refers`: attributes that the ground has as well are written by name alone."""
        super().__init__(GRAPH_FORM)
        self.ground = ground
        self.refers = refers
        self.symbolic: list[object] = []
        """The symbolic numbers that were written."""
        self._lines, self._origins = dict(ground.lines), dict(ground.origins)
        self._runs = dict(ground.runs)
        self._nodes: dict[fx.Node, int] = {}
        self._memories: dict[object, int] = {}
        self._written: dict[Hashable, int] = {}
        self.graphs: list[fx.GraphModule] = []
        """The graphs written so far, in order."""
        for fake in ground.fakes if refers else ():
            self._written[id(fake)] = len(self._written)
            self._memories.setdefault(memory_of(fake), len(self._memories))

    def special(self, value: object) -> Tree | None:
        match value:
            case fx.Node():
                return ["node", self._nodes[value]]
            case FakeTensor():
                return self._once(id(value), value, self._fake)
            case torch.SymInt() | torch.SymFloat():
                return self._symbolic(value)
            case fx.GraphModule():
                tree = self._once(id(value), value, self.graph)
                if tree[0] == "graph":
                    self.graphs.append(value)
                return tree
            case OpOverload():
                return self._once(value, value, lambda op: ["once", ["op", *operator_name(op)]])
            case Origin():
                raise Unwritable("an origin outside of a node")
            case _:
                return None

    def record(self, value: object) -> Tree:
        """A dataclass; many nodes have equal ones."""
        if type(value) in REPEATED:
            write = super().record
            return self._once(value, value, lambda each: ["once", write(each)])
        return super().record(value)

    def _once(self, key: Hashable, value: object, write: Callable[..., Tree]) -> Tree:
        """The tree of a value; if this key was written before, a reference to that tree."""
        place = self._written.get(key)
        if place is not None:
            return ["again", place]
        tree = write(value)
        self._written[key] = len(self._written)
        self._kept.append(value)
        return tree

    def add_origins(self, origins: Sequence[Origin]) -> list[str]:
        """Number the origins that the ground does not have; returns their names."""
        new = [each for each in origins if each not in self._origins]
        self._origins.update({each: len(self._origins) + n for n, each in enumerate(new)})
        return [each.name for each in new]

    def graph(self, graph_module: fx.GraphModule) -> Tree:
        outside, self._nodes = self._nodes, {}
        nodes: list[Tree] = []
        attributes: dict[str, Tree] = {}
        for node in graph_module.graph.nodes:
            self._nodes[node] = len(nodes)
            nodes.append(self._node(node))
            name = str(node.target)
            if node.op == "get_attr" and name not in attributes:
                attributes[name] = self._held(graph_module, name)
        self._nodes = outside
        return ["graph", *self._whole(graph_module), attributes, nodes]

    def _whole(self, graph_module: fx.GraphModule) -> list[Tree]:
        """The properties of a graph as a whole: the autograd mode that it starts in."""
        return [self.tree(entry_mode(graph_module))]

    def _node(self, node: fx.Node) -> Tree:
        if node.op not in ("placeholder", "call_function", "get_attr", "output"):
            raise Unwritable(f"a node {node.op}")
        target = self.tree(node.target)
        return [
            node.op,
            node.name,
            target,
            ["tuple", *map(self.tree, node.args)],
            self.tree(dict(node.kwargs)),
            self._meta(node),
        ]

    def _meta(self, node: fx.Node) -> dict[str, Tree]:
        meta = node.meta
        if not meta.keys() <= KNOWN_META:
            raise Unwritable(f"a node with {', '.join(map(str, meta.keys() - KNOWN_META))}")
        tree = {name: self.tree(meta[name]) for name in sorted(PLAIN_META & meta.keys())}
        if "val" in meta:
            tree["val"] = self.tree(meta["val"])
        if "descriptors" in meta:
            tree["descriptors"] = self.tree(tuple(meta["descriptors"]))
        line, region = meta.get("source"), meta.get("region")
        if line is not None:
            tree["source"] = self._line(line)
        if region is not None:
            run = self._runs.setdefault(region.recomputed, len(self._runs))
            tree["region"] = [region.index, region.policy, run]
        tree["origin"] = [self._origins[each] for each in origins_of(node)]
        return tree

    def _line(self, line: SourceLine) -> Tree:
        place = self._lines.get(line)
        return self.tree(line) if place is None else place

    def _fake(self, value: FakeTensor) -> Tree:
        if value.requires_grad or type(value) is not FakeTensor:
            raise Unwritable("a value of a node that requires grad, or a tensor subclass")
        memory = self._memories.setdefault(memory_of(value), len(self._memories))
        return [
            "fake",
            self.tree(value.dtype)[1],
            *self._layout(value),
            memory,
        ]

    def _layout(self, value: torch.Tensor) -> list[Tree]:
        """Sizes, strides, storage offset and device."""
        if value.layout is not torch.strided or value.is_conj() or value.is_neg():
            raise Unwritable("a tensor that is not strided, or is lazily negated")
        return [
            [self._size(size) for size in value.shape],
            [self._size(stride) for stride in value.stride()],
            self._size(value.storage_offset()),
            str(value.device),
        ]

    def _size(self, size: int | torch.SymInt) -> Tree:
        return size if type(size) is int else self._symbolic(size)

    def _symbolic(self, value: TorchValue) -> Tree:
        self.symbolic.append(value)
        kind = "int" if isinstance(value, torch.SymInt) else "float"
        try:
            # A tensor that is made now has no symbol that a guard equates with something else.
            tree = expressions.written(expressions.simplified(value))
            return tree if type(tree) is int else ["symbolic", kind, tree]
        except ValueError as error:
            raise Unwritable(str(error)) from error

    def _held(self, graph_module: fx.GraphModule, name: str) -> Tree:
        """The attribute of a graph: a graph, or a constant."""
        held = attribute_of(graph_module, name)
        if self.refers and attribute_of(self.ground.graph_module, name) is held:
            return ["same"]
        if isinstance(held, fx.GraphModule):
            # A body has memory of its own.
            outside = self._memories, self._written
            self._memories, self._written = {}, {}
            tree = self.graph(held)
            self._memories, self._written = outside
            return tree
        if isinstance(held, torch.Tensor):
            return elements_of(held) if self.refers else ["constant", *content_of(held)]
        raise Unwritable(f"an attribute of type {type(held).__name__}")


def memory_of(fake: FakeTensor) -> object:
    """Equal for fakes of one dtype that share memory."""
    return storage_key(fake), fake.dtype


def written(value: object, ground: Ground, assumed: Sequence[sympy.Basic] = ()) -> str:
    """The text of graphs, or of a record that holds graphs; raises `Unwritable`.

    `assumed`: what was assumed about sizes when they were made.
    """
    writing = GraphWriting(ground, refers=True)
    names = writing.add_origins(_origins_in(value))
    with isolated():
        tree = writing.tree(value)
    if not expressions.symbols_in(writing.symbolic) <= ground.symbols:
        raise Unwritable("a size that depends on data")
    try:
        conditions = [expressions.written(each) for each in assumed]
    except ValueError as error:
        raise Unwritable(str(error)) from error
    text = json.dumps([names, conditions, tree], separators=(",", ":"))
    if not ground.symbols and not writing.symbolic:
        name_graphs(writing.graphs, ground, text)
    return text
