"""Graph modules whose Python code is generated lazily, and their nodes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule


def module_of(root: torch.nn.Module, graph: fx.Graph) -> fx.GraphModule:
    """`graph` as a module with the attributes of `root`.

    Its Python code is generated when it is called or printed, which most graphs never are.
    """
    return _LazyGraphModule(root, graph)


def is_erased(node: fx.Node) -> bool:
    """Whether the node was removed from its graph."""
    return bool(node._erased)


def set_arguments(node: fx.Node, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """Give a node its arguments.

    `fx.Node.__setattr__` would also take the node out of its graph's index of operators and insert
    it again, for each attribute; the arguments are no part of that index.
    """
    object.__setattr__(node, "args", args)
    object.__setattr__(node, "kwargs", kwargs)


def add_attribute(graph_module: fx.GraphModule, stem: str, value: object) -> str:
    """Give a module a new attribute, for a `get_attr` node to refer to; returns its name."""
    names = (f"{stem}_{count}" for count in itertools.count())
    name = next(each for each in names if not hasattr(graph_module, each))
    setattr(graph_module, name, value)
    return name
