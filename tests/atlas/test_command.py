from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from adjoint import cli
from adjoint.atlas import command
from tests.atlas_trees import PACKAGE, planted


def test_the_command_makes_an_atlas_and_says_what_it_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = planted(tmp_path / "in", {**PACKAGE, "bad.py": "def f(:\n"})
    out = tmp_path / "out"
    assert command.main([str(root), "--out", str(out), "--jobs", "1"]) == 0
    said = capsys.readouterr().out
    assert "6 files, 6 of them read;" in said
    assert "1 file could not be read or parsed in full:\n  bad.py: Python cannot parse it" in said
    planted(root, {"shop/tax.py": PACKAGE["shop/tax.py"] + "\n"})
    assert cli.main(["atlas", str(root), "--out", str(out), "--changed", "--jobs", "1"]) == 0
    said = capsys.readouterr().out
    assert "shop/tax.py_docs.md\n" in said
    assert "6 files, 1 of them read;" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a folder, or a function with --of"),
        (["nowhere"], "there is no folder nowhere"),
        ([".", "--of", "a:b"], "name a folder, or a function with --of"),
        ([".", "--jobs", "0"], "--jobs 0: at least one process is needed"),
        ([".", "--out", "."], "--out . holds other files; name a new folder"),
        ([".", "--out", "written_by_hand.md"], "--out written_by_hand.md is a file"),
    ],
)
def test_what_cannot_be_made_is_an_error(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    planted(tmp_path, {"written_by_hand.md": ""})
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert cli.main(["atlas", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_the_atlas_of_a_tree_does_not_import_torch(tmp_path: Path) -> None:
    planted(tmp_path / "in", PACKAGE)
    program = (
        "import sys; from adjoint.__main__ import main; sys.argv[1:] = sys.argv[2:]; "
        "main(); assert 'torch' not in sys.modules, 'torch was imported'"
    )
    arguments = ["atlas", str(tmp_path / "in"), "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", program, "", *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
