import json
import math

from adjoint.bench.results import Measurement, Table, Task, row
from tests.bench.made_up import measured, table


def test_medians_and_ratios() -> None:
    made = table()
    eager, refused, _, adjoint = made.of("pinn")
    assert (eager.step, eager.cold, eager.memory) == (0.3, 0.3, 2**20)
    assert adjoint.step is not None
    assert math.isclose(made.step_over_eager(adjoint) or 0, 0.1 / 0.3)
    assert math.isclose(made.step_over_best_peer(adjoint) or 0, 0.5)
    assert math.isclose(made.cold_over_inductor(adjoint) or 0, 0.1)
    assert refused.step is None
    assert made.step_over_eager(refused) is None


def test_the_worst_error_counts() -> None:
    worst = row("pinn", "eager", [measured(1, error=1e-7), measured(1, error=math.inf)])
    assert worst.error == math.inf


def test_an_error_beyond_rounding_looks_wrong() -> None:
    made = table()
    assert [r.system for r in made.rows if made.looks_wrong(r)] == ["adjoint"]


def test_a_table_is_sound_where_all_ran_and_agree() -> None:
    made = table()
    assert not made.is_sound()
    assert Table(tuple(made.of("pinn")[2:])).is_sound()
    assert not Table((made.of("pinn")[1],)).is_sound()  # failed
    assert not Table((made.of("gpt")[1],)).is_sound()  # wrong


def test_json_has_every_measurement() -> None:
    infinite = Table((row("gp", "eager", [measured(1.0, error=math.inf)]),))
    assert json.loads(infinite.to_json({}))["rows"][0]["error"] == "inf"
    read = json.loads(table().to_json({"runs": 3}))
    assert read["settings"] == {"runs": 3}
    assert [len(r["runs"]) for r in read["rows"]] == [3, 0, 1, 1, 1, 1]
    assert read["rows"][1]["failure"] == "RuntimeError: no [double] backward"
    assert "torch" in read["machine"]


def test_tasks_and_measurements_travel_as_json() -> None:
    task = Task("file.py:f", "eager", "cpu", 3, args="torch.ones(2)")
    assert Task.from_json(task.to_json()) == task
    assert Measurement.from_json(measured(1.0).to_json()) == measured(1.0)


def test_what_changing_sizes_cost() -> None:
    runs = [
        Measurement(1.0, 9.0, None, None, unseen=2.0, again=1.5, compiling_steps=1),
        Measurement(2.0, 9.0, None, None, unseen=2.0, again=2.5, compiling_steps=3),
        Measurement(4.0, 9.0, None, None, unseen=5.0, again=4.5, compiling_steps=1),
    ]
    changing = row("pinn", "adjoint", runs)
    assert (changing.step, changing.unseen, changing.again) == (2.0, 2.0, 2.5)
    assert changing.unseen_over_one == 1.25
    assert changing.compiling_steps == 3
    (read,) = json.loads(Table((changing,)).to_json({}))["rows"]
    assert (read["unseen_over_one"], read["compiling_steps"]) == (1.25, 3)
