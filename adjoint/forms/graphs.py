"""Graphs as text, and back.

A graph is written relative to a *ground*: the graph that something is made of.  The user's lines,
the origins of values and the attributes of the ground are written as numbers and names of it.  So
the text of a graph is the same wherever its source file lies, and a graph that was made of it and
kept is read with the lines and origins of the graph at hand.

The text says everything that a stage may look at.  What it cannot say - hooks, subclasses, sparse
tensors - makes the graph unwritable, and what is made of it is not kept.
"""

from __future__ import annotations

import base64
import builtins
import dataclasses
import functools
import json
import math
import operator
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

import sympy
import torch
from torch import fx

from adjoint.errors import SourceLine
from adjoint.forms.form import Form, Malformed, Tree, Unwritable, Writing
from adjoint.graph import calling as c
from adjoint.graph import descriptors as d
from adjoint.graph import operations
from adjoint.graph.derivative import Backward, Derivative, Segments
from adjoint.graph.leaves import bytes_of
from adjoint.graph.metadata import (
    CheckpointRegion,
    GradOf,
    Mode,
    entry_mode,
    value_or_none,
)
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
from adjoint.torch_private.operators import OpOverload, operator_name, recorded_loop
from adjoint.torch_private.size_guards import guards_of

Key = TypeVar("Key", bound=Hashable)

# Operators of Python that graphs of symbolic sizes have.
_PYTHON = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "getitem", "eq"),
    *("ne", "lt", "le", "gt", "ge", "and_", "or_", "xor", "not_", "invert", "lshift", "rshift"),
)
GRAPH_FUNCTIONS: dict[str, Callable[..., object]] = {
    **{f"operator.{name}": getattr(operator, name) for name in _PYTHON},
    **{f"builtins.{name}": getattr(builtins, name) for name in ("abs", "max", "min", "round")},
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt")},
    **{
        f"torch.{name}": getattr(torch, name)
        for name in (
            *("sym_max", "sym_min", "sym_int", "sym_float", "sym_ite", "sym_not", "sym_sum"),
            "sym_sqrt",
        )
        if hasattr(torch, name)
    },
    **{
        f"adjoint.{each.__name__}": each
        for each in (
            operations.as_leaf,
            operations.on_copies,
            operations.in_order,
            operations.take_attribute,
            operations.apply_function,
            operations.with_backward,
        )
    },
    **{
        f"higher_order.{name}": getattr(torch.ops.higher_order, name)
        for name in ("cond", "scan", "map_impl", "while_loop")
    },
    "adjoint.recorded_loop": recorded_loop,
}

# Their derivatives and fakes are in torch or in adjoint; those of others may be the user's Python
# code.
KNOWN_NAMESPACES = frozenset({"aten", "prims", "adjoint", "torch_nn", "_c10d_functional"})

# A constant that a graph has and its ground has not is written with its elements, if these are few.
MAX_CONSTANT_BYTES = 1 << 20

DESCRIPTORS = (
    *(d.Argument, d.Parameter, d.Buffer, d.ClosedOver, d.SymbolicSize, d.Result),
    *(d.ViewBase, d.SyntheticBase, d.InputMutation, d.MetadataMutation, d.IntermediateBase),
    *(d.ViewArgument, d.ViewValue, d.Saved, d.SavedInput, d.EarlierResult, d.Tangent),
    *(d.Gradient, d.Seeds, d.EffectToken, d.EffectTokenOut),
)

GRAPH_FORM = Form(
    [
        *DESCRIPTORS,
        *(Mode, CheckpointRegion, GradOf, SourceLine, Segments, Backward, Derivative),
        *c.RECORDS,
    ],
    functions=GRAPH_FUNCTIONS,
)

# Written once in a document: most nodes have one that another node has, too.
REPEATED = frozenset({Mode, GradOf, SourceLine, *DESCRIPTORS})

# The metadata of a node that is written as it is; others are handled one by one.
PLAIN_META = frozenset({"mode", "grad_of", "order", "part_of", "forward", "descriptor"})
KNOWN_META = PLAIN_META | {"val", "source", "region", "origin", "descriptors"}


