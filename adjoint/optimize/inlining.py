"""Bodies of higher-order operators, written out in the graph around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx

from adjoint.graph.copying import copy_node
from adjoint.graph.metadata import tensor_of
from adjoint.graph.origins import for_part_of, replace
from adjoint.open_types import OpArgument
from adjoint.rewrite.legality import is_returned
from adjoint.torch_private.graph_modules import add_attribute
from adjoint.torch_private.operators import OpOverload


def inlined(
    graph_module: fx.GraphModule,
    before: fx.Node,
    body: fx.GraphModule,
    operands: Sequence[object],
    adapt: Callable[[fx.Node, fx.Node], None] = lambda node, copy: None,
) -> OpArgument:
    """What `body` returns for `operands`, computed before a node.

    `adapt`: called with each node of the body and its copy.
    """
    graph = graph_module.graph
    given = iter(operands)
    copies: dict[fx.Node, OpArgument] = {}
    for node in body.graph.nodes:
        if node.op == "output":
            return fx.map_arg(node.args[0], copies.__getitem__)
        if node.op == "placeholder":
            copies[node] = next(given)
            continue
        with graph.inserting_before(before):
            copies[node] = copy_node(graph, node, copies.__getitem__)
        if node.op == "get_attr":
            value = getattr(body, str(node.target))
            copies[node].target = add_attribute(graph_module, "inlined", value)
        adapt(node, copies[node])
    raise AssertionError("the body has no output")


def put_result(item: fx.Node, result: object) -> None:
    """Put a result of a body in the place of one of the operator."""
    if not isinstance(result, fx.Node):
        assert not item.users, "a result that is no tensor has users"
        item.graph.erase_node(item)
        return
    if is_returned(item) and not _is_own(result):
        with item.graph.inserting_before(item):
            copy = item.graph.call_function(torch.ops.aten.clone.default, (result,))
        copy.meta = for_part_of(item, tensor_of(item))
        result = copy
    replace(item, result)


def _is_own(result: fx.Node) -> bool:
    """Whether a value may be returned as it is: it is new, and nothing else returns it."""
    computes = isinstance(result.target, OpOverload) and not result.target.is_view
    return computes and not is_returned(result)
