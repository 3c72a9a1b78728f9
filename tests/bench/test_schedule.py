from adjoint.bench.results import Failure, Measurement, Task
from adjoint.bench.schedule import measure_in_process, run_all, standard_tasks, turns
from tests.bench.made_up import measured


def tasks() -> list[Task]:
    return standard_tasks(["pinn", "gpt"], ["eager", "jax", "func_adjoint"], "cpu", 1, True)


def test_only_what_is_written_is_run() -> None:
    pairs = [(task.workload, task.system) for task in tasks()]
    assert pairs == [("pinn", "eager"), ("pinn", "jax"), ("pinn", "func_adjoint"), ("gpt", "eager")]


def test_systems_take_turns() -> None:
    order = [[task.system for task in turn] for turn in turns(tasks()[:3], 2)]
    assert order == [["eager", "jax", "func_adjoint"], ["jax", "func_adjoint", "eager"]]


def test_what_failed_is_not_asked_again() -> None:
    asked: list[str] = []

    def measure(task: Task) -> Measurement | Failure:
        asked.append(task.system)
        return Failure("no") if task.system == "jax" else measured(1.0)

    seen: list[int] = []
    table = run_all(tasks()[:2], 3, measure, lambda task, number: seen.append(number))
    assert asked.count("jax") == 1
    assert asked.count("eager") == 3
    assert seen == [0, 0, 1, 1, 2, 2]
    assert [row.failure for row in table.rows] == [None, "no"]


def test_a_process_that_fails_is_an_outcome() -> None:
    outcome = measure_in_process(Task("no_such:function", "eager", "cpu", 1), timeout=300)
    assert outcome == Failure("UsageError: there is no module 'no_such'")


def test_a_process_that_takes_too_long_is_an_outcome() -> None:
    outcome = measure_in_process(Task("pinn", "eager", "cpu", 1), timeout=0.01)
    assert outcome == Failure("took more than 0 s")
