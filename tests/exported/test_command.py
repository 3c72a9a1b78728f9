from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import adjoint
from adjoint import cli
from adjoint.exported import command


def test_a_file_is_inspected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = adjoint.export(torch.sin, (torch.rand(3),), tmp_path / "sine.adjoint")
    assert command.main([str(path)]) == 0
    alone = capsys.readouterr().out
    assert "an exported program" in alone
    assert cli.main(["inspect", str(path)]) == 0
    assert capsys.readouterr().out == alone


def test_what_is_no_file_of_ours_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").write_bytes(b"something else")
    assert command.main([str(tmp_path / "other")]) == 1
    assert "no exported program" in capsys.readouterr().err


def test_it_needs_no_compiler(tmp_path: Path) -> None:
    path = adjoint.export(torch.sin, (torch.rand(3),), tmp_path / "sine.adjoint")
    program = (
        "import sys\nsys.modules['llvmlite'] = None\nsys.argv = ['adjoint', 'inspect', sys.argv[1]]"
        "\nfrom adjoint.__main__ import main\nassert main() == 0\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "fits here" in done.stdout
