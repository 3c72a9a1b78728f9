from __future__ import annotations

from torch import fx, nn

from adjoint.runtime.recorded import Recorded, Reversed, Stages


def recorded() -> Recorded:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((x, x, x, x))
    module = fx.GraphModule(nn.Module(), graph)
    first = Reversed(module, (0, 1, 3), (0,), (2,))
    stages = Stages((1,), (1, 0, 0, 1), (frozenset({0}), frozenset({0, 1})))
    return Recorded(module, 2, (0, 1), (2, 3), frozenset({0, 1, 3}), first, stages=stages)


def test_which_saved_values_a_backward_graph_takes() -> None:
    made = recorded()
    assert made.taken_by(made.first) == [0, 2]
    assert made.order == (0, 1, 3)
    assert made.own == frozenset(range(4))
    assert made.runs is made.graph_module


def test_a_stage_has_its_own_outputs_and_inputs() -> None:
    stage, wrt = recorded().stage(1)
    assert stage.order == (0, 3)
    assert stage.own == frozenset({0, 3})
    assert stage.stages is None
    assert not stage.first.of
    assert wrt == (0, 1)
