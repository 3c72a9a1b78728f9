from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import fx

import adjoint
from adjoint.compiler import Compiler
from adjoint.errors import RewriteError
from adjoint.graph.verify import GraphError
from adjoint.observing import Sighting
from adjoint.options import Options
from adjoint.passes import Pass
from adjoint.stage_runner import StageRunner
from tests.parity import leaf


def test_the_time_of_a_stage_is_its_own() -> None:
    seen: list[Sighting] = []
    stages = StageRunner(Options(), seen.append)

    def slow() -> int:
        time.sleep(0.2)
        return 1

    def outer() -> int:
        return stages.stage("inner", 0, slow)

    def fails() -> int:
        raise KeyError

    assert stages.stage("outer", 0, outer) == 1
    inner, whole = seen
    assert inner.seconds >= 0.2 > 0.1 > whole.seconds >= 0
    with pytest.raises(KeyError):
        stages.stage("fails", 0, fails)
    assert stages._nested_seconds == []


def graph() -> fx.GraphModule:
    return adjoint.capture(lambda x: x.sin() * 2, torch.ones(3)).graph_module


def without_metadata(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Breaks the graph."""
    for node in graph_module.graph.nodes:
        node.meta.clear()
    return graph_module


def unchanged(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Does nothing."""
    return graph_module


def test_passes_run_in_order_and_say_how_many_nodes_there_were() -> None:
    seen: list[Sighting] = []
    stages = StageRunner(Options(skip_passes=("second",)), seen.append, "f")
    passes = [Pass(name, unchanged) for name in ("first", "second", "third")]
    given = graph()
    assert stages.passes(passes, given, 1) is given
    count = len(given.graph.nodes)
    assert [(each.stage, each.order, each.nodes, each.function) for each in seen] == [
        ("first", 1, (count, count), "f"),
        ("third", 1, (count, count), "f"),
    ]


def test_a_pass_that_breaks_the_graph_is_named() -> None:
    with pytest.raises(GraphError, match="without-metadata"):
        StageRunner(Options(verify=True)).passes(
            [Pass("without-metadata", without_metadata)], graph(), 0
        )
    StageRunner(Options(verify=False)).passes(
        [Pass("without-metadata", without_metadata)], graph(), 0
    )


def test_each_graph_that_a_stage_made_is_verified() -> None:
    """A derivative has a forward graph, a backward graph, and perhaps another one that runs."""
    x = leaf(3)
    captured = adjoint.capture(lambda x: x.sin() * 2, x)
    made = Compiler(Options(verify=True)).derivative(captured.graph_module, (0,))
    assert made is not None
    stages = StageRunner(Options(verify=True))
    assert stages.stage("partition", 1, lambda: made) is made
    broken = replace(made.first_backward, graph_module=without_metadata(graph()))
    for wrong in (
        replace(made, graph_module=broken.graph_module),
        replace(made, executed=broken.graph_module),
        replace(made, first=broken),
    ):
        with pytest.raises(GraphError, match="after partition: "):
            stages.stage("partition", 1, partial(replace, wrong))


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (lambda graph_module: None, "pass 'own': it returned NoneType, not a graph module"),
        (without_metadata, "pass 'own': it broke the graph: "),
    ],
)
def test_what_a_pass_of_the_users_must_not_do(own: Any, why: str) -> None:
    """It is found without the option `verify`, too."""
    compiled = adjoint.compile(lambda x: x.sin() * 2, passes=[adjoint.graph_pass("own")(own)])
    with pytest.raises(RewriteError, match=why):
        compiled(torch.ones(3))
