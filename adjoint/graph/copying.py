"""The one way to copy a graph: node by node, each with its metadata.

A copy keeps the metadata of its original, including its origin (`graph/origins.py`).  By its origin
a value is found in a copy, and in what passes made of the copy, so no table of copies is passed
along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import fx

from adjoint.graph.metadata import entry_mode, set_entry_mode
from adjoint.graph.origins import origins_of
from adjoint.open_types import OpArgument
from adjoint.torch_private.graph_modules import module_of, set_arguments

Arguments = Callable[[fx.Node], OpArgument]


def copy_node(graph: fx.Graph, node: fx.Node, argument: Arguments) -> fx.Node:
    """Append a copy of `node` to `graph`; `argument` maps each of its arguments to the new one."""
    copy = graph.create_node(node.op, node.target, name=node.name, type_expr=node.type)
    # Set afterwards, because `create_node` would make nodes of symbolic sizes among the arguments.
    args, kwargs = fx.map_arg((node.args, node.kwargs), argument)
    set_arguments(copy, args, kwargs)
    _share_meta(node, copy)
    return copy


def _share_meta(node: fx.Node, copy: fx.Node) -> None:
    origins_of(node)  # Creates them if needed, so that the copy has the same.
    copy.meta.update(node.meta)


class GraphCopy:
    """A graph under construction, of copies of the nodes of another."""

    def __init__(self, original: fx.GraphModule) -> None:
        self.original = original
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}

    def add_input(self, node: fx.Node) -> fx.Node:
        """A new input in place of `node`, which may be any node of the original."""
        copy = self.graph.placeholder(node.name)
        _share_meta(node, copy)
        self.copies[node] = copy
        return copy

    def add(self, node: fx.Node, instead: Mapping[fx.Node, fx.Node] | None = None) -> fx.Node:
        """A copy of `node`, with arguments replaced by `instead`, or else by their copies."""
        known = self.copies if instead is None else {**self.copies, **instead}
        self.copies[node] = copy = copy_node(self.graph, node, known.__getitem__)
        return copy

    def copy_of(self, value: object) -> OpArgument:
        """The copy of a node; constants are their own."""
        return self.copies[value] if isinstance(value, fx.Node) else value

    def returns(self, outputs: Sequence[object]) -> None:
        """Return the copies of `outputs`; constants among them are returned as they are."""
        self.graph.output(tuple(map(self.copy_of, outputs)))

    def finish(self) -> fx.GraphModule:
        """The copy as a module, with the attributes of the original."""
        made = module_of(self.original, self.graph)
        set_entry_mode(made, entry_mode(self.original))
        return made


def copied(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A copy of the whole graph, which may be changed in place; bodies inside it are shared."""
    copy = GraphCopy(graph_module)
    for node in graph_module.graph.nodes:
        copy.add(node)
    return copy.finish()
