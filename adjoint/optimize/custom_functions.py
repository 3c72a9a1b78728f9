"""The forward halves of custom `autograd.Function`s, inlined into a graph that is about to run.

    apply_function(forward, ...)[i] = forward(...)[i]
    with_backward(..., results, ...)[i] = results[i]

Their backward halves belong to the graph that is differentiated, which is another one.  A call
would run op by op, and end the kernels and the CUDA graph around it.
"""

from __future__ import annotations

import operator

from torch import fx

from adjoint.failing import works_on
from adjoint.graph.copying import copied
from adjoint.graph.metadata import arguments_of
from adjoint.graph.operations import apply_function, with_backward
from adjoint.graph.purity import remove_dead_code
from adjoint.graph.subgraphs import body_of
from adjoint.optimize.inlining import inlined, put_result

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
        body = body_of(graph_module, arguments[0])
        results, _ = inlined(graph_module, node, body, arguments[4:])
    for item in list(node.users):
        put_result(item, results[arguments_of(item)[1]])
    node.graph.erase_node(node)
