from __future__ import annotations

from pathlib import Path

from adjoint.atlas.modules import Modules
from adjoint.atlas.roles import Roles
from tests.atlas_trees import needs_parsers, planted, summaries_of

RULES = """
[tool.importlinter]
root_package = "shop"

[[tool.importlinter.contracts]]
name = "layers"
type = "layers"
containers = ["shop"]
layers = ["(door)", "till | (scale)", "tax"]
"""


def roles(root: Path, files: dict[str, str]) -> Roles:
    summaries = summaries_of(files)
    return Roles(root, summaries, Modules(root, summaries))


def test_layers_that_import_rules_declare(tmp_path: Path) -> None:
    planted(tmp_path, {"pyproject.toml": RULES})
    found = roles(tmp_path, {"shop/till.py": "", "shop/tax.py": "", "shop/other.py": ""})
    assert found.layer("shop/till.py") == "layer 2 of 3 from the top, beside `scale`"
    assert found.layer("shop/tax.py") == "layer 3 of 3 from the top"
    assert found.layer("shop/other.py") == ""


@needs_parsers
def test_guides_outside_of_the_tree_speak_of_it(tmp_path: Path) -> None:
    planted(
        tmp_path,
        {
            "pyproject.toml": RULES,
            "ARCHITECTURE.md": "| a | b |\n|---|---|\n| `till` | money |\n| `back/` | store |\n",
            "shop/till.py": "",
        },
    )
    found = roles(tmp_path / "shop", {"till.py": "", "back/room.py": "", "door.py": ""})
    assert [each.document for each in found.role("till.py")] == ["../ARCHITECTURE.md"]
    assert [each.sentence for each in found.role("back/room.py")] == ["`back/`: store"]
    assert found.role("door.py") == []


@needs_parsers
def test_a_name_that_two_files_define_is_nobodys(tmp_path: Path) -> None:
    files = {
        "README.md": "Use `f` and `g()`, `a.py`.\n",
        "a.py": "def f(): ...\ndef g(): ...\n",
        "b.py": "def f(): ...\n",
    }
    found = roles(tmp_path, files)
    assert set(found.of_name) == {("a.py", "g")}
    assert set(found.of_file) == {"a.py"}
