import pytest

from adjoint.bench.measure import relative_error
from adjoint.bench.problems import step_of
from adjoint.bench.schedule import runs_on
from adjoint.bench.workloads import WORKLOADS


@pytest.mark.parametrize(
    ("workload", "system"),
    [("forces", "adjoint"), ("forces", "func_adjoint"), ("pinn", "func_adjoint")],
)
def test_adjoint_computes_what_eager_does(workload: str, system: str) -> None:
    problem = WORKLOADS[workload]("cpu", True).double()
    step, eager = step_of(problem, system), step_of(problem, "eager")
    found = {name: x.clone() for name, x in step.computed(step.run()).items()}
    assert relative_error(found, eager.computed(eager.run())) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("system", ["adjoint", "func_adjoint"])
def test_every_workload_runs_both_ways(workload: str, system: str) -> None:
    if not runs_on(workload, system):
        pytest.skip("there is no derivative inside")
    test_adjoint_computes_what_eager_does(workload, system)
