from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from adjoint.capture.direct import capture
from adjoint.compiler import Compiler
from adjoint.forms.form import Unwritable
from adjoint.forms.graph_reading import read
from adjoint.forms.graphs import Ground, written
from adjoint.graph.derivative import Derivative
from adjoint.graph.evaluation import evaluate
from adjoint.graph.metadata import region_of
from adjoint.graph.origins import origins_of
from adjoint.graph.show import show
from adjoint.graph.verify import verify
from adjoint.torch_private.fake import fake_mode_of
from tests.forms.corpus import CASES


def graph_of(name: str, dynamic: bool = False) -> fx.GraphModule:
    function, args = CASES[name]
    return capture(function, *args, dynamic=dynamic).graph_module


def derivative_of(graph_module: fx.GraphModule) -> Derivative | None:
    inputs = graph_module.graph.find_nodes(op="placeholder")
    values = [node.meta.get("val") for node in inputs]
    wrt = [
        n for n, v in enumerate(values) if isinstance(v, torch.Tensor) and v.dtype.is_floating_point
    ]
    return Compiler().derivative(graph_module, wrt, segmented=True)


@pytest.mark.parametrize("dynamic", [False, True], ids=["sizes", "symbols"])
@pytest.mark.parametrize("name", CASES)
def test_graphs_are_read_as_they_were_written(name: str, dynamic: bool) -> None:
    graph_module = graph_of(name, dynamic)
    ground = Ground(graph_module)
    derivative = derivative_of(graph_module)
    assert derivative is not None
    text = written(derivative, ground)
    known = Ground(graph_module).text
    again = read(text, ground)
    # Torch asks about the sizes of new tensors, and records the answers unless told not to.
    assert Ground(graph_module).text == known
    assert isinstance(again, Derivative)
    assert written(again, ground) == text
    pairs = [
        (derivative.graph_module, again.graph_module),
        (derivative.runs, again.runs),
        (derivative.first_backward.graph_module, again.first_backward.graph_module),
    ]
    for before, after in pairs:
        verify(after)
        assert show(after) == show(before)
        assert Ground(after).text == Ground(before).text
    assert (again.saved, again.differentiable) == (derivative.saved, derivative.differentiable)
    assert (again.segments, again.results) == (derivative.segments, derivative.results)


def test_a_graph_that_was_read_computes_the_same() -> None:
    graph_module = graph_of("network")
    again = read(written(graph_module, Ground(graph_module)), Ground(graph_module))
    inputs = [
        torch.randn(node.meta["val"].shape)
        for node in graph_module.graph.find_nodes(op="placeholder")
    ]
    torch.testing.assert_close(evaluate(again, inputs), evaluate(graph_module, inputs))


@pytest.mark.parametrize("name", ["network", "checkpointed", "gathered"])
def test_two_captures_have_one_text(name: str) -> None:
    assert Ground(graph_of(name)).text == Ground(graph_of(name)).text
    assert Ground(graph_of(name, True)).text == Ground(graph_of(name, True)).text


PROGRAM = """
from tests.forms.test_graphs import Ground, graph_of
for name in ("network", "gathered", "viewed"):
    print(Ground(graph_of(name)).digest, Ground(graph_of(name, True)).digest)
"""


def test_two_processes_have_one_text() -> None:
    root = Path(__file__).parents[2]
    made = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert made[0] == made[1]
    assert len(made[0].split()) == 6


