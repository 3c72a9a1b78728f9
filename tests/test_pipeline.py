from __future__ import annotations

import re
from pathlib import Path

import pytest

from adjoint.bench import workloads
from adjoint.bench.problems import training_step
from adjoint.observing import watching
from adjoint.passes import Pass
from adjoint.pipeline import FORWARD, JOINT, LINEAR, PASS_NAMES, POST, all_places, lowering
from adjoint.target import Target, cpu_target, loops_target
from tests.lowering import DRAWING_GRID
from tests.rewriting import Growth


@pytest.mark.parametrize("pipeline", [FORWARD, JOINT, LINEAR, POST])
def test_passes_have_names_in_kebab_case(pipeline: tuple[Pass, ...]) -> None:
    assert pipeline
    for each in pipeline:
        assert each.name == each.name.lower().replace("_", "-")
        assert each.run.__doc__, "a pass says what it does"


def test_a_softmax_is_closed_before_and_opened_after_differentiation() -> None:
    assert [each.name for each in FORWARD] == ["close-softmax"]
    names = [each.name for each in JOINT]
    # What an opened softmax is made of may be there already.
    assert "merge-common-subexpressions" in names[names.index("open-softmax") :]


@pytest.mark.parametrize("target", [cpu_target(), loops_target(), DRAWING_GRID])
def test_every_pass_of_every_target_can_be_skipped_by_its_name(target: Target) -> None:
    assert {each.name for each in (*JOINT, *POST, *FORWARD, *LINEAR)} < PASS_NAMES
    of_all = iter(each.name for each in all_places()["lowering"])
    assert all(each.name in of_all for each in lowering(target)), "in the order of all targets"
    assert {"join-writes", "draw-in-kernels"} <= PASS_NAMES


def test_architecture_lists_the_passes_of_each_place() -> None:
    text = (Path(__file__).parent.parent / "ARCHITECTURE.md").read_text()
    _, _, table = text.partition("| place | graph | passes |")
    for place, passes in list(all_places().items())[:4]:
        (row,) = re.findall(rf"^\| `{place}` \|.*\|(.*)\|$", table, re.MULTILINE)
        assert re.findall(r"`([\w-]+)`", row) == [each.name for each in passes]


def test_rules_have_names_and_equations() -> None:
    for each in (*JOINT, *POST):
        for rule in each.rules:
            assert rule.name == rule.name.lower().replace("_", "-")
            assert "=" in rule.meaning, f"{rule.name} of {each.name} says no equation"


@pytest.mark.parametrize(
    ("name", "system"),
    [
        ("forces", "adjoint"),
        *(
            pytest.param(name, system, marks=pytest.mark.slow)
            for name, system in (
                ("forces", "func_adjoint"),
                ("pinn", "adjoint"),
                ("pinn", "func_adjoint"),
                ("gp", "func_adjoint"),
                ("gpt", "adjoint"),
            )
        ),
    ],
)
def test_no_graph_of_a_workload_is_larger_after_its_passes(name: str, system: str) -> None:
    problem = getattr(workloads, name)("cpu", False)
    step = training_step(problem, system, options={"cache": False})
    with watching(growth := Growth()):
        step.run(*problem.batch)
    assert {place for place, _, _ in growth.graphs} == {"primal", "joint", "post"}
    assert not growth.larger
