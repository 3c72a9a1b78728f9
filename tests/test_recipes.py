"""The recipes of CONTRIBUTING, followed: each by a test here, or by one that is named here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import adjoint
from adjoint.backend import adjoint as backend
from adjoint.graph.origins import for_part_of, replace
from adjoint.loops.pointwise import TABLE, Pointwise
from adjoint.observing import Sighting
from adjoint.options import Options
from adjoint.rules.registry import VJPS
from tests.lowering import calls, graph_of, lower

ROOT = Path(__file__).resolve().parent.parent
aten = torch.ops.aten

# The tests that follow each recipe.
FOLLOWED_BY = {
    "A pass": [
        "tests/test_recipes.py::test_a_pass",
        "tests/test_compiler.py::test_a_pass_that_breaks_the_graph_is_named",
        "tests/test_pipeline.py::test_passes_have_names_in_kebab_case",
    ],
    "An op that is pointwise": [
        "tests/test_recipes.py::test_a_pointwise_op",
        "tests/rules/test_pointwise.py::test_each_row_of_the_tables_is_sampled",
    ],
    "Any other op": [
        "tests/lower/definitions/test_table.py",
        "tests/lower/compositions/test_registry.py",
        "tests/lower/test_decompositions.py",
    ],
    "A rule": [
        "tests/test_recipes.py::test_a_pointwise_op",
        "tests/rules/test_registry.py::test_a_rule_is_used_in_place_of_what_there_was",
        "tests/test_opsdoc.py::test_each_rule_is_in_the_file",
    ],
    "An option": [
        "tests/test_recipes.py::test_an_option",
        "tests/test_compiler.py::test_transforms_take_the_same_options",
        "tests/test_options.py::test_the_error_lists_what_is_legal",
    ],
    "A target": [
        "tests/test_targets.py::test_every_target_runs_what_eager_computes",
        "tests/test_targets.py::test_a_target_is_put_together_of_what_there_is",
    ],
    "An observer": [
        "tests/test_recipes.py::test_an_observer",
        "tests/test_compiler.py::test_the_observer_is_shown_each_stage_of_each_order",
    ],
    "A descriptor": ["tests/graph/test_descriptors.py::test_the_vocabulary_is_complete"],
    "A construct that capture should support": ["tests/capture/test_surroundings.py"],
    "A construct that capture refuses": ["tests/test_errors.py", "tests/capture/test_direct.py"],
    "A private torch name": [
        "tests/test_tidy.py::test_private_torch_is_reached_through_torch_private"
    ],
    "A module": ["tests/test_tidy.py::test_each_module_has_its_test_file"],
    "A language for the atlas": [
        "tests/atlas/test_grammars.py::test_every_capture_has_a_meaning",
        "tests/atlas/test_syntax.py::test_rust",
    ],
    "A new version of a tool or of torch": ["constraints.txt"],
}


def recipes() -> list[str]:
    _, _, text = (ROOT / "CONTRIBUTING.md").read_text().partition("## Recipes")
    return re.findall(r"^\*\*([^*]+)\.\*\*", text, re.MULTILINE)


def is_there(test: str) -> bool:
    path, _, name = test.partition("::")
    file = ROOT / path
    if not name:
        return file.exists()
    functions = (n for n in ast.parse(file.read_text()).body if isinstance(n, ast.FunctionDef))
    return name in {function.name for function in functions}


def test_each_recipe_is_followed() -> None:
    assert set(recipes()) == set(FOLLOWED_BY)
    assert [test for tests in FOLLOWED_BY.values() for test in tests if not is_there(test)] == []


def test_a_test_that_is_not_there_is_found() -> None:
    assert not is_there("tests/test_recipes.py::test_nothing")
    assert not is_there("tests/test_nothing.py")


@adjoint.graph_pass("exponentials-of-two", "joint", after="open-softmax")
def exponentials_of_two(graph_module: fx.GraphModule) -> fx.GraphModule:
    """exp2(x) = exp(x log 2)"""
    graph = graph_module.graph
    for node in graph.find_nodes(op="call_function", target=aten.exp2.default):
        with graph.inserting_before(node):
            scaled = graph.call_function(aten.mul.Tensor, (node.args[0], 0.6931471805599453))
            scaled.meta = for_part_of(node, node.meta["val"])
            power = graph.call_function(aten.exp.default, (scaled,))
            power.meta = for_part_of(node, node.meta["val"])
        replace(node, power)
    return graph_module


def derivatives(function: Any, x: Tensor, order: int) -> list[Tensor]:
    """The value and each derivative of its sum."""
    found = [function(x)]
    for _ in range(order):
        found += torch.autograd.grad(found[-1].sum(), x, create_graph=True)
    return found


def test_a_pass() -> None:
    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    seen: list[Sighting] = []
    options = {"passes": [exponentials_of_two], "verify": True, "target": "reference"}
    compiled = torch.compile(
        torch.exp2, backend=partial(backend, observer=seen.append, options=options)
    )
    torch.testing.assert_close(derivatives(compiled, x, 2), derivatives(torch.exp2, x, 2))
    names = [each.stage for each in seen if each.order == 1]
    assert names[names.index("open-softmax") + 1] == "exponentials-of-two"
    (after,) = (e.value for e in seen if e.stage == "exponentials-of-two" and e.order == 1)
    assert not after.graph.find_nodes(op="call_function", target=aten.exp2.default)
    # There is nothing to rewrite in a graph without the operator.
    graph = graph_of(torch.sin, [x.detach()])
    before = str(graph.graph)
    assert str(exponentials_of_two(graph).graph) == before


@pytest.fixture
def cube(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A user's own op, with a formula for kernels and a derivative rule."""
    with torch.library._scoped_library("adjoint_recipes", "FRAGMENT") as library:
        library.define("cube(Tensor x) -> Tensor")
        library.impl("cube", lambda x: x * x * x, "CompositeExplicitAutograd")
        op = torch.ops.adjoint_recipes.cube.default
        monkeypatch.setitem(TABLE, op, Pointwise(lambda x: x * x * x))
        monkeypatch.setitem(VJPS, op, lambda *_: None)  # So that the rule below is undone.

        @adjoint.vjp_rule(op)
        def rule(cotangent: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
            return (cotangent * 3 * x * x,)

        yield op


def test_a_pointwise_op(cube: Any) -> None:
    x = torch.rand(4, dtype=torch.float64, requires_grad=True)
    compiled = adjoint.compile(lambda x: cube(x) + 1, target="loops")
    wanted = derivatives(lambda x: x * x * x + 1, x, 3)
    torch.testing.assert_close(derivatives(compiled, x, 3), wanted)
    # It is fused, not called.
    assert calls(lower(graph_of(lambda x: cube(x) + 1, [x.detach()]))) == []


def test_an_option() -> None:
    assert Options.parse({"target": "loops"}).target == "loops"
    with pytest.raises(ValueError, match="choose from: 'native', 'loops', 'reference'"):
        Options.parse({"target": "tpu"})
    readme = (ROOT / "README.md").read_text()
    assert [name for name in Options.__dataclass_fields__ if f"`{name}`" not in readme] == []


def test_an_observer() -> None:
    seen: list[str] = []

    def observe(sighting: Sighting) -> None:
        seen.append(f"{sighting.stage} {sighting.order}")

    x = torch.rand(3, requires_grad=True)
    compiled = torch.compile(torch.sin, backend=partial(backend, observer=observe))
    compiled(x).sum().backward()
    assert seen[:3] == ["capture 0", "fuse-attention 0", "differentiate 1"]
    assert seen.index("partition 1") < len(seen) - 1
