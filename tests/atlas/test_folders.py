from __future__ import annotations

from pathlib import Path

from adjoint.atlas.folders import folders_of
from adjoint.atlas.modules import Modules
from adjoint.atlas.roles import Roles
from tests.atlas_trees import PACKAGE, references_of, summaries_of


def test_a_folder_knows_its_files_and_its_dependencies(tmp_path: Path) -> None:
    summaries = summaries_of(PACKAGE)
    roles = Roles(tmp_path, summaries, Modules(tmp_path, summaries))
    found = folders_of("tree", summaries, references_of(tmp_path, PACKAGE), roles, ())
    by_path = {folder.path: folder for folder in found}
    assert list(by_path) == ["", "shop", "tests"]
    assert [file.path for file in by_path[""].files] == ["README.md"]
    assert [each[0] for each in by_path[""].folders] == ["shop", "tests"]
    assert [each[:2] for each in by_path[""].sizes] == [("Python", 4), ("Markdown", 1)]
    assert by_path[""].unread == ()
    assert by_path["shop"].asked_by == (("tests", 1),)
    assert by_path["tests"].asks_for == (("shop", 1),)
