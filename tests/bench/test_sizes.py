import importlib.util
import io

import pytest
import torch
from rich.console import Console

import adjoint
from adjoint.bench import sizes
from adjoint.bench.results import Failure, Measurement, Table, Task, row
from adjoint.bench.schedule import measure_in_process
from adjoint.bench.sizes import MAX_SETS, WORKLOADS, Compilations, measure, size_sets


def task(workload: str, system: str) -> Task:
    return Task(workload, system, "cpu", 2, small=True, table="sizes")


def check(measured: Measurement) -> None:
    assert measured.error is not None
    assert measured.error < 1e-4
    assert measured.in_float64
    assert measured.unseen is not None
    assert measured.again is not None
    assert min(measured.step, measured.unseen, measured.again) > 0


def test_eager_compiles_nothing() -> None:
    measured = measure(task("forces", "eager"))
    check(measured)
    assert measured.compiling_steps == 0


@pytest.mark.parametrize(
    "system", ["adjoint", pytest.param("func_adjoint", marks=pytest.mark.slow)]
)
def test_all_sizes_share_a_program(system: str) -> None:
    outcome = measure_in_process(task("forces", system), timeout=300)
    assert isinstance(outcome, Measurement)
    check(outcome)
    assert outcome.compiling_steps in (1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["eager", "adjoint"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_each_workload(workload: str, system: str) -> None:
    if (why := sizes.missing(workload)) is not None:
        pytest.skip(why)
    outcome = measure_in_process(task(workload, system), timeout=600)
    assert isinstance(outcome, Measurement)
    check(outcome)


@pytest.mark.slow
def test_inductor_has_no_second_derivatives() -> None:
    outcome = measure_in_process(task("pinn", "inductor"), timeout=600)
    assert isinstance(outcome, Failure)
    # If its backward reuses the memory of saved values, that is what it says first.
    assert any(each in outcome.why for each in ("double backward", "requires create_graph=False"))


def test_no_size_comes_twice_and_none_is_the_largest() -> None:
    sets = size_sets((12288, 2 * MAX_SETS), MAX_SETS)
    for largest, drawn in zip((12288, 2 * MAX_SETS), zip(*sets, strict=True), strict=True):
        assert len(set(drawn)) == MAX_SETS
        assert largest // 2 <= min(drawn)
        assert max(drawn) < largest
    assert min(edges for edges, _ in sets) > 0.89 * 12288


@pytest.mark.parametrize("workload", [each for each in WORKLOADS if each != "schnet"])
def test_a_batch_is_cut_to_its_sizes(workload: str) -> None:
    given = WORKLOADS[workload]
    problem = given.problem("cpu", True)
    (wanted,) = size_sets(given.largest(problem.batch), 1)
    batch = given.cut(problem.batch, *wanted)
    assert given.largest(batch) == wanted
    assert all(x.is_contiguous() for x in batch)
    assert problem.outside(problem.net, *batch).isfinite()


def test_every_compilation_counts() -> None:
    compilations = Compilations()
    slope = adjoint.grad(
        lambda x: x.sin().sum(), dynamic=False, options=compilations.options("func_adjoint")
    )
    totals = []
    for size in (3, 3, 5):
        slope(torch.ones(size))
        totals.append(compilations.total())
    assert 0 < totals[0] == totals[1] < totals[2]


def test_a_package_that_is_not_installed_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert sizes.missing("schnet") == "torch_geometric is not installed"
    assert sizes.missing("pinn") is None


def test_a_line_for_each_system() -> None:
    found = Measurement(0.01, 3.0, None, 1e-7, unseen=0.013, again=0.011, compiling_steps=2)
    made = Table((row("pinn", "adjoint", [found]), row("pinn", "inductor", [Failure("no")])))
    console = Console(file=io.StringIO(), width=80)
    console.print(sizes.rendered(made))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "adjoint 10.00 13.00 11.00 1.30 2 3.00 1e-07" in lines
    assert "inductor failed - - - - -" in lines
