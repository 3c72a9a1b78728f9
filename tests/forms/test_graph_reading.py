from __future__ import annotations

import json
import random
from functools import partial

import pytest
import torch

from adjoint.capture.direct import capture
from adjoint.forms.form import Malformed
from adjoint.forms.graph_reading import Inapplicable, read
from adjoint.forms.graphs import Ground, written
from tests.forms.test_graphs import derivative_of, graph_of
from tests.forms.test_plans import is_refused, mutated


@pytest.mark.parametrize("times", [100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_no_text_crashes_the_reader(times: int) -> None:
    graph_module = graph_of("gathered", dynamic=True)
    ground = Ground(graph_module)
    text = written(derivative_of(graph_module), ground)
    chance = random.Random(0)
    refused = 0
    for _ in range(times):
        refused += is_refused(partial(read, mutated(text, chance), ground))
    assert refused > times // 4


@pytest.mark.parametrize("text", ["", "[]", "[[], 3]x", json.dumps([[3], None])])
def test_what_is_no_graph(text: str) -> None:
    with pytest.raises(Malformed):
        read(text, Ground(graph_of("pointwise")))


def _rows(count: int) -> tuple[Ground, torch.SymInt]:
    """The ground of a graph of a symbolic size, and that size."""
    graph_module = capture(torch.sin, torch.ones(count, 3), dynamic=True).graph_module
    (node,) = graph_module.graph.find_nodes(op="placeholder")
    size = node.meta["val"].shape[0]
    assert isinstance(size, torch.SymInt)
    return Ground(graph_module), size


def test_what_was_assumed_is_assumed_again() -> None:
    ground, size = _rows(7)
    before = len(ground.guards())
    assert bool(size > 5)
    assumed = ground.guards()[before:]
    text = written(ground.graph_module, ground, assumed)
    other, _ = _rows(50)
    assert len(other.guards()) == before
    read(text, other)
    assert other.guards()[before:] == assumed
    small, _ = _rows(3)
    with pytest.raises(Inapplicable):
        read(text, small)
    assert len(small.guards()) == before
