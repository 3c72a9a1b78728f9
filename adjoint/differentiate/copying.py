"""Building a graph out of copies of nodes of other graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import fx

from adjoint.graph.copying import copy_node
from adjoint.graph.metadata import entry_mode, output_node, value_or_none
from adjoint.graph.origins import origins_of
from adjoint.graph.purity import remove_dead_code
from adjoint.open_types import OpArgument
from adjoint.torch_private.fake import fake_mode_of
from adjoint.trace.subgraph import finish_graph
from adjoint.trace.tracer import Tracer

Copies: TypeAlias = dict[fx.Node, OpArgument]
Copy: TypeAlias = Callable[[fx.GraphModule, fx.Node, Copies], object]


class Copying:
    """A graph under construction that will replace the graph `like`."""

    def __init__(self, like: fx.GraphModule) -> None:
        self.like = like
        self.tracer = Tracer(fake_mode_of(like), refuse_outside)
        self.emitter = self.tracer.emitter

    def input(self, node: fx.Node) -> fx.Node:
        """The next input, which stands for the input `node` of another graph."""
        made = self.emitter.placeholder(node.name, value_or_none(node))
        origins_of(node)
        made.meta.update(node.meta)
        return made

    def copy(self, owner: fx.GraphModule, node: fx.Node, copies: Copies) -> fx.Node:
        """A copy of a node of the graph `owner`; `copies` has those of its arguments."""
        if node.op == "placeholder":
            return self.input(node)
        if node.op == "get_attr":
            stem = str(node.target).rstrip("_0123456789")
            copy = self.emitter.attribute(stem, getattr(owner, str(node.target)))
        else:
            copy = copy_node(self.emitter.graph, node, copies.__getitem__)
        origins_of(node)
        copy.meta = dict(node.meta)
        self.emitter.bind_symbols(copy, value_or_none(node))
        return copy

    def finish(self, outputs: Sequence[OpArgument]) -> fx.GraphModule:
        """The graph that returns `outputs`, without what they do not need."""
        self.emitter.graph.output(tuple(outputs))
        made = finish_graph(self.emitter, entry_mode(self.like))
        output_node(made.graph).meta.update(output_node(self.like.graph).meta)
        remove_dead_code(made.graph)
        return made


def inline(body: fx.GraphModule, copies: Copies, copy: Copy) -> OpArgument:
    """What `body` returns; the nodes that are not in `copies` yet are copied by `copy`."""
    for node in body.graph.nodes:
        if node.op == "output":
            return fx.map_arg(node.args[0], copies.__getitem__)
        if node not in copies:
            copies[node] = copy(body, node, copies)
    raise AssertionError("the body has no output")


class OutsideTensor(Exception):
    """A derivative uses a tensor that is no value of its graph."""


def refuse_outside(tensor: torch.Tensor) -> torch.Tensor:
    """Refuse tensors from outside: a derivative uses only values of its graph."""
    raise OutsideTensor
