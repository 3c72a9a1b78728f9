from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

from adjoint.capture.direct import capture
from adjoint.forms.form import Malformed
from adjoint.forms.graph_reading import Inapplicable, read, require_fitting
from adjoint.forms.graphs import Ground, written
from adjoint.graph import calling as c
from adjoint.graph.metadata import Mode
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


def _fakes(tree: Any) -> Iterator[list[Any]]:
    """The fake tensors in a document."""
    if isinstance(tree, list) and tree[:1] == ["fake"]:
        yield tree
    elif isinstance(tree, list | dict):
        for each in tree.values() if isinstance(tree, dict) else tree:
            yield from _fakes(each)


def _set(place: int, value: Any) -> Callable[[Any], None]:
    """A change of the last node that calls an operator."""

    def change(document: Any) -> None:
        nodes = document[2][3]
        next(each for each in reversed(nodes) if each[0] == "call_function")[place] = value

    return change


def _set_meta(**meta: Any) -> Callable[[Any], None]:
    return lambda document: document[2][3][0][5].update(meta)


def _hold(**held: Any) -> Callable[[Any], None]:
    return lambda document: document[2][2].update(held)


def _set_fake(place: int, value: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for fake in _fakes(document):
            fake[place] = value

    return change


OTHER = ["get_attr", "other", "nothing", ["tuple"], ["dict"], {"origin": []}]
CHANGES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda document: document[0].append(3), "an origin has a name"),
    (_set(3, ["tuple", ["node", 99]]), "there is no node 99"),
    (_set(3, ["tuple", ["again", 999]]), "there is no earlier value 999"),
    (_set(3, ["list"]), "arguments are a tuple and a dict"),
    (_set(0, "call_module"), "there is no node call_module"),
    (lambda document: document[2][3].pop(), "a graph ends with its output"),
    (lambda document: document[2][3].insert(0, OTHER), "there is no attribute nothing"),
    (lambda document: document[2].__setitem__(1, 3), "a graph has a mode"),
    (_set_meta(hooks=1), "a node has other metadata"),
    (_set_meta(source=["tuple"]), "a line is a line"),
    (_set_meta(mode=3), "a node's mode is no int"),
    (_hold(nothing=["same"]), "there is no attribute nothing"),
    (_hold(nothing=3), "an attribute is a graph"),
]


@pytest.mark.parametrize(("change", "why"), CHANGES, ids=[why for _, why in CHANGES])
def test_what_is_no_graph_of_ours_says_why(change: Callable[[Any], Any], why: str) -> None:
    graph_module = graph_of("pointwise")
    ground = Ground(graph_module)
    document = json.loads(written(graph_module, ground))
    read(json.dumps(document), ground)
    change(document)
    with pytest.raises(Malformed, match=why):
        read(json.dumps(document), ground)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_set_fake(1, "int8"), "memory of two dtypes"),
        (_set_fake(2, [["symbolic", "bool", 1]]), "a size is an integer or symbolic"),
    ],
)
def test_what_is_no_tensor_of_ours_says_why(change: Callable[[Any], Any], why: str) -> None:
    graph_module = graph_of("pointwise")
    ground = Ground(graph_module)
    document = json.loads(written(derivative_of(graph_module), ground))
    for fake in _fakes(document):
        fake[-1] = 0
    change(document)
    with pytest.raises(Malformed, match=why):
        read(json.dumps(document), ground)


def _through(step: c.Step) -> dict[str, Any]:
    """Changes to a calling convention: its result is made by one step more."""
    return {"recipes": (c.View(c.FromGraph(0), (step,)),)}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"results": (1,)}, "a recipe"),
        ({"recipes": (c.FromGraph(1),)}, "an output of the graph"),
        ({"recipes": (c.FromCaller(2),)}, "an input of the caller's"),
        ({"recipes": (c.View(c.FromRecipe(1), ()),)}, "a recipe"),
        (_through(c.Overwrite(1)), "an output of the graph"),
        (
            _through(c.Replay(torch.ops.aten.select.int, (0, c.FromGraph(1)), (), None, Mode())),
            "an output of the graph",
        ),
        ({"writes": (c.Write(c.FromCaller(0), 1, False),)}, "an output of the graph"),
        ({"writes": (c.Write(c.BaseOf(-1), 0, False),)}, "an input of the caller's"),
        ({"requires_grad_changes": (c.SetRequiresGrad(1, True),)}, "an input of the caller's"),
        ({"metadata_changes": (c.AssignData(1, c.FromCaller(0)),)}, "an input of the caller's"),
        ({"placements": (c.StoragePlacement(1, 0, 4),)}, "an input of the caller's"),
        ({"versions": ((1, 1),)}, "an input of the caller's"),
        ({"view_values": ((0, 1),)}, "a recipe"),
        ({"sources": ()}, "each input has a source"),
    ],
)
def test_a_calling_convention_refers_to_what_is_there(change: dict[str, Any], why: str) -> None:
    captured = capture(torch.sin, torch.ones(3))
    calling = captured.calling
    require_fitting(calling, 1, captured.graph_module)
    with pytest.raises(Malformed, match=why):
        require_fitting(dataclasses.replace(calling, **change), 1, captured.graph_module)


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
