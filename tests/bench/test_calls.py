import io

import pytest
import torch
from rich.console import Console

from adjoint.bench import calls
from adjoint.bench.calls import CALLS
from adjoint.bench.results import Failure, Measurement, Table, Task, row
from adjoint.bench.schedule import measure_in_process
from tests.bench.made_up import measured


def task(workload: str, system: str) -> Task:
    return Task(workload, system, "cpu", 1, table="calls")


@pytest.mark.parametrize("name", CALLS)
def test_each_call_in_eager(name: str) -> None:
    threads = torch.get_num_threads()
    try:
        found = calls.measure(task(name, "eager"))
    finally:
        torch.set_num_threads(threads)
    assert 0 < found.step < 0.1
    assert found.error is not None
    assert found.error < 1e-5


@pytest.mark.parametrize(
    "name",
    [
        "second-order step",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in CALLS
            if each != "second-order step"
        ),
    ],
)
def test_each_call_compiled(name: str) -> None:
    found = measure_in_process(task(name, "adjoint"), timeout=300)
    assert isinstance(found, Measurement)
    assert found.cold > 10 * found.step
    assert found.error is not None
    assert found.error < 1e-5


def test_a_line_for_each_system_and_a_column_for_each_call() -> None:
    made = Table(
        (
            row("2 ops", "eager", [measured(4e-6)]),
            row("2 ops", "adjoint", [measured(30e-6)]),
            row("15 ops", "eager", [measured(35e-6)]),
            row("15 ops", "adjoint", [Failure("no")]),
            row("forward", "eager", [measured(30e-6)]),
            row("forward", "adjoint", [measured(75e-6, error=0.5)]),
        )
    )
    console = Console(file=io.StringIO(), width=100)
    console.print(calls.rendered(made))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "microseconds 2 ops 15 ops forward" in lines
    assert "eager 4 35 30" in lines
    assert "adjoint 30 failed 75, error 5e-01" in lines
