"""The graphs inside a graph: bodies and branches of higher-order operators such as `cond`."""

from __future__ import annotations

from torch.fx import GraphModule, Node


def subgraph_of(graph_module: GraphModule, node: Node) -> GraphModule | None:
    """The graph that a `get_attr` node refers to, if it refers to one."""
    if node.op != "get_attr":
        return None
    found: object = graph_module
    for part in str(node.target).split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, GraphModule) else None


def body_of(graph_module: GraphModule, node: Node) -> GraphModule:
    """The graph that a `get_attr` node refers to."""
    found = subgraph_of(graph_module, node)
    assert found is not None, f"{node.name} does not refer to a graph"
    return found


def subgraphs_of(graph_module: GraphModule) -> dict[str, GraphModule]:
    """The graphs that are operands in this graph, by name, in the order of their first use."""
    found: dict[str, GraphModule] = {}
    for node in graph_module.graph.nodes:
        subgraph = subgraph_of(graph_module, node)
        if subgraph is not None:
            found[str(node.target)] = subgraph
    return found
