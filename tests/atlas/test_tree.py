from __future__ import annotations

import os
import subprocess
from pathlib import Path

from adjoint.atlas.tree import GENERATED, STORE, folders, walk
from tests.atlas_trees import planted


def paths(root: Path, out: Path | None = None) -> list[str]:
    return [entry.path for entry in walk(root, out).entries]


def test_files_come_in_a_fixed_order_without_what_is_hidden_or_compiled(tmp_path: Path) -> None:
    planted(
        tmp_path,
        {"b.py": "", "a/z.py": "", "a/.hidden.py": "", "a/__pycache__/z.pyc": "", "c.so": ""},
    )
    assert paths(tmp_path) == ["a/z.py", "b.py"]


def test_pages_are_never_documented(tmp_path: Path) -> None:
    page = f"<!-- {GENERATED} -->\n# x\n"
    planted(
        tmp_path,
        {
            "a.py": "",
            f"docs/{STORE}/state.json": "",
            "docs/index.md": page,
            "copied/a.py_docs.md": page,
            "copied/names/a.md": page,
            "copied/index.md": "# Written by hand\n",
            "out/x.md": "",
        },
    )
    assert paths(tmp_path, tmp_path / "out") == ["a.py", "copied/index.md"]


def test_links_are_named_and_not_followed(tmp_path: Path) -> None:
    planted(tmp_path, {"a/b.py": ""})
    os.symlink("..", tmp_path / "a" / "up")
    os.symlink("gone", tmp_path / "broken.py")
    found = {entry.path: entry.link for entry in walk(tmp_path).entries}
    assert found == {"a/b.py": None, "a/up": "..", "broken.py": "gone"}


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (entry,) = walk(tmp_path).entries
    assert "no regular file" in entry.problem


def test_what_git_ignores_is_left_out(tmp_path: Path) -> None:
    planted(tmp_path, {".gitignore": "built/\n*.log\n", "a.py": "", "built/b.py": "", "c.log": ""})
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert paths(tmp_path) == ["a.py"]
    # A tree that is ignored as a whole, such as an installed package, is there to be documented.
    assert paths(tmp_path / "built") == ["b.py"]


def test_every_folder_with_a_file_below_it() -> None:
    assert folders(("a/b/c.py", "d.py")) == ["", "a", "a/b"]
