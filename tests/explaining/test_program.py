from __future__ import annotations

import json
from pathlib import Path

import pytest

from adjoint.cli import main
from adjoint.explaining import watched_program

RECOMPILING = """
import torch

net = torch.nn.Linear(4, 4)


def step(x, scale):
    return (net(x) * scale).square().sum()


compiled = torch.compile(step, backend="adjoint")
for number in range(3):
    compiled(torch.randn(8, 4), float(number)).backward()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "recompiling.py"
    file.write_text(RECOMPILING)
    return file


def test_a_script_that_compiles_again_is_told_why(script: Path, tmp_path: Path) -> None:
    report = watched_program(str(script))
    costs = report.costs()
    assert [bool(each.compilation.reason) for each in costs] == [False, True]
    assert costs[1].compilation.reason == "scale is no longer 0.0"
    # The derivative was compiled after the frame, because of it.
    assert all(each.seconds > each.compilation.seconds for each in costs)
    assert sum(each.seconds for each in costs) < report.seconds
    text = str(report)
    assert "step (" in text
    assert "again, because scale is no longer 0.0" in text
    report.save(tmp_path / "report.json")
    data = json.loads((tmp_path / "report.json").read_text())
    assert [each["reason"] for each in data["compilations"]] == ["", "scale is no longer 0.0"]
    assert any("net(x) * scale" in line["text"] for line in data["lines"])
    assert all(graph["name"].startswith("step: ") for graph in data["graphs"])
    report.save(tmp_path / "report.html")
    assert "recompiling.py" in (tmp_path / "report.html").read_text()


def test_a_script_that_fails_is_reported_up_to_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "failing_script.py"
    file.write_text("import sys\nassert sys.argv[1:] == ['--steps', '3']\nraise ValueError('no')\n")
    assert main(["report", str(file), "--steps", "3"]) == 1
    said = capsys.readouterr().out
    assert "it ended with ValueError: no" in said
    assert "failing_script.py\", line 3, in <module>\n    raise ValueError('no')" in said
    assert "runpy" not in said
    assert main(["report", str(tmp_path / "none.py")]) == 1
    assert "there is no file" in capsys.readouterr().err
