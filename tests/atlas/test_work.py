from __future__ import annotations

from pathlib import Path

from adjoint.atlas import work
from adjoint.atlas.document import Heading, Page
from adjoint.atlas.tree import walk
from tests.atlas_trees import PACKAGE, planted


def setting(tmp_path: Path, format: str = "md") -> work.Setting:
    return work.Setting(tmp_path / "in", tmp_path / "out", format, "in", frozenset(PACKAGE))


def test_a_page_that_loses_a_place_says_so(tmp_path: Path) -> None:
    here = setting(tmp_path)
    page = Page("a", "a", (Heading(1, ("A",), "x"),))
    assert not here.write(page)
    assert not here.write(page)
    assert here.write(Page("a", "a", ()))
    assert (tmp_path / "out" / "a.md").exists()
    here.remove("a")
    assert here.places("a") is None
    assert not (tmp_path / "out" / "a.md").exists()


def test_processes_do_what_one_does(tmp_path: Path) -> None:
    planted(tmp_path / "in", {f"m{n}.py": f"x{n} = {n}\n" for n in range(work.MIN_FILES_TO_SHARE)})
    entries = walk(tmp_path / "in").entries
    tasks = [(entry, f"{number:04}") for number, entry in enumerate(entries)]
    here = setting(tmp_path)
    alone = list(work.Workers(here, 1).map(work.summarized, tasks))
    workers = work.Workers(here, 2)
    try:
        assert list(workers.map(work.summarized, tasks)) == alone
    finally:
        workers.close()