def test_where_the_source_lies_does_not_matter() -> None:
    def at(line: str) -> fx.GraphModule:
        space: dict[str, Any] = {"torch": torch}
        exec(compile(f"{line}def f(x):\n    return (x * 2).sin()\n", "model.py", "exec"), space)
        return capture(space["f"], torch.ones(3)).graph_module

    assert Ground(at("")).digest == Ground(at("\n\n\n")).digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x * 2, lambda x: x * 3),
        (lambda x: x * 2, lambda x: x * 2.0),
        (lambda x: x.sin(), lambda x: x.cos()),
        (lambda x: x.sum(0), lambda x: x.sum(1)),
        (lambda x: x * torch.tensor(2.0), lambda x: x * torch.tensor(3.0)),
        (lambda x: (x, x.sin()), lambda x: (x.sin(), x)),
        (lambda x: x.detach().sin(), lambda x: x.sin()),
    ],
)
def test_other_programs_have_other_texts(one: Any, other: Any) -> None:
    x = torch.ones(2, 3)
    texts = [Ground(capture(each, x).graph_module).text for each in (one, other)]
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    "other",
    [
        torch.ones(3, 2),
        torch.ones(2, 3).double(),
        torch.ones(3, 2).t(),
        torch.ones(2, 6)[:, ::2],
        torch.ones(1, 3).expand(2, 3),
    ],
)
def test_other_inputs_have_other_texts(other: torch.Tensor) -> None:
    texts = [Ground(capture(torch.sin, x).graph_module).text for x in (torch.ones(2, 3), other)]
    assert texts[0] != texts[1]


def test_assumptions_are_part_of_the_text() -> None:
    graph_module = graph_of("rows", dynamic=True)
    before = Ground(graph_module).text
    size = next(
        size
        for node in graph_module.graph.nodes
        for size in getattr(node.meta.get("val"), "shape", ())
        if isinstance(size, torch.SymInt)
    )
    assert bool(size < 1000)
    assert Ground(graph_module).text != before


def test_origins_keep_their_order_and_stay_apart() -> None:
    graph_module = graph_of("normalized")
    ground = Ground(graph_module)
    derivative = derivative_of(graph_module)
    assert derivative is not None
    text = written(derivative, ground)
    one, other = (read(text, ground).first_backward.graph_module for _ in range(2))
    known = set(ground.origins)

    def numbers(graph: fx.GraphModule) -> list[int]:
        found = {each for node in graph.graph.nodes for each in origins_of(node)}
        return [each.number for each in found - known]

    assert numbers(one)
    assert not set(numbers(one)) & set(numbers(other))
    shared = {each for node in one.graph.nodes for each in origins_of(node)} & known
    assert shared


def test_runs_of_checkpoints_stay_apart() -> None:
    graph_module = graph_of("checkpointed")
    ground = Ground(graph_module)
    derivative = derivative_of(graph_module)
    assert derivative is not None
    text = written(derivative, ground)

    def runs(value: Derivative) -> set[int]:
        regions = map(region_of, value.first_backward.graph_module.graph.nodes)
        return {each.recomputed for each in regions if each is not None}

    one, other, first = runs(read(text, ground)), runs(read(text, ground)), runs(derivative)
    assert len(one) == len(other) == len(first) > 0
    assert not one & other
    assert not one & first


def test_what_no_text_says() -> None:
    graph_module = graph_of("pointwise")
    node = next(iter(graph_module.graph.nodes))
    changed = copy.copy(node.meta)
    node.meta = {**changed, "hooks": ()}
    with pytest.raises(Unwritable, match="a node with hooks"):
        Ground(graph_module).text  # noqa: B018
    with fake_mode_of(graph_module):
        conjugate = torch.ones(2, dtype=torch.complex64).conj()
        leaf = torch.ones(2, requires_grad=True)
    for value, why in (
        (torch.ones(2), "Tensor has no form"),
        (conjugate, "a tensor that is not strided, or is lazily negated"),
        (leaf, "a value of a node that requires grad, or a tensor subclass"),
    ):
        node.meta = {**changed, "val": value}
        with pytest.raises(Unwritable, match=why):
            Ground(graph_module).text  # noqa: B018


def test_what_belongs_to_no_graph_of_ours_is_not_written() -> None:
    ground = Ground(graph_of("pointwise"))
    with pytest.raises(Unwritable, match="an origin outside of a node"):
        written(next(iter(ground.origins)), ground)
    with pytest.raises(Unwritable, match="a node call_method"):
        written(fx.symbolic_trace(lambda x: x.sin()), ground)
    with pytest.raises(Unwritable, match="a size that depends on data"):
        written(graph_of("gathered", dynamic=True), ground)