class Ground:
    """A graph, and the numbers of its lines, origins and runs of checkpoints."""

    guards_are_checked = False
    """Whether Dynamo checks what is assumed about sizes from now on."""

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
        """The values of its nodes, each once: graphs that are made of it have many of them, too."""
        values = map(value_or_none, self.graph_module.graph.nodes)
        found = {id(leaf): leaf for value in values for leaf in trees.leaves(value)}
        return [leaf for leaf in found.values() if isinstance(leaf, FakeTensor)]

    @functools.cached_property
    def fake_mode(self) -> FakeTensorMode:
        return fake_mode_of(self.graph_module)

    @functools.cached_property
    def digest(self) -> str:
        """Equal for graphs that any stage treats alike: a digest of all that the graph is."""
        return _DIGESTS.get(self.graph_module) or digest_of(self.text)

    @functools.cached_property
    def text(self) -> str:
        """The text of the graph itself; raises `Unwritable`."""
        writing = GraphWriting(self)
        # A program may be being captured.
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
    """Each value with its place among those that differ."""
    return {value: place for place, value in enumerate(dict.fromkeys(values))}


# The digests of graphs that are part of a document.  Graphs do not change once they are in one.
_DIGESTS: weakref.WeakKeyDictionary[fx.GraphModule, str] = weakref.WeakKeyDictionary()


def name_graphs(graphs: Sequence[fx.GraphModule], ground: Ground, text: str | bytes) -> None:
    """Let the graphs of a document have digests without a text of their own.

    Each is determined by the ground, the document, and its place in that.  This does not hold for
    symbolic sizes, of which more may be known later.
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
    """The attribute of a graph with this name, whose parts have points between them."""
    found: object = graph_module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


class GraphWriting(Writing):
    """Graphs that were made of a ground, and what is said of them."""

    def __init__(self, ground: Ground, refers: bool = False) -> None:
        """`refers`: attributes that the ground has are written as their names alone."""
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
        """The graphs that were written, in their order."""
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
        """The tree of a value, or the number of one that was written before for this key."""
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
        """What is said of a graph as a whole: the autograd mode that it starts in."""
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
        if value.layout is not torch.strided or value.is_conj() or value.is_neg():
            raise Unwritable("a tensor that is not strided, or is lazily negated")
        if value.requires_grad or type(value) is not FakeTensor:
            raise Unwritable("a value of a node that requires grad, or a tensor subclass")
        memory = self._memories.setdefault(memory_of(value), len(self._memories))
        return [
            "fake",
            self.tree(value.dtype)[1],
            [self._size(size) for size in value.shape],
            [self._size(stride) for stride in value.stride()],
            self._size(value.storage_offset()),
            str(value.device),
            memory,
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


def content_of(tensor: torch.Tensor) -> list[Tree]:
    """What a constant is: its type, and a digest of its elements."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        raise Unwritable("a constant that is a tensor subclass, or not strided")
    data = bytes_of(tensor)
    strides = list(tensor.stride())
    return [str(tensor.dtype), list(tensor.shape), strides, str(tensor.device), digest_of(data)]


def elements_of(tensor: torch.Tensor) -> Tree:
    """A constant with its elements."""
    data = bytes_of(tensor) if type(tensor) is torch.Tensor else b""
    is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    if not is_plain or tensor.requires_grad or tensor.is_quantized:
        raise Unwritable("a constant that is no plain tensor")
    if not tensor.is_contiguous() or len(data) > MAX_CONSTANT_BYTES:
        raise Unwritable("a constant that is large, or not contiguous")
    dtype, elements = str(tensor.dtype).removeprefix("torch."), base64.b64encode(data).decode()
    return ["tensor", dtype, list(tensor.shape), elements, str(tensor.device)]


def constant_of(dtype: Tree, shape: Tree, elements: Tree, device: Tree) -> torch.Tensor:
    """A constant that was written with its elements."""
    kind = getattr(torch, dtype, None)
    data = base64.b64decode(elements, validate=True)
    sizes = [size for size in shape if type(size) is int and size >= 0]
    if not isinstance(kind, torch.dtype) or len(sizes) != len(shape):
        raise Malformed("a constant has a dtype and sizes")
    if math.prod(sizes) * kind.itemsize != len(data):
        raise Malformed("a constant has as many elements as its sizes say")
    flat = torch.frombuffer(bytearray(data), dtype=kind) if data else torch.empty(0, dtype=kind)
    return flat.reshape(sizes).to(torch.device(device))


def written(value: object, ground: Ground, assumed: Sequence[sympy.Basic] = ()) -> str:
    """The text of graphs, and what is said of them; raises `Unwritable`.

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
