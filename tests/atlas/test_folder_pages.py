from __future__ import annotations

from adjoint.atlas.folder_pages import Folder, doc_page, index_page, purpose_of
from adjoint.atlas.markdown import rendered
from adjoint.atlas.roles import Statement
from tests.atlas_trees import PACKAGE, summaries_of


def folder() -> Folder:
    summaries = summaries_of(PACKAGE)
    files = tuple(each for path, each in summaries.items() if path.startswith("shop/"))
    return Folder(
        path="shop",
        name="tree",
        files=files,
        folders=(("shop/back", "Store.", 3),),
        sizes=(("Python", 3, 40),),
        unread=(("shop/bad.py", ("It is not text.",)),),
        statements=(Statement("README.md", 3, "`shop/`: sells"),),
        asks_for=(("", 1),),
        asked_by=(),
        most_used=(("shop/till.py", "Till", 2),),
        problems=(),
    )


def test_what_is_in_a_folder() -> None:
    text = rendered(index_page(folder()))
    assert "| [`back/`](back/index.md) | 3 | Store. |" in text
    assert (
        "| [`till.py`](till.py_docs.md) | [5](till.py_kw.md) | Python | 20 | Counts money. |"
        in text
    )
    assert "Problems" not in text


def test_what_a_folder_is_about() -> None:
    text = rendered(doc_page(folder(), summaries_of(PACKAGE)))
    assert "A shop." in text
    assert "`shop/`: sells ([README.md:3](../README.md_docs.md#line-3))" in text
    assert "| Python | 3 | 40 |" in text
    assert "[`shop/bad.py`](bad.py_docs.md): It is not text." in text
    assert "It is asked for by" not in text
    assert "[`Till`](till.py_docs.md#n-Till)" in text


def test_the_package_speaks_before_its_readme() -> None:
    assert purpose_of(folder().files) == "A shop."
    assert purpose_of(()) == ""
