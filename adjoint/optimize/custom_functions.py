"""The forward halves of custom `autograd.Function`s, inlined into a graph that is about to run.

    apply_function(forward, ...)[i] = forward(...)[i]
    with_backward(..., results, ...)[i] = results[i]

Their backward halves matter to the graph that is differentiated, which is another.  A call would
run op by op, and end the kernels and the CUDA graph around it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import fx

from adjoint.failing import works_on
from adjoint.graph.copying import copied, copy_node
from adjoint.graph.metadata import arguments_of, tensor_of
from adjoint.graph.operations import apply_function, with_backward
from adjoint.graph.origins import for_part_of, replace
from adjoint.graph.purity import remove_dead_code
from adjoint.graph.subgraphs import body_of
from adjoint.open_types import OpArgument
from adjoint.rewrite.engine import is_returned
from adjoint.torch_private.graph_modules import add_attribute
from adjoint.torch_private.operators import OpOverload

_CUSTOM = (apply_function, with_backward)


def inline_custom_functions(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A copy with the forward halves inlined; the graph itself if it has no custom function."""
    if not any(node.target in _CUSTOM for node in graph_module.graph.nodes):
        return graph_module
    made = copied(graph_module)
    # Inlined nodes come before the call, so the list is made anew until no call is left.
    while calls := [node for node in made.graph.nodes if _can_be_inlined(node)]:
        for node in calls:
            _inline(made, node)
    remove_dead_code(made.graph)
    return made


def _can_be_inlined(node: fx.Node) -> bool:
    """Whether results are taken one by one, and only tensors are."""
    return node.target in _CUSTOM and all(user.target is operator.getitem for user in node.users)


@works_on("node")
def _inline(graph_module: fx.GraphModule, node: fx.Node) -> None:
    arguments = arguments_of(node)
    if node.target is with_backward:
        results = arguments[2]
    else:
        results, _ = _inlined(
            graph_module, node, body_of(graph_module, arguments[0]), arguments[4:]
        )
    for item in list(node.users):
        _put(item, results[arguments_of(item)[1]])
    node.graph.erase_node(node)


def _inlined(
    graph_module: fx.GraphModule, before: fx.Node, body: fx.GraphModule, operands: Sequence[object]
) -> OpArgument:
    """What `body` returns for `operands`, computed before a node."""
    graph = graph_module.graph
    given = iter(operands)
    copies: dict[fx.Node, OpArgument] = {}
    with graph.inserting_before(before):
        for node in body.graph.nodes:
            if node.op == "output":
                return fx.map_arg(node.args[0], copies.__getitem__)
            if node.op == "placeholder":
                copies[node] = next(given)
                continue
            copies[node] = copy_node(graph, node, copies.__getitem__)
            if node.op == "get_attr":
                value = getattr(body, str(node.target))
                copies[node].target = add_attribute(graph_module, "inlined", value)
    raise AssertionError("the body has no output")


def _put(item: fx.Node, result: object) -> None:
    """Put a result of the forward half in the place of one of the call."""
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
