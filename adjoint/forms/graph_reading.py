"""Deserializing graphs (`graphs.py`), given a ground equal to the one they were written for."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from types import UnionType

import torch
from torch import fx
from typing_extensions import assert_never

from adjoint.errors import SourceLine
from adjoint.forms.constants import constant_of
from adjoint.forms.form import (
    Malformed,
    Reading,
    Tree,
    malformed_if_it_fails,
    require,
)
from adjoint.forms.graphs import Ground, attribute_of, memory_of, name_graphs
from adjoint.forms.vocabulary import GRAPH_FORM, KNOWN_META, PLAIN_META
from adjoint.graph import descriptors as d
from adjoint.graph.calling import (
    AssignData,
    BaseOf,
    CallingConvention,
    Constant,
    FromCaller,
    FromGraph,
    FromRecipe,
    MemoryOf,
    NewToken,
    Overwrite,
    Record,
    Replay,
    ReplayMetadataOp,
    RequireGrad,
    SetRequiresGrad,
    StoragePlacement,
    View,
    Window,
    Write,
)
from adjoint.graph.metadata import (
    CheckpointRegion,
    GradOf,
    Mode,
    inputs_of,
    next_run,
    outputs_of,
    set_entry_mode,
)
from adjoint.graph.origins import Origin, next_number
from adjoint.open_types import FromText, TorchValue
from adjoint.strides import span_of
from adjoint.torch_private import expressions
from adjoint.torch_private.fake import FakeTensor, fake_like, fake_view
from adjoint.torch_private.graph_modules import module_of, set_arguments
from adjoint.torch_private.modes import isolated
from adjoint.torch_private.operators import HigherOrderOperator, OpOverload


class Inapplicable(Exception):
    """The text assumes sizes other than those of the captured call."""


class GraphReading(Reading):
    """Reads graphs that were derived from a ground equal to this one."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(GRAPH_FORM)
        self.ground = ground
        self._lines = {place: line for line, place in ground.lines.items()}
        self._origins = {place: origin for origin, place in ground.origins.items()}
        self._runs = {place: run for run, place in ground.runs.items()}
        self._nodes: list[fx.Node] = []
        self._memories: dict[int, torch.Tensor] = {}
        self._read: list[object] = [*ground.fakes]
        places: dict[object, int] = {}
        for fake in ground.fakes:
            self._memories.setdefault(places.setdefault(memory_of(fake), len(places)), fake)
        self._numbers: dict[str, object] = {}
        self.graphs: list[fx.GraphModule] = []
        """The graphs read so far, in order."""

    @property
    def has_symbols(self) -> bool:
        """Whether a symbolic number was read."""
        return bool(self._numbers)

    def special(self, tag: str, parts: list[Tree]) -> object:
        match tag:
            case "node":
                (place,) = parts
                return _at(place, self._nodes, "node")
            case "fake":
                fake = self._fake(*parts)
                self._read.append(fake)
                return fake
            case "graph":
                graph = self._graph(*parts)
                self._read.append(graph)
                self.graphs.append(graph)
                return graph
            case "once":
                (tree,) = parts
                once = self.value(tree)
                self._read.append(once)
                return once
            case "again":
                (place,) = parts
                return _at(place, self._read, "earlier value")
            case "symbolic":
                return self._symbolic([tag, *parts])
            case _:
                return super().special(tag, parts)

    def _graph(self, mode: Tree, attributes: Tree, nodes: Tree) -> fx.GraphModule:
        outside, self._nodes = self._nodes, []
        held = {name: self._held(name, each) for name, each in attributes.items()}
        graph = fx.Graph()
        for each in nodes:
            self._nodes.append(self._node(graph, *each))
        if not nodes or self._nodes[-1].op != "output":
            raise Malformed("a graph ends with its output")
        for node in self._nodes:
            if node.op == "get_attr" and node.target not in held:
                raise Malformed(f"there is no attribute {node.target}")
        made = module_of(_root(held), graph)
        entry = self.value(mode)
        if not isinstance(entry, Mode):
            raise Malformed("a graph has a mode")
        set_entry_mode(made, entry)
        self._nodes = outside
        return made

    def _node(
        self,
        graph: fx.Graph,
        op: Tree,
        name: Tree,
        target: Tree,
        args: Tree,
        kwargs: Tree,
        meta: Tree,
    ) -> fx.Node:
        if op not in ("placeholder", "call_function", "get_attr", "output"):
            raise Malformed(f"there is no node {op}")
        called, given, named = self.value(target), self.value(args), self.value(kwargs)
        is_call = isinstance(called, OpOverload | HigherOrderOperator) or callable(called)
        if is_call != (op == "call_function") or not isinstance(name, str):
            raise Malformed(f"{op} of {str(target)[:80]}")
        if not isinstance(given, tuple) or not isinstance(named, dict):
            raise Malformed("arguments are a tuple and a dict")
        node = graph.create_node(op, called, name=name)
        # Set afterwards, as `graph/copying.py` does.
        set_arguments(node, given, named)
        node.meta = self._meta(meta)
        return node

    def _meta(self, tree: Tree) -> dict[str, object]:
        if not isinstance(tree, dict) or not tree.keys() <= KNOWN_META:
            raise Malformed("a node has other metadata")
        meta: dict[str, FromText] = {"source": None, "region": None}
        meta.update({name: self.value(each) for name, each in tree.items() if name in PLAIN_META})
        if "val" in tree:
            meta["val"] = self.value(tree["val"])
        if "descriptors" in tree:
            meta["descriptors"] = self.value(tree["descriptors"])
        if "source" in tree:
            meta["source"] = self._line(tree["source"])
        if "region" in tree:
            index, policy, run = tree["region"]
            if run not in self._runs:
                self._runs[run] = next_run()
            meta["region"] = CheckpointRegion(int(index), str(policy), self._runs[run])
        meta["origin"] = tuple(self._origins[place] for place in tree["origin"])
        _require_meta(meta)
        return meta

    def _line(self, tree: Tree) -> SourceLine:
        found = self._lines[tree] if isinstance(tree, int) else self.value(tree)
        if not isinstance(found, SourceLine):
            raise Malformed("a line is a line")
        return found

    def add_origins(self, names: Tree) -> None:
        """Make the origins that the ground does not have, in their order."""
        for name in names:
            if not isinstance(name, str):
                raise Malformed("an origin has a name")
            self._origins[len(self._origins)] = Origin(name, next_number())

    def _fake(
        self, dtype: Tree, shape: Tree, strides: Tree, offset: Tree, device: Tree, memory: Tree
    ) -> torch.Tensor:
        kind = self.value(["dtype", dtype])
        sizes = [self._size(each) for each in shape]
        steps = [self._size(each) for each in strides]
        start = self._size(offset)
        where = torch.device(device)
        made = first = self._memories.get(memory)
        if first is None:
            made = torch.empty_strided(sizes, steps, dtype=kind, device="meta")
            self._memories[memory] = made
        elif first.dtype != kind:
            raise Malformed("memory of two dtypes")
        assert made is not None
        if isinstance(made, FakeTensor):
            return fake_view(self.ground.fake_mode, made, (sizes, steps, start), where)
        if first is not None or type(start) is not int or start:
            _make_room(made, (*sizes, *steps, start))
            made = made.as_strided(sizes, steps, start)
        return fake_like(self.ground.fake_mode, made, where)

    def _size(self, tree: Tree) -> int:
        return tree if type(tree) is int else self._symbolic(tree)

    def _symbolic(self, tree: Tree) -> TorchValue:
        tag, kind, expr = tree
        if tag != "symbolic" or kind not in ("int", "float"):
            raise Malformed("a size is an integer or symbolic")
        known = self._numbers.get(f"{kind} {expr}")
        if known is None:
            shape_env = self.ground.fake_mode.shape_env
            known = expressions.number(shape_env, kind, expressions.read(expr))
            self._numbers[f"{kind} {expr}"] = known
        return known

    def _held(self, name: str, tree: Tree) -> object:
        if tree == ["same"]:
            held = attribute_of(self.ground.graph_module, name)
            if held is None:
                raise Malformed(f"there is no attribute {name}")
            return held
        if isinstance(tree, list) and tree[:1] == ["tensor"]:
            return constant_of(*tree[1:])
        outside = self._memories, self._read
        self._memories, self._read = {}, []
        found = self.value(tree)
        self._memories, self._read = outside
        if not isinstance(found, fx.GraphModule):
            raise Malformed("an attribute is a graph")
        return found


