from __future__ import annotations

import itertools
from pathlib import Path

from adjoint.atlas.document import Heading
from adjoint.atlas.file_page import file_page
from adjoint.atlas.markdown import rendered
from tests.atlas.test_subject import subject_of
from tests.atlas_trees import needs_parsers


def sections(root: Path, path: str) -> dict[str, str]:
    """The text of each section."""
    text = rendered(file_page(subject_of(root, path)))
    parts = text.split("\n## ")[1:]
    return {
        part.partition("</a>")[2].partition("\n")[0]: part.partition("\n\n")[2].strip()
        for part in parts
    }


@needs_parsers
def test_every_section_has_facts_with_their_lines(tmp_path: Path) -> None:
    found = sections(tmp_path, "shop/till.py")
    assert list(found) == [
        "Metadata",
        "Purpose",
        "Overview",
        "Role",
        "Structure",
        "Dependencies",
        "Tests",
        "Usage",
        "Related files",
        "Cross-references",
        "Source",
    ]
    assert "| Lines | 20 |" in found["Metadata"]
    assert found["Purpose"] == "Counts money."
    assert "It defines 1 class, 2 methods, 1 constant and 1 field." in found["Overview"]
    assert "counts money. ([README.md:3](../README.md_docs.md#line-3))" in found["Role"]
    assert "2 files depend on it, 1 directly." in found["Role"]
    assert (
        "| [3](#line-3) | `shop` | `tax` | [`shop/tax.py`](tax.py_docs.md) |"
        in found["Dependencies"]
    )
    assert "[test_add](../tests/test_till.py_docs.md#line-5)" in found["Tests"].replace("\\", "")
    assert found["Usage"].startswith("- `assert Till().add(5) == 1`")
    assert "[README.md:5]" in found["Cross-references"]


def test_a_section_with_nothing_to_say_is_left_out(tmp_path: Path) -> None:
    found = sections(tmp_path, "shop/tax.py")
    assert found["Purpose"] == "The file does not say what it is for."
    assert not {"Problems", "Patterns", "Performance notes", "Safety notes", "Tests"} & found.keys()
    subject = subject_of(tmp_path, "shop/tax.py")
    blocks = file_page(subject).blocks
    levels = [block.level if isinstance(block, Heading) else 0 for block in blocks]
    assert (2, 2) not in itertools.pairwise(levels)
