from __future__ import annotations

from torch import fx

from adjoint.graph.reachability import dependents, reachable


def diamond() -> dict[str, fx.Node]:
    graph = fx.Graph()
    nodes = {"x": graph.placeholder("x"), "y": graph.placeholder("y")}
    nodes["left"] = graph.call_function(abs, (nodes["x"],))
    nodes["right"] = graph.call_function(abs, (nodes["x"],))
    nodes["sum"] = graph.call_function(max, (nodes["left"], nodes["right"]))
    nodes["other"] = graph.call_function(abs, (nodes["y"],))
    return nodes


def test_what_is_computed_from_a_node() -> None:
    nodes = diamond()
    assert dependents([nodes["x"]]) == {nodes[name] for name in ("x", "left", "right", "sum")}
    assert dependents([nodes["other"]]) == {nodes["other"]}
    assert dependents([]) == set()


def test_the_neighbours_decide_where_to_go_on() -> None:
    nodes = diamond()
    stop = nodes["left"]
    found = reachable([nodes["sum"]], lambda node: () if node is stop else node.all_input_nodes)
    assert found == {nodes[name] for name in ("sum", "left", "right", "x")}
    assert reachable([stop], lambda node: ()) == {stop}
