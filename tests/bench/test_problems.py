import pytest

from adjoint.bench.measure import relative_error
from adjoint.bench.problems import step_of
from adjoint.bench.workloads import WORKLOADS


@pytest.mark.parametrize("workload", WORKLOADS)
def test_float64_is_the_same_problem(workload: str) -> None:
    problem = WORKLOADS[workload]("cpu", True)
    step, wide = step_of(problem, "eager"), step_of(problem.double(), "eager")
    found, right = step.computed(step.run()), wide.computed(wide.run())
    assert found.keys() == dict(problem.net.named_parameters()).keys()
    assert 0 < relative_error(found, right) < 1e-4
