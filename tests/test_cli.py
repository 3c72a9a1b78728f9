from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from adjoint.cli import main
from tests.checking.planting import wrong_kernel

ROOT = Path(__file__).resolve().parent.parent

MODEL = """
import torch


def step(x, scale=1.0):
    y = x.sin() * scale
    x[0].add_(1)
    return y.t()


def branch(x):
    return x if x.sum() > 0 else -x


def constant():
    return torch.ones(2)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.linear(x).relu()


class Sized(torch.nn.Module):
    def __init__(self, size):
        super().__init__()


def with_examples(x, y):
    return x * y


with_examples.example_inputs = lambda: {"x": torch.ones(3), "y": torch.ones(3)}
"""
EXAMPLES = "\nexample_inputs = (torch.ones(3, 2),)\n"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "adjoint_cli_model.py"
    file.write_text(MODEL + EXAMPLES)
    (tmp_path / "adjoint_cli_bare.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    for name in ("adjoint_cli_model", "adjoint_cli_bare"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return file


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (
            ["adjoint_cli_model:step"],
            ["args_0: f32[3, 2]", "y = x.sin() * scale", "aten.sin.default"],
        ),
        (["adjoint_cli_model.py:step"], ["aten.sin.default"]),
        (["adjoint_cli_model:Net"], ["parameter 'linear.weight'", "aten.relu.default"]),
        (["adjoint_cli_model:with_examples"], ["kwargs['x']", "aten.mul.Tensor"]),
        (["adjoint_cli_bare:constant"], ["aten.ones.default"]),
        (["adjoint_cli_bare:step", "--args", "torch.ones(4, 5), scale=3.0"], ["f32[4, 5]", "3.0"]),
        (["adjoint_cli_model:step", "--dynamic"], ["f32[s"]),
        (
            ["adjoint_cli_model:step", "--kernels"],
            ["kernel kernel(", "y = x.sin() * scale", "sin("],
        ),
    ],
)
def test_a_program_is_printed(
    arguments: list[str], shown: list[str], model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["capture", *arguments]) == 0
    printed = capsys.readouterr().out
    for text in shown:
        assert text in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["step"], "names no function; write module:function"),
        (["no_such:step"], "there is no module 'no_such'"),
        (["no_such.py:step"], "there is no file no_such.py"),
        (["adjoint_cli_model:stop"], "has no 'stop'; it has"),
        (["adjoint_cli_bare:step"], "step takes arguments; give them by --args"),
        (["adjoint_cli_model:Sized"], "Sized cannot be made without arguments"),
        (["adjoint_cli_model:branch"], "decides what the program does next"),
    ],
)
def test_what_cannot_be_printed_is_explained(
    arguments: list[str], message: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["capture", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("adjoint: ")
    assert message in captured.err
    assert captured.out == ""


FAULTY = """
import torch


def raises(x):
    raise KeyError("own")


def two(x, y):
    return x * y
"""


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faulty.py").write_text(FAULTY)
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    (tmp_path / "raising.py").write_text("raise ValueError('own')\n")
    (tmp_path / "malformed.py").write_text("def step(:\n")
    return tmp_path


X = ["--args", "torch.ones(3)"]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (
            ["capture", "faulty.py:raises", *X],
            ['in raises\n    raise KeyError("own")', "KeyError:"],
        ),
        (
            ["explain", "faulty.py:raises", *X],
            ['in raises\n    raise KeyError("own")', "KeyError:"],
        ),
        (["check", "faulty.py:raises", *X], ['in raises\n    raise KeyError("own")', "KeyError:"]),
        (["bisect", "faulty.py:raises", *X], ['in raises\n    raise KeyError("own")', "KeyError:"]),
        (["show", "--stages", "faulty.py:raises", *X], ["in raises"]),
        (["run-pass", "merge-views", "faulty.py:raises", *X], ["in raises"]),
        (["capture", "broken.py:step"], ["No module named 'no_such_module'", "import no_such"]),
        (["capture", "raising.py:step"], ["raise ValueError('own')", "ValueError: own"]),
        (["capture", "malformed.py:step"], ["def step(:", "SyntaxError"]),
    ],
)
def test_what_the_users_code_raises_is_shown_without_our_frames(
    arguments: list[str], shown: list[str], faulty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith("adjoint: your code raised ")
    assert [text for text in shown if text not in said] == []
    assert "adjoint/" not in said


@pytest.mark.parametrize("command", ["capture", "explain", "check"])
def test_arguments_that_a_function_does_not_take(
    command: str, faulty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "faulty.py:two", *X]) == 1
    message = "two(x, y) cannot be called with the arguments given: missing a required argument"
    assert f"adjoint: {message}" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["explain", "check", "report"])
