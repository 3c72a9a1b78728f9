from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch import Tensor, nn

import adjoint
from adjoint.explaining import Explanation, explain

MODEL = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.SiLU(), nn.Linear(16, 1))
X, INDEX = torch.randn(40, 6), torch.randint(0, 5, (40,))


def energy(x: Tensor, index: Tensor) -> Tensor:
    y = MODEL(x)
    return torch.zeros(5, 1).index_add(0, index, y).square().sum()


@pytest.fixture(scope="module")
def twice() -> Explanation:
    return explain(energy, X, INDEX, order=2)


def test_every_order_has_its_graphs_under_the_users_lines(twice: Explanation) -> None:
    run = [(graph.role, graph.order) for graph in twice.graphs if graph.is_lowered]
    # The second derivative goes back through the gradient, and then through the program itself.
    assert run == [("forward", 0), ("forward", 1), ("backward", 2), ("backward", 1)]
    assert all("y = MODEL(x)" in graph.first.text for graph in twice.graphs)
    assert any("def forward(" in graph.first.text for graph in twice.graphs)
    assert {"capture", "differentiate", "partition", "lower", "emit", "load"} <= {
        each.stage for each in twice.stages
    }


def test_kernels_are_measured_and_have_their_lines(twice: Explanation) -> None:
    kernels = [each for each in twice.timings if each.kernels]
    assert {each.order for each in kernels} == {0, 1, 2}
    assert all(each.seconds > 0 and each.bytes > 0 for each in kernels)
    assert any("silu" in each.name for each in kernels)
    assert any("y = MODEL(x)" in line for each in kernels for line in each.lines)
    assert any(each.flops > 2 * 40 * 6 * 16 for each in twice.timings)


def test_saved_values_are_named(twice: Explanation) -> None:
    assert twice.memory is not None
    assert twice.memory.bytes > 0
    assert twice.memory.spans


def test_text_and_json_say_the_same(twice: Explanation, tmp_path: Path) -> None:
    text = str(twice)
    assert text.startswith("energy, differentiated twice\n4 programs: ")
    for part in ("time to compile", "as measured", "saved for the backward", "torch.compile"):
        assert part in text
    twice.save(tmp_path / "explained.json")
    data = json.loads((tmp_path / "explained.json").read_text())
    assert data == twice.data()
    graph = data["graphs"][0]
    line = data["lines"][graph["values"][0]["line"]]
    assert line["text"].strip() == "y = MODEL(x)"
    twice.save(tmp_path / "explained.txt")
    assert (tmp_path / "explained.txt").read_text() == text


def test_a_derivative_is_traced_to_what_it_differentiates(twice: Explanation) -> None:
    graphs = twice.data()["graphs"]
    forward = next(g for g in graphs if g["role"] == "forward" and g["order"] == 0)
    backward = next(g for g in graphs if g["role"] == "backward" and g["order"] == 1)
    silu = next(v for v in forward["values"] if "silu" in v["operation"])
    reverse = [v for v in backward["values"] if set(v["derivative_of"]) & set(silu["origins"])]
    assert any("silu" in v["operation"] for v in reverse)


def test_nothing_that_was_compiled_is_forgotten_and_arguments_stay() -> None:
    def doubled(x: Tensor) -> Tensor:
        return x.mul_(2).sin()

    compiled = torch.compile(doubled, backend="adjoint")
    compiled(X.clone())
    before = X.clone()
    for _ in range(10):  # More often than Dynamo compiles one code object.
        explain(compiled, X, order=0)
    assert torch.equal(X, before)
    assert not X.requires_grad
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(X.clone())


@pytest.mark.slow
def test_modules_transforms_and_callables_are_explained() -> None:
    of_module = explain(MODEL, X)
    assert of_module.function == "Sequential"
    assert [g.order for g in of_module.graphs if g.is_lowered] == [0, 1]
    inputs = [port.meaning for port in of_module.graphs[0].first.inputs]
    assert any("0.weight" in each for each in inputs), inputs
    of_transform = explain(adjoint.grad(energy), X, INDEX)
    assert of_transform.order == 0
    assert explain(lambda x: x * 2 + 1, torch.arange(3)).order == 0  # Nothing requires grad.
    assert [each.what for each in of_transform.compilations] == ["transform"]
    assert any(each.kernels for each in of_transform.timings)
    hooked = nn.Linear(6, 2)
    called: list[int] = []
    hooked.register_forward_hook(lambda *_: called.append(1))
    explain(hooked, X, order=0)
    assert called


def test_what_falls_back_is_said() -> None:
    def branching(x: Tensor) -> Tensor:
        return x.sum() if x.sum() > 0 else -x.sum()

    with pytest.warns(adjoint.FallbackWarning):
        explained = explain(adjoint.grad(branching), torch.rand(5))
    assert explained.fallbacks
    assert "what fell back to eager" in str(explained)


def test_a_call_that_nobody_explains_runs_nothing_of_it() -> None:
    """The same functions are called as before, and none of them observes."""

    def calls() -> Counter[str]:
        found: Counter[str] = Counter()

        def see(frame: FrameType, event: str, _: object) -> None:
            if event == "call":
                found[f"{frame.f_code.co_filename} {frame.f_code.co_name}"] += 1

        sys.setprofile(see)
        try:
            compiled(x).sum().backward()
        finally:
            sys.setprofile(None)
        return found

    compiled = torch.compile(lambda x: x.sin() * 2, backend="adjoint")
    x = torch.rand(3, requires_grad=True)
    for _ in range(3):
        compiled(x).sum().backward()
    before = calls()
    explain(lambda x: x.cos() * 2, x)
    assert calls() == before
    parts = ("explaining", "checking", "observing", "progress")
    assert not [each for each in before if any(f"adjoint/{part}" in each for part in parts)]
