from __future__ import annotations

import torch
from torch import fx

from adjoint.graph.copying import copied
from adjoint.graph.origins import begin, for_part_of, have, inherit, is_part, origins_of, replace

aten = torch.ops.aten


def sine() -> tuple[fx.GraphModule, fx.Node, fx.Node]:
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(aten.sin.default, (x,))
    graph.output((y,))
    return fx.GraphModule(torch.nn.Module(), graph), x, y


def test_each_value_has_its_own() -> None:
    _, x, y = sine()
    assert origins_of(x) != origins_of(y)
    assert origins_of(y) == origins_of(y)
    assert [str(each) for each in origins_of(y)] == ["sin_default"]


def test_a_copy_computes_the_same_value() -> None:
    module, x, y = sine()
    copy = copied(module)
    assert have(copy.graph.nodes, origins_of(y)) == copy.graph.find_nodes(
        op="call_function", target=aten.sin.default
    )
    assert not have(copy.graph.nodes, ())
    assert [node.op for node in have(copy.graph.nodes, origins_of(x))] == ["placeholder"]


def test_what_takes_the_place_of_a_node_computes_its_value() -> None:
    module, x, y = sine()
    before = origins_of(y)
    with module.graph.inserting_before(y):
        half = module.graph.call_function(aten.mul.Tensor, (x, 0.5))
        half.meta = for_part_of(y, None)
        new = module.graph.call_function(aten.cos.default, (half,))
        new.meta = for_part_of(y, None)
    replace(y, new)
    assert origins_of(new)[0] == before[0]
    assert is_part(half)
    assert is_part(new)
    assert not set(before) & set(origins_of(half))
    assert half.meta["part_of"] is aten.sin.default


def test_a_node_computed_from_other_values_begins_anew() -> None:
    _, x, y = sine()
    before = origins_of(y)
    begin(y)
    assert not set(before) & set(origins_of(y))
    inherit(y, x)
    assert set(origins_of(x)) < set(origins_of(y))