def _make_room(fake: torch.Tensor, window: tuple[int, ...]) -> None:
    """Make the storage of `fake` large enough for a view of these sizes, strides and offset."""
    storage = fake.untyped_storage()
    if not all(type(each) is int for each in (*window, storage.nbytes())):
        return
    *axes, offset = window
    sizes, strides = axes[: len(axes) // 2], axes[len(axes) // 2 :]
    needed = (offset + span_of(sizes, strides)) * fake.dtype.itemsize if all(sizes) else 0
    if storage.nbytes() < needed:
        storage.resize_(needed)


def _root(held: dict[str, object]) -> torch.nn.Module:
    root = torch.nn.Module()
    for name, value in held.items():
        *path, last = name.split(".")
        at = root
        for part in path:
            if not hasattr(at, part):
                setattr(at, part, torch.nn.Module())
            at = getattr(at, part)
        setattr(at, last, value)
    return root


_META_TYPES: dict[str, type | UnionType] = {
    "mode": Mode,
    "grad_of": GradOf | None,
    "order": int,
    "part_of": object,
    "forward": bool,
    "descriptor": d.Input,
    "descriptors": tuple,
}


def _require_meta(meta: dict[str, FromText]) -> None:
    for name, kind in _META_TYPES.items():
        if name in meta and not isinstance(meta[name], kind):
            raise Malformed(f"a node's {name} is no {type(meta[name]).__name__}")
    for each in meta.get("descriptors", ()):
        if not isinstance(each, d.Output):
            raise Malformed("an output is described otherwise")


def read(text: str | bytes, ground: Ground) -> FromText:
    """The value of a text that was written for a graph equal to the ground.

    What it assumes about sizes is assumed from now on.  Raises `Malformed`, `Inapplicable`.
    """
    with malformed_if_it_fails(Inapplicable):
        names, conditions, tree = json.loads(text)
        reading = GraphReading(ground)
        reading.add_origins(names)
        assumed = list(map(expressions.read, conditions))
        if not expressions.assume(
            ground.fake_mode.shape_env, assumed, is_noted=not ground.guards_are_checked
        ):
            raise Inapplicable
        with isolated(), expressions.without_guards(ground.fake_mode.shape_env):
            value = reading.value(tree)
    if not ground.symbols and not reading.has_symbols:
        name_graphs(reading.graphs, ground, text)
    return value


def require_fitting(calling: CallingConvention, inputs: int, graph_module: fx.GraphModule) -> None:
    """Raise `Malformed` unless the calling convention fits this graph and number of inputs."""
    outputs = len(outputs_of(graph_module.graph))
    of_graph = [output for output, _ in calling.view_values]
    of_caller = [place for place, _ in calling.versions]
    of_recipes = [*calling.results, *(recipe for _, recipe in calling.view_values)]
    for each in _records(calling):
        match each:
            case FromGraph(index) | Overwrite(index) | Write(value=index):
                of_graph.append(index)
            case FromCaller(index) | BaseOf(index) | MemoryOf(index):
                of_caller.append(index)
            case ReplayMetadataOp(index) | AssignData(index):
                of_caller.append(index)
            case SetRequiresGrad(index) | StoragePlacement(index):
                of_caller.append(index)
            case FromRecipe(index):
                of_recipes.append(index)
            case CallingConvention() | NewToken() | Constant() | View():
                pass
            case Replay() | Window() | RequireGrad():
                pass
            case _:
                assert_never(each)
    require(len(calling.sources) == len(inputs_of(graph_module.graph)), "each input has a source")
    require(all(0 <= index < outputs for index in of_graph), "an output of the graph")
    require(all(0 <= index < inputs for index in of_caller), "an input of the caller's")
    require(all(0 <= place < len(calling.recipes) for place in of_recipes), "a recipe")


def _records(value: object) -> Iterator[Record]:
    """The records that a calling convention consists of, itself first."""
    if isinstance(value, Record):
        yield value
        for field in dataclasses.fields(value):
            yield from _records(getattr(value, field.name))
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _records(each)


def _at(place: object, values: Sequence[object], what: str) -> object:
    """An earlier value of the document, by its place."""
    if type(place) is not int or not 0 <= place < len(values):
        raise Malformed(f"there is no {what} {place}")
    return values[place]
