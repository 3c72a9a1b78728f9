"""Runs each measurement in a fresh process with caches off, alternating between systems.

The machine's noise varies over minutes; alternating, all systems are exposed to the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from adjoint.bench import zoo
from adjoint.bench.jax_workloads import WORKLOADS as IN_JAX
from adjoint.bench.results import Failure, Measurement, Row, Table, Task, row

# Workloads whose `Problem.inside` is empty.
WITHOUT_DERIVATIVES_INSIDE = ("gpt", "schnet")

Outcome = Measurement | Failure
PACKAGE = Path(__file__).resolve().parent.parent.parent


def runs_on(workload: str, system: str, table: str = "steps") -> bool:
    """Whether the workload is written for the system."""
    if table == "zoo":
        return system in zoo.MODELS[workload].systems
    if system == "jax":
        return workload in IN_JAX
    return not (workload in WITHOUT_DERIVATIVES_INSIDE and system.startswith("func_"))


def turns(tasks: Sequence[Task], runs: int) -> list[list[Task]]:
    """Tasks by workload, then by run, then by system; each run begins with another system."""
    rounds: list[list[Task]] = []
    for workload in dict.fromkeys(task.workload for task in tasks):
        own = [task for task in tasks if task.workload == workload]
        rounds += [own[r % len(own) :] + own[: r % len(own)] for r in range(runs)]
    return rounds


def run_all(
    tasks: Sequence[Task],
    runs: int,
    measure: Callable[[Task], Outcome],
    saw: Callable[[Task, int], None],
) -> Table:
    """Measure all tasks `runs` times, calling `saw(task, run)` before each.

    A system that has failed on a workload is not run on it again.
    """
    outcomes: dict[Task, list[Outcome]] = {task: [] for task in tasks}
    for number, turn in enumerate(turns(tasks, runs)):
        for task in turn:
            saw(task, number % runs)
            if not any(isinstance(outcome, Failure) for outcome in outcomes[task]):
                outcomes[task].append(measure(task))
    rows: list[Row] = [row(task.workload, task.system, outcomes[task]) for task in tasks]
    return Table(tuple(rows))


def measure_in_process(task: Task, timeout: float) -> Outcome:
    """Measure in a fresh process; a crash or timeout is an outcome, too."""
    with tempfile.TemporaryDirectory(prefix="adjoint-bench-") as folder:
        result, log = Path(folder, "result.json"), Path(folder, "log")
        command = [sys.executable, "-m", "adjoint.bench.worker", task.to_json(), str(result)]
        with log.open("w") as output:
            try:
                status = subprocess.run(
                    command,
                    env=environment(task, folder),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=timeout,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                return Failure(f"took more than {timeout:.0f} s")
        if not result.exists():
            lines = log.read_text(errors="replace").strip().splitlines()
            return Failure(f"ended with status {status}: {lines[-1] if lines else 'no output'}")
        text = result.read_text()
        failure = json.loads(text).get("failure")
        return Measurement.from_json(text) if failure is None else Failure(failure)


def environment(task: Task, folder: str) -> dict[str, str]:
    """The user's environment, with this adjoint, empty caches and equal precision."""
    path = os.pathsep.join(filter(None, [str(PACKAGE), os.environ.get("PYTHONPATH")]))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "ADJOINT_CACHE": "off",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/triton",
        "XDG_CACHE_HOME": f"{folder}/cache",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",
        "JAX_PLATFORMS": task.device,
    }


def standard_tasks(
    workloads: Sequence[str],
    systems: Sequence[str],
    device: str,
    reps: int,
    small: bool,
    table: str = "steps",
) -> list[Task]:
    """The pairs of standard workloads and systems that exist."""
    return [
        Task(workload, system, device, reps, small, table=table)
        for workload in workloads
        for system in systems
        if runs_on(workload, system, table)
    ]
