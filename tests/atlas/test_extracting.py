from __future__ import annotations

from pathlib import Path

import pytest

from adjoint.atlas import syntax
from adjoint.atlas.extracting import content_key, extract
from adjoint.atlas.tree import Entry
from tests.atlas_trees import facts, planted


def test_a_link_and_an_unreadable_file_say_so(tmp_path: Path) -> None:
    link, _ = extract(tmp_path, Entry("a.py", 0, 0, link="b.py"))
    assert link.problems == ("It is a symbolic link to b.py, which is not followed.",)
    broken, _ = extract(tmp_path, Entry("a.py", 0, 0, problem="No."))
    assert broken.problems == ("No.",)
    gone, text = extract(tmp_path, Entry("gone.py", 0, 0))
    assert gone.problems
    assert text == ""


def test_lines_are_counted_with_or_without_a_last_line_end() -> None:
    assert facts("a\nb\n", "text").lines == 2
    assert facts("a\nb", "text").lines == 2
    assert facts("", "text").lines == 0


def test_without_a_parser_the_page_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str) -> object:
        raise syntax.MissingParser(module)

    syntax._parser.cache_clear()
    monkeypatch.setattr(syntax, "installed", missing)
    found = facts("int a;\n", "C")
    assert "pip install adjoint[atlas]" in found.problems[0]
    assert found.lines == 1


def test_the_key_is_of_content_and_language(tmp_path: Path) -> None:
    planted(tmp_path, {"a.py": "x", "b.py": "x", "c.c": "x", "d.py": "y"})
    keys = [content_key(tmp_path, Entry(path, 0, 0)) for path in ("a.py", "b.py", "c.c", "d.py")]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
