"""Common subexpression elimination."""

from __future__ import annotations

from torch import fx

from adjoint.failing import works_on
from adjoint.graph.descriptors import Result
from adjoint.graph.metadata import (
    has_output_descriptors,
    mode_of,
    output_descriptors,
    outputs_of,
    run_of,
    value_or_none,
)
from adjoint.graph.origins import replace
from adjoint.graph.purity import is_never_dead, remove_dead_code
from adjoint.torch_private.symbols import made_equal


@works_on("node")
def merge_common_subexpressions(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Merge nodes that call the same op with the same arguments in the same autograd mode.

    Nodes of different checkpoint regions are not merged: one may have to be recomputed.  Nor are
    results of the program, which are tensors of their own, with histories of their own.
    Nodes that nothing needs are removed.
    """
    graph = graph_module.graph
    results = _results(graph)
    known: dict[object, fx.Node] = {}
    for node in list(graph.nodes):
        if node in results:
            continue
        if node.op == "get_attr":
            key: object = ("get_attr", node.target)
        elif node.op == "call_function" and not is_never_dead(node):
            where = mode_of(node), run_of(node)
            key = (node.target, where, _frozen(node.args), _frozen(node.kwargs))
        else:
            continue
        try:
            first = known.setdefault(key, node)
        except TypeError:  # An argument that cannot be compared.
            continue
        if first is not node and made_equal(value_or_none(node), value_or_none(first)):
            replace(node, first)
    remove_dead_code(graph)
    return graph_module


def _results(graph: fx.Graph) -> set[fx.Node]:
    if not has_output_descriptors(graph):
        return set()
    pairs = zip(outputs_of(graph), output_descriptors(graph), strict=True)
    return {
        node for node, meaning in pairs if isinstance(meaning, Result) and isinstance(node, fx.Node)
    }


def _frozen(value: object) -> tuple[object, ...]:
    if isinstance(value, (list, tuple)):
        return (type(value).__name__ == "tuple", *(_frozen(each) for each in value))
    if isinstance(value, dict):
        return tuple((name, _frozen(each)) for name, each in sorted(value.items()))
    # 1, 1.0 and True are equal, but not the same argument; nor are 0.0 and -0.0.
    return (type(value), repr(value)) if isinstance(value, float) else (type(value), value)
