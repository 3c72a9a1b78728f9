from __future__ import annotations

from dataclasses import replace

import sympy
import torch

import adjoint
from adjoint.lower.assumptions import noting_assumptions
from tests.lowering import graph_of, lower


def test_a_branch_on_a_size_is_an_assumption_of_the_plan() -> None:
    graph = adjoint.capture(lambda x: x.sin() * 2, torch.rand(6), dynamic=True).graph_module
    with noting_assumptions(graph) as noted:
        (x,) = graph.graph.find_nodes(op="placeholder")
        assert bool(x.meta["val"].shape[0] > 4)
        made = lower(graph)
    plan = noted.usable(made)
    assert plan is not None
    (assumed,) = plan.assumed
    assert isinstance(assumed, sympy.core.relational.Relational)


def test_a_plan_without_kernels_is_of_no_use() -> None:
    x = torch.rand(3)
    graph = graph_of(lambda x: [x.sort().values], [x])
    with noting_assumptions(graph) as noted:
        made = lower(graph)
    assert noted.usable(made) is None
    graph = graph_of(lambda x: [x.sin()], [x])
    with noting_assumptions(graph) as noted:
        made = lower(graph)
    plan = noted.usable(made)
    assert plan is not None
    assert plan.assumed == ()


def test_what_no_input_shows_cannot_be_checked() -> None:
    graph = adjoint.capture(lambda x: x.sin() * 2, torch.rand(6), dynamic=True).graph_module
    with noting_assumptions(graph) as noted:
        plan = lower(graph)
    hidden = replace(noted, all=[sympy.Symbol("u7") > 4], before=0)
    assert noted.usable(plan) is not None
    assert hidden.usable(plan) is None
