"""One measurement in a process of its own: `python -m adjoint.bench.worker TASK RESULT`.

TASK is JSON. RESULT is a file, because the systems print to standard output.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from adjoint.bench import calls, sizes, zoo
from adjoint.bench.jax_workloads import step_in_jax
from adjoint.bench.measure import PeakMemory, largest_error, timed
from adjoint.bench.own import own_step
from adjoint.bench.problems import Expected, Step, step_of
from adjoint.bench.results import Measurement, Task
from adjoint.bench.workloads import WORKLOADS


def main(arguments: Sequence[str]) -> None:
    """Measure, and write the measurement, or why there is none, to the result file."""
    task, result = Task.from_json(arguments[0]), Path(arguments[1])
    try:
        measurement = MEASURES[task.table](task)
    except Exception as error:
        result.write_text(json.dumps({"failure": described(error)}))
        raise
    result.write_text(measurement.to_json())


def measure(task: Task) -> Measurement:
    """Run one workload on one system."""
    torch.set_float32_matmul_precision("highest")
    cuda = task.device == "cuda"
    memory = PeakMemory(cuda)
    step, expected = _prepared(task)
    measured = timed(step, task.reps, cuda)
    grown = _memory_of_jax() if cuda and task.system == "jax" else memory.grown()
    computed = [measured.first, measured.last] if step.repeats else [measured.first]
    error, in_float64 = largest_error(computed, expected)
    return Measurement(measured.step, measured.cold, grown, error, in_float64)


def _prepared(task: Task) -> tuple[Step, Callable[[], Expected]]:
    """The step, and a function that computes the expected results."""
    if task.table != "zoo" and task.workload not in WORKLOADS:
        own = own_step(task.workload, task.args, task.system, task.device)
        return own.step, own.expected
    makes = zoo.MODELS[task.workload].problem if task.table == "zoo" else WORKLOADS[task.workload]
    problem = makes(task.device, task.small)
    in_jax = task.system == "jax"
    step = step_in_jax(task.workload, problem) if in_jax else step_of(problem, task.system)

    def expected() -> Expected:
        reference = step_of(problem.double(), "eager")
        return Expected(reference.computed(reference.run()))

    return step, expected


def _memory_of_jax() -> int | None:
    jax = importlib.import_module("jax")
    peak: int | None = jax.devices()[0].memory_stats().get("peak_bytes_in_use")
    return peak


MEASURES: dict[str, Callable[[Task], Measurement]] = {
    "steps": measure,
    "sizes": sizes.measure,
    "calls": calls.measure,
    "zoo": measure,
}


def described(error: Exception) -> str:
    """The error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


if __name__ == "__main__":
    main(sys.argv[1:])