def test_a_file_that_cannot_be_written_is_told_at_once(
    command: str, faulty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = "faulty.py" if command == "report" else "faulty.py:two"
    assert main([command, "--out", "none/a.html", target]) == 1
    assert "adjoint: there is no folder none for a.html" in capsys.readouterr().err
    assert main([command, "--out", ".", target]) == 1
    assert "is a folder, and not a file" in capsys.readouterr().err


def test_a_defect_of_ours_keeps_its_traceback(
    faulty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adjoint.cli.called", None)
    with pytest.raises(TypeError, match="not callable"):
        main(["explain", "faulty.py:two"])


def test_the_command_is_required() -> None:
    with pytest.raises(SystemExit):
        main([])


def test_python_runs_the_package(model: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "adjoint", "capture", "adjoint_cli_model:step"],
        capture_output=True,
        text=True,
        cwd=model.parent,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "adjoint_cli_model.py:6 in step: y = x.sin() * scale" in done.stdout


def test_show_prints_stages(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "adjoint_cli_model:with_examples"]) == 0
    assert "aten.mul.Tensor" in capsys.readouterr().out
    assert main(["show", "--stages", "adjoint_cli_model:with_examples"]) == 0
    said = capsys.readouterr().out
    assert "# differentiate - derivative of order 1" in said
    assert "# emit - the program" in said
    assert main(["show", "--only", "lower", "--order", "0", "adjoint_cli_model:with_examples"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("# lower - the program")
    assert main(["show", "--diff", "adjoint_cli_model:with_examples"]) == 0
    assert "(no change)" in capsys.readouterr().out
    assert main(["show", "--only", "polish", "adjoint_cli_model:with_examples"]) == 1
    assert "no stage 'polish' ran; there were capture, " in capsys.readouterr().err


OWN_PASS = """
import torch
import adjoint


@adjoint.replaces(lambda x: torch.sin(x) * 2, torch.ones(2))
def doubled_sine(x):
    return torch.sin(x) + torch.sin(x)


@adjoint.replaces(lambda x: torch.sin(x) * 2, torch.ones(2))
def wrong_sine(x):
    return torch.sin(x) * 3


def function(x):
    return (torch.sin(x) * 2).exp()


example_inputs = (torch.ones(3),)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "adjoint_cli_own.py"
    file.write_text(OWN_PASS)
    return file


def test_passes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["passes"]) == 0
    printed = capsys.readouterr().out
    for line in (
        "primal:",
        "fuse-attention               Replace attention that is written out by one fused call.",
        "merge-permutations         permute(permute(x, p), q) = permute(x, p[q])",
        "merge-equal-values           Merge nodes that compute the same elements",
    ):
        assert line in printed


def test_one_pass_before_and_after(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run-pass", "doubled-sine", f"{own}:function", "--passes", f"{own}:doubled_sine"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "# doubled-sine - the program" in printed
    assert "- doubled-sine 1" in printed
    assert "-    mul_tensor: f32[3] = aten.mul.Tensor(sin_default, 2)" in printed
    assert "+    add_tensor: f32[3] = aten.add.Tensor(" in printed
    assert main(["run-pass", "no-such-pass", f"{own}:function"]) == 1
    assert "no pass 'no-such-pass'; choose from: what `adjoint passes`" in capsys.readouterr().err
    assert main(["run-pass", "merge-view", f"{own}:function"]) == 1
    assert "no pass 'merge-view'; choose from: 'merge-views'" in capsys.readouterr().err
    assert main(["run-pass", "merge-views", f"{own}:function", "--order", "0"]) == 1
    error = capsys.readouterr().err
    assert "pass 'merge-views' of 'joint' did not run on this function; there ran" in error
    assert main(["run-pass", "merge-views", "math:sqrt", "--args", "2.0"]) == 1
    assert "nothing was compiled, so no pass ran" in capsys.readouterr().err
    assert main(["show", "--stages", f"{own}:function", "--passes", f"{own}:function"]) == 1
    error = capsys.readouterr().err
    assert "is no pass; adjoint.graph_pass and adjoint.replaces make one" in error


def test_the_users_pass_is_among_the_stages(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["show", "--stages", f"{own}:function", "--passes", f"{own}:doubled_sine"]
    assert main(command) == 0
    assert "# doubled-sine - the program" in capsys.readouterr().out


CUSTOM_OP = """
import torch
import adjoint

@torch.library.custom_op("mine::add_relu", mutates_args=())
def add_relu(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + y)

@add_relu.register_fake
def _(x, y):
    return torch.empty_like(x)

@adjoint.vjp_rule(torch.ops.mine.add_relu.default)
def add_relu_vjp(cotangent, out, x, y):
    return cotangent * (out > 0), cotangent * (out > 0)

def f(x):
    return torch.relu(x + x.sin()).sum()

example_inputs = (torch.ones(3, requires_grad=True),)
"""


def test_the_pattern_of_the_readme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In under ten lines two ops become a custom op, which is differentiated and shown."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (block,) = (each for each in blocks if "@adjoint.replaces" in each)
    assert len([line for line in block.splitlines() if line.strip()]) < 10
    file = tmp_path / "adjoint_cli_readme.py"
    file.write_text(CUSTOM_OP + block)
    command = ["show", "--stages", f"{file}:f", "--passes", f"{file}:fused_add_relu"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    _, made = printed.split("# fused-add-relu - ", 1)
    assert "mine.add_relu.default" in made
    assert "aten.relu.default" not in made
    assert "aten.gt.Scalar" in made  # The rule of the custom op.


def test_what_changes_a_result_is_found(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", f"{own}:function"]) == 0
    assert "no pass changes a result" in capsys.readouterr().out
    assert main(["bisect", f"{own}:function", "--passes", f"{own}:wrong_sine"]) == 0
    printed = capsys.readouterr().out
    assert "the pass 'wrong-sine' changes a result" in printed
    assert "match 1, rule 'wrong-sine' at mul_tensor = aten.mul.Tensor" in printed


def test_explain_prints_or_writes_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "explained_module.py"
    source.write_text("import torch\n\ndef f(x):\n    return x.sin().sum()\n")
    target = [f"{source}:f", "--args", "torch.rand(4)"]
    assert main(["explain", *target]) == 0
    assert capsys.readouterr().out.startswith("f, differentiated once\n")
    assert main(["explain", *target, "--order", "0", "--out", str(tmp_path / "f.json")]) == 0
    assert json.loads((tmp_path / "f.json").read_text())["function"] == "f"


def test_check_finds_the_op_and_writes_a_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "checked_module.py"
    source.write_text(
        "import torch\n\n"
        "def f(x):\n    y = torch.nn.functional.silu(x) * 2\n    return y.cos().sum()\n"
        "def whole(x):\n    return x * 2 + 1\n"
    )
    script = tmp_path / "shown.py"
    target = [f"{source}:f", "--args", "torch.rand(4)", "--out", str(script)]
    assert main(["check", *target, "--order", "2"]) == 0
    said = "its results are those of eager, and so are its derivatives to order 2"
    assert said in capsys.readouterr().out
    assert main(["check", f"{source}:whole", "--args", "torch.arange(4)"]) == 0
    assert "its results are those of eager, not differentiated" in capsys.readouterr().out
    with wrong_kernel(torch.ops.aten.silu.default):
        assert main(["check", *target]) == 1
    said = capsys.readouterr().err
    assert "the first op that differs is aten.silu.default" in said
    assert "checked_module.py:4 in f: y = torch.nn.functional.silu(x) * 2" in said
    assert "torch.ops.aten.silu.default" in script.read_text()
