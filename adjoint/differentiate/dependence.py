"""What derivatives depend on: which values they may read, and which inputs autograd visits."""

from __future__ import annotations

import operator
from collections.abc import Container, Mapping, Sequence

from torch import fx

from adjoint.graph.metadata import computes_tensor, outputs_of
from adjoint.graph.operations import with_backward, with_data
from adjoint.graph.origins import Origin, origins_of
from adjoint.torch_private.operators import OpOverload


def entangled(graph: fx.Graph, active: Container[fx.Node]) -> list[Origin]:
    """Arguments and results of operators with several differentiable results.

    Which of them a derivative reads depends on which results have cotangents.  The derivative of a
    view reads none.
    """
    found: list[fx.Node] = []
    for node in graph.nodes:
        if isinstance(node.target, OpOverload) and node.target.is_view:
            continue
        items = [n for n in _selected(node) if n in active]
        if node in active and len(items) > 1:
            # The results of a custom function are saved as its outputs, not as its operands.
            own = node.args[2] if node.target is with_backward else ()
            values = [n for n in node.all_input_nodes if computes_tensor(n) and n not in own]
            found += [*values, *items]
    return [origin for node in found for origin in origins_of(node)]


def visited_by_autograd(
    primal: fx.GraphModule,
    of: Sequence[int],
    active: Container[fx.Node],
    given: Mapping[fx.Node, Sequence[fx.Node]],
) -> set[fx.Node]:
    """The nodes that autograd would visit with a cotangent, from the outputs at positions `of`.

    `given`: for ops with several results, the arguments that got a cotangent in the sweep.
    """
    outputs = outputs_of(primal.graph)
    work = [(outputs[place], True) for place in of]
    found: set[tuple[fx.Node, bool]] = set()
    while work:
        node, has_cotangent = work.pop()
        if node in active and (node, has_cotangent) not in found:
            found.add((node, has_cotangent))
            work += _next(primal, node, has_cotangent, given)
    return {node for node, has_cotangent in found if has_cotangent}


def _next(
    primal: fx.GraphModule,
    node: fx.Node,
    has_cotangent: bool,
    given: Mapping[fx.Node, Sequence[fx.Node]],
) -> list[tuple[fx.Node, bool]]:
    """The arguments that autograd visits after `node`, each with whether it gets a cotangent.

    `has_cotangent`: of `node`.  A custom function takes zeros for missing ones, and may return
    None.  Which arguments of an op get one may depend on which of its results do.
    """
    if node in given:
        return [(each, has_cotangent) for each in given[node]]
    if node.target is with_data:
        return [(node.all_input_nodes[0], has_cotangent)]
    if node.target is not with_backward:
        return [(each, has_cotangent) for each in node.all_input_nodes]
    body, _, _, _, *operands = node.args
    gradients = outputs_of(getattr(primal, str(body.target)).graph)  # type: ignore[union-attr]
    pairs = zip(operands, gradients, strict=True)
    return [(each, gradient is not None) for each, gradient in pairs if isinstance(each, fx.Node)]


def _selected(node: fx.Node) -> list[fx.Node]:
    """The `getitem` nodes that select tensors from the result of `node`, at any depth."""
    items = [user for user in node.users if user.target is operator.getitem]
    inner = [each for item in items for each in _selected(item)]
    return [*(n for n in items if computes_tensor(n)), *inner]
