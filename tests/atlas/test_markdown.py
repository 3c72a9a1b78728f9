from __future__ import annotations

from adjoint.atlas.document import Code, Drawing, Link, Page, Paragraph, Quoted, Table
from adjoint.atlas.markdown import address, rendered
from adjoint.atlas.tree import GENERATED
from tests.atlas.test_document import PAGE


def test_a_page() -> None:
    assert (
        rendered(PAGE)
        == f"""\
<!-- {GENERATED} -->

# <a id="top"></a>Title

see [x](../c_docs.md#n-x)

- [y](../d_docs.md)

| Name |
|---|
| <a id="n-row"></a>`row` |

<pre>
<a id="line-1"></a>1  a = <a href="../e_docs.md">b</a>
<a id="line-2"></a>2
</pre>
"""
    )


def body(*blocks: Paragraph | Table | Quoted | Drawing) -> str:
    return rendered(Page("a", "a", blocks)).partition("\n\n")[2].removesuffix("\n")


def test_text_is_not_taken_for_markup() -> None:
    assert body(Paragraph(("# a *b* <c> [d] 1. e",))) == r"\# a \*b\* \<c\> \[d\] 1. e"
    assert body(Paragraph((Code("`a`"),))) == "`` `a` ``"
    assert body(Table(("a",), (((Code("b|c"), "d|e"),),))).endswith(r"| `b\|c`d\|e |")
    assert body(Quoted("```\nx")) == "````text\n```\nx\n````"
    assert body(Drawing("<svg/>")) == ""


def test_addresses_are_relative() -> None:
    assert address("a/b/c", "a/d", "", ".md") == "../d.md"
    assert address("a/b/c", "a/b/c", "x", ".md") == "#x"
    assert address("names/k", "names", "", ".md") == "../names.md"
    assert address("x", "a b/é#", "", ".md") == "a%20b/%C3%A9%23.md"
    assert Link("a", "b").anchor == ""
