import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from adjoint.bench.command import TABLES, chosen_tasks, left_out
from adjoint.cli import main


def test_a_table_a_file_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, picture = tmp_path / "results.json", tmp_path / "results.svg"
    chosen = ["--only", "forces", "--systems", "eager", "--small", "--runs", "1", "--reps", "1"]
    assert main(["bench", *chosen, "--json", str(file), "--plot", str(picture)]) == 0
    assert "forces" in capsys.readouterr().out
    (row,) = json.loads(file.read_text())["rows"]
    assert row["failure"] is None
    assert row["step_over_eager"] == 1.0
    assert picture.read_text().startswith("<svg")


def test_a_failure_is_told_in_the_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bench_refuses.py"
    file.write_text("def refuses(x):\n    raise ValueError('not today')\n")
    chosen = ["--systems", "eager", "--runs", "1", "--args", "torch.ones(2)"]
    assert main(["bench", f"{file}:refuses", *chosen]) == 1
    assert "ValueError: not today" in capsys.readouterr().out


@pytest.mark.slow
def test_the_table_of_changing_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.json"
    chosen = ["--only", "forces", "--systems", "eager", "--small", "--reps", "1"]
    assert main(["bench", "--sizes", *chosen, "--json", str(file)]) == 0
    assert "compiled" in capsys.readouterr().out
    (row,) = json.loads(file.read_text())["rows"]
    assert row["unseen_over_one"] == row["unseen_s"] / row["step_s"]
    assert row["compiling_steps"] == 0


@pytest.mark.slow
def test_the_table_of_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.json"
    chosen = ["--only", "2 ops", "--systems", "eager", "--reps", "1", "--json", str(file)]
    assert main(["bench", "--calls", *chosen]) == 0
    assert "microseconds" in capsys.readouterr().out
    (row,) = json.loads(file.read_text())["rows"]
    assert 0 < row["step_s"] < 0.1


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"schnet": "no"}
    monkeypatch.setitem(TABLES, "sizes", replace(TABLES["sizes"], missing=missing.get))
    parsed = argparse.Namespace(
        function=None, args=None, device="cpu", reps=1, small=True, systems=["eager"], only=None
    )
    parsed.sizes, parsed.calls, parsed.zoo = True, False, False
    assert [task.workload for task in chosen_tasks(parsed)] == ["pinn", "forces", "gp", "gpt"]
    assert left_out(parsed) == ["schnet is left out: no"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "pin"], "there is no workload 'pin'; choose from pinn, forces"),
        (["--systems", "xla"], "there is no system 'xla'; choose from eager"),
        (["f.py:f", "--systems", "jax"], "there is no system 'jax'"),
        (["no_such_file.py:f"], "there is no file no_such_file.py"),
        (["no_such_module:f"], "there is no module 'no_such_module'"),
        (["math:no_such_function"], "math has no 'no_such_function'; it has"),
        (["f.py:f", "--only", "pinn"], "--only chooses among the standard workloads"),
        (["--args", "1"], "--args are the arguments of a function"),
        (["--only", "gpt", "--systems", "jax"], "gpt cannot run on jax"),
        (["--plot", "a.png"], "a.png ends with neither .svg nor .html"),
        (["--sizes", "--plot", "a.svg"], "--plot does not draw --sizes"),
        (["--sizes", "--reps", "27"], "--sizes takes at most 26 --reps"),
        (["--sizes", "--systems", "jax"], "there is no system 'jax'"),
        (["--calls", "--only", "pinn"], "there is no workload 'pinn'; choose from 2 ops"),
        (["f.py:f", "--calls"], "--calls has workloads of its own"),
        (["--calls", "--device", "cuda"], "--calls are measured on the CPU; leave --device out"),
        (["--json", "no_such_folder/a"], "there is no folder no_such_folder"),
    ],
)
def test_what_cannot_be_measured_is_explained(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert main(["bench", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_device_that_is_not_there_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", "--device", "cuda"]) == 1
    assert "torch finds no CUDA device" in capsys.readouterr().err


def test_a_count_is_positive(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--reps", "0"])
    assert "argument --reps: 0 is not positive" in capsys.readouterr().err
