"""The pages as HTML; `test_browser` opens them in one."""

from __future__ import annotations

from html.parser import HTMLParser

from adjoint.atlas.document import Code, Drawing, Page, Paragraph, Quoted
from adjoint.atlas.html import assets, rendered
from tests.atlas.test_document import PAGE

EMPTY = {"meta", "link", "input", "br"}


class Balanced(HTMLParser):
    """Checks that every element that is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_page_is_whole_and_needs_no_network() -> None:
    text = rendered(PAGE, "tree")
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert '<a href="../c_docs.html#n-x">x</a>' in text
    assert '<span id="line-1" data-n="1">a = <a href="../e_docs.html">b</a>' in text
    assert 'href="../atlas.css"' in text
    assert "://" not in text
    for _, content in assets():
        assert "://" not in content


def test_text_is_not_taken_for_markup() -> None:
    page = Page(
        "a", "<a>", (Paragraph(("<b>", Code("&"))), Quoted("</pre>"), Drawing("<svg></svg>"))
    )
    parser = Balanced()
    parser.feed(rendered(page, "<tree>"))
    assert parser.open == []
    assert {"<b>", "&", "</pre>"} <= set(parser.texts)


def test_the_design_has_light_and_dark() -> None:
    files = dict(assets())
    assert set(files) == {"atlas.css", "atlas.js"}
    assert "prefers-color-scheme: dark" in files["atlas.css"]
