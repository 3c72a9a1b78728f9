"""The recipes of CONTRIBUTING, followed: each by a test here, or by one that is named here."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import adjoint
from adjoint import transforms
from adjoint.backend import adjoint as backend
from adjoint.bench.problems import Problem
from adjoint.bench.results import Task
from adjoint.bench.worker import measure
from adjoint.bench.workloads import WORKLOADS
from adjoint.errors import CaptureError
from adjoint.graph.origins import for_part_of, replace
from adjoint.loops.expressions import Expression
from adjoint.loops.pointwise import TABLE, Pointwise
from adjoint.lower.compositions import COMPOSITIONS
from adjoint.lower.definitions import Mapped, Reader
from adjoint.lower.definitions.table import RULES
from adjoint.lower.views import MultiIndex, shape_of
from adjoint.observing import Sighting
from adjoint.options import Options
from adjoint.pipeline import primal
from adjoint.rules.registry import VJPS
from adjoint.torch_private.operators import OpOverload
from adjoint.transforms.compiled import Compiled, Setting, linearized
from tests.lowering import calls, graph_of, loop_program_of, lower
from tests.transforms.test_nesting import LEVELS

ROOT = Path(__file__).resolve().parent.parent
aten = torch.ops.aten

# The tests that follow each recipe.
FOLLOWED_BY = {
    "A pass": [
        "tests/test_recipes.py::test_a_pass",
        "tests/test_compiler.py::test_a_pass_that_breaks_the_graph_is_named",
        "tests/test_pipeline.py::test_passes_have_names_in_kebab_case",
        "tests/test_pipeline.py::test_every_pass_of_every_target_can_be_skipped_by_its_name",
        "tests/optimize/test_random_rewrites.py::test_random_joint_graphs",
    ],
    "An op that is pointwise": [
        "tests/test_recipes.py::test_a_pointwise_op",
        "tests/rules/test_pointwise.py::test_each_row_of_the_tables_is_sampled",
        "tests/emit/math/test_library.py::test_every_math_function_of_kernels_has_a_definition",
    ],
    "Any other op": [
        "tests/test_recipes.py::test_an_op_by_a_definition",
        "tests/test_recipes.py::test_an_op_by_a_composition",
        "tests/lower/compositions/test_registry.py::test_each_composition_has_a_sample",
        "tests/test_recipes.py::test_each_family_is_imported_with_its_package",
    ],
    "A rule": [
        "tests/test_recipes.py::test_a_pointwise_op",
        "tests/rules/test_registry.py::test_a_rule_is_used_in_place_of_what_there_was",
        "tests/test_opsdoc.py::test_each_rule_is_in_the_file",
    ],
    "A transform": [
        "tests/test_recipes.py::test_a_transform",
        "tests/test_recipes.py::test_each_transform_is_exported_and_nests",
        "tests/test_public_names.py::test_the_docstring_has_an_example_that_runs",
        "tests/test_documents.py::test_the_reference_is_fresh_and_has_every_name",
    ],
    "An option": [
        "tests/test_recipes.py::test_an_option",
        "tests/test_compiler.py::test_transforms_take_the_same_options",
        "tests/test_options.py::test_the_error_lists_what_is_legal",
        "tests/test_cache.py::test_each_option_is_among_the_facts_or_changes_nothing_that_is_cached",
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
    "A construct that capture should support": [
        "tests/capture/test_surroundings.py::test_a_program_under_a_global_state",
        "tests/runtime/test_calling.py",
    ],
    "A construct that capture refuses": [
        "tests/test_recipes.py::test_a_refused_construct",
        "tests/test_errors.py",
    ],
    "A private torch name": [
        "tests/test_tidy.py::test_private_torch_is_reached_through_torch_private",
        "tests/test_tidy.py::test_each_module_has_its_test_file",
    ],
    "A module": [
        "tests/test_tidy.py::test_each_module_has_its_test_file",
        "tests/test_architecture.py::test_each_module_has_its_row_in_architecture",
        "tests/test_tidy.py::test_each_module_says_what_it_is",
    ],
    "A workload of the benchmark": [
        "tests/test_recipes.py::test_a_workload",
        "tests/bench/test_workloads.py::test_every_workload_runs_both_ways",
    ],
    "A language for the atlas": [
        "tests/atlas/test_grammars.py::test_every_capture_has_a_meaning",
        "tests/atlas/test_syntax.py::test_rust",
    ],
    "A new version of a tool or of torch": [
        "tests/test_recipes.py::test_the_environment_follows_the_constraints"
    ],
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
    assert isinstance(after, fx.GraphModule)
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


@pytest.fixture
def own_op() -> Iterator[Callable[[str, Callable[..., Tensor]], OpOverload]]:
    """Defines a user's op of one tensor."""
    with torch.library._scoped_library("adjoint_recipes", "FRAGMENT") as library:

        def define(name: str, function: Callable[..., Tensor]) -> OpOverload:
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, function, "CompositeExplicitAutograd")
            op: OpOverload = getattr(torch.ops.adjoint_recipes, name).default
            return op

        yield define


