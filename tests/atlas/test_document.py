from __future__ import annotations

from adjoint.atlas.document import (
    Anchor,
    Bullets,
    Code,
    Heading,
    Link,
    Listing,
    Page,
    Paragraph,
    Table,
    folder_page,
    name_anchor,
    paragraphs,
    prose,
    section_anchor,
)

PAGE = Page(
    "a/b.py_docs",
    "b.py",
    (
        Heading(1, ("Title",), "top"),
        Paragraph(("see ", Link("x", "c_docs", "n-x"))),
        Bullets(((Link("y", "d_docs"),),)),
        Table(("Name",), (((Anchor("n-row"), Code("row")),),)),
        Listing((("a = ", Link("b", "e_docs")), ())),
    ),
)


def test_a_page_knows_its_anchors_and_links() -> None:
    assert PAGE.anchors() == {"top", "n-row", "line-1", "line-2"}
    assert [link.page for link in PAGE.links()] == ["c_docs", "d_docs", "e_docs"]


def test_anchors_are_distinct_and_can_be_part_of_an_address() -> None:
    assert name_anchor("A.b") == "n-A.b"
    assert name_anchor("a::operator<<") == "n-a::operator-3c--3c-"
    assert name_anchor("f#2") != name_anchor("f2")
    assert section_anchor("Related files") == "s-related-files"
    assert folder_page("") == "index"
    assert folder_page("a/b", "doc") == "a/b/doc"


def test_what_is_between_backticks_is_code() -> None:
    assert prose("a `b` and ``c``.") == ("a ", Code("b"), " and ", Code("c"), ".")
    assert list(paragraphs("a\nb\n\n\n`c`")) == [Paragraph(("a b",)), Paragraph((Code("c"),))]
