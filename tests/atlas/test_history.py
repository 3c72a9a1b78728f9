from __future__ import annotations

import json
import subprocess
from pathlib import Path

from adjoint.atlas.history import from_json, head_of, history_of
from tests.atlas_trees import planted


def commit(root: Path, subject: str, files: dict[str, str]) -> None:
    planted(root, files)
    name = ["-c", "user.name=A", "-c", "user.email=a@b"]
    subprocess.run(["git", "add", "-A"], cwd=root, check=True)
    subprocess.run(["git", *name, "commit", "-qm", subject], cwd=root, check=True)


def test_last_changes_and_files_that_change_together(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    commit(tmp_path, "first", {"in/a.py": "1", "in/b.py": "1", "in/é c.py": "1"})
    commit(tmp_path, "second", {"in/a.py": "2", "in/b.py": "2", "out.py": "1"})
    commit(tmp_path, "third", {"in/a.py": "3"})
    found = history_of(tmp_path / "in")
    assert {path: change.subject for path, change in found.last.items()} == {
        "a.py": "third",
        "b.py": "second",
        "é c.py": "first",
    }
    assert found.together == {"a.py": [("b.py", 2)], "b.py": [("a.py", 2)]}
    assert from_json(json.loads(json.dumps(found))) == found


def test_outside_of_git_there_is_no_history(tmp_path: Path) -> None:
    assert head_of(tmp_path) == ""