def is_fused(function: Callable[..., Tensor], x: Tensor) -> bool:
    """Whether kernels compute all of it, as eager does."""
    found = loop_program_of(function, [x])([x])
    torch.testing.assert_close(found, function(x))
    return calls(lower(graph_of(function, [x]))) == []


def test_an_op_by_a_definition(own_op: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each element of `mirrored` is a sum of two elements of its argument."""
    mirrored = own_op("mirrored", lambda x: x + x.flip(-1))

    def definition(node: fx.Node, x: fx.Node) -> Mapped:
        *_, size = shape_of(x)

        def element(index: MultiIndex, reader: Reader) -> Expression:
            *outer, last = index
            return reader.read(x, index) + reader.read(x, (*outer, last * -1 + (size - 1)))

        return Mapped(element)

    x = torch.rand(3, 4)
    assert not is_fused(lambda x: mirrored(x) * 2, x)
    monkeypatch.setitem(RULES, mirrored, definition)
    assert is_fused(lambda x: mirrored(x) * 2, x)


def test_an_op_by_a_composition(own_op: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`shares` is two loops over a row: its sum, and a quotient for each element."""
    shares = own_op("shares", lambda x: x / x.sum(-1, keepdim=True))
    x = torch.rand(3, 4)
    assert not is_fused(lambda x: shares(x) * 2, x)
    monkeypatch.setitem(COMPOSITIONS, shares, lambda x: x / x.sum([-1], keepdim=True))
    assert is_fused(lambda x: shares(x) * 2, x)


@pytest.mark.parametrize("package", ["rules", "lower/definitions", "lower/compositions"])
def test_each_family_is_imported_with_its_package(package: str) -> None:
    """In a process of its own, in which nothing else imports it."""
    dotted = f"adjoint.{package.replace('/', '.')}"
    program = f"import sys, {dotted}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    paths = (ROOT / "adjoint" / package).glob("[a-z]*.py")
    registers = re.compile(
        r"^(@vjp|@composition|NON_DIFFERENTIABLE|RULES|COMPOSITIONS)", re.MULTILINE
    )
    families = {f"{dotted}.{path.stem}" for path in paths if registers.search(path.read_text())}
    assert len(families) > 5
    assert families - set(done.stdout.split()) == set(), done.stderr


def along(
    function: Callable[..., Tensor], options: dict[str, object] | None = None
) -> Callable[[Tensor, Tensor], Any]:
    """The derivative of a function of one tensor along a direction."""

    def captured(x: Tensor, direction: Tensor) -> Tensor:
        (slope,) = linearized(function, [x], forward=True).push_forward([direction])
        return slope

    def traced(x: Tensor, direction: Tensor) -> Tensor:
        slope: Tensor = torch.func.jvp(function, (x,), (direction,))[1]
        return slope

    return Compiled("along", captured, function, traced, setting=Setting(None, options))


def test_a_transform() -> None:
    """It is compiled, can be differentiated, and nests with others, ours and torch's."""
    x, direction = torch.rand(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    seen: list[Sighting] = []
    slope: Any = along(torch.sin, {"target": "reference"})
    torch.testing.assert_close(slope.observed(seen.append, {})(x, direction), x.cos())
    assert "capture" in {each.stage for each in seen}
    y = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(slope(y, direction).sum(), y)
    torch.testing.assert_close(gradient, -x.sin())
    for namespace in (adjoint, torch.func):
        second = namespace.grad(lambda z: along(torch.sin)(z, direction).sum())
        torch.testing.assert_close(second(x), -x.sin())


def test_each_transform_is_exported_and_nests() -> None:
    assert set(transforms.__all__) <= set(adjoint.__all__)
    assert {name.partition(" ")[0] for name in LEVELS} == set(transforms.__all__)


def test_a_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    def line(device: str, small: bool) -> Problem:
        torch.manual_seed(0)
        net, x = torch.nn.Linear(3, 1).to(device), torch.rand(4, 3, device=device)
        return Problem(net, (x,), lambda net, x: net(x).square().mean(), {})

    monkeypatch.setitem(WORKLOADS, "line", line)
    measured = measure(Task("line", "adjoint", "cpu", 1, small=True))
    assert measured.error is not None
    assert measured.error < 1e-5


def test_a_refused_construct() -> None:
    """The error names the construct, why it is refused, the user's line, and a way out."""
    with pytest.raises(CaptureError) as caught:
        adjoint.capture(lambda x: x if x.sum() > 0 else -x, torch.rand(3))
    error = caught.value
    assert error.source is not None
    assert error.source.file == __file__
    assert error.remedy
    for part in (error.construct, error.why, error.remedy, str(error.source)):
        assert part in str(error)


def test_the_environment_follows_the_constraints() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^\.venv/runtime:.*\bconstraints\.txt\b", makefile, re.MULTILINE)
    installs = [each for each in makefile.splitlines() if "pip install" in each]
    assert [each for each in installs if "-c constraints.txt" not in each] == []


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
    before = [f"{each.name} 0" for each in primal(())]
    assert seen[: len(before) + 2] == ["capture 0", *before, "differentiate 1"]
    assert seen.index("partition 1") < len(seen) - 1
