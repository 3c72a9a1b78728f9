import pytest

from adjoint.bench.jax_workloads import WORKLOADS, step_in_jax
from adjoint.bench.measure import relative_error
from adjoint.bench.problems import step_of
from adjoint.bench.workloads import WORKLOADS as IN_TORCH


def test_what_is_in_jax_is_in_torch() -> None:
    assert WORKLOADS.keys() <= IN_TORCH.keys()


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS)
def test_gradients_are_those_of_eager(workload: str) -> None:
    pytest.importorskip("jax")
    problem = IN_TORCH[workload]("cpu", True)
    step, eager = step_in_jax(workload, problem), step_of(problem.double(), "eager")
    assert relative_error(step.computed(step.run()), eager.computed(eager.run())) < 1e-4
