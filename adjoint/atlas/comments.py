"""Comments of languages that tree-sitter parses: what they say, without their marks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from adjoint.atlas.reading import is_licence
from adjoint.atlas.syntax_nodes import text_of

if TYPE_CHECKING:
    from tree_sitter import Node

_COMMENTS = frozenset({"comment", "line_comment", "block_comment"})
_WRAPPERS = frozenset(
    {"template_declaration", "export_statement", "lexical_declaration", "variable_declaration",
     "type_declaration", "const_declaration", "var_declaration", "linkage_specification"}
)  # fmt: skip
_NO_DEFINITIONS = frozenset(
    {"preproc_include", "preproc_ifdef", "package_clause", "import_statement", "use_declaration"}
)
_MARKS = re.compile(r"^\s*(?:///?!?|//!|/\*+!?|\*+/|\*(?!/)|#+)\s?|\s*\*+/\s*$")


def plain(text: str) -> str:
    """The text of a comment without its marks and rulers."""
    lines = [_MARKS.sub("", _MARKS.sub("", line)).rstrip() for line in text.split("\n")]
    return "\n".join(
        line for line in lines if not re.fullmatch(r"[\s=*/#_~-]*", line) or not line
    ).strip()


def comment_before(node: Node) -> str:
    """The comment that ends on the line above a definition."""
    while node.parent is not None and node.parent.type in _WRAPPERS:
        node = node.parent
    found: list[str] = []
    line = node.start_point[0]
    before = node.prev_named_sibling
    while before is not None and (before.type in _COMMENTS or _is_attribute(before)):
        if _end_line(before) < line - 1 or _shares_line(before):
            break
        if before.type in _COMMENTS:
            found.append(_text(before))
        line = before.start_point[0]
        before = before.prev_named_sibling
    return plain("\n".join(reversed(found)))


def leading_comment(root: Node) -> str:
    """What the first comment of a file says of it: not its licence, nor the first definition."""
    for comment in _leading(root):
        text = plain(comment)
        if text and not is_licence(text):
            return text
    return ""


def _leading(root: Node) -> Iterator[str]:
    """The comments at the top, those on adjacent lines as one."""
    group: list[Node] = []
    for node in root.children:
        if group and (node.type not in _COMMENTS or node.start_point[0] > _end_line(group[-1]) + 1):
            if _is_of_file(group, node):
                yield "\n".join(map(_text, group))
            group = []
        if node.type not in _COMMENTS:
            return
        group.append(node)
    if group:
        yield "\n".join(map(_text, group))


def _is_of_file(comment: list[Node], after: Node) -> bool:
    """Whether a comment is about the file, and not about what follows it at once."""
    is_apart = after.start_point[0] > _end_line(comment[-1]) + 1
    return is_apart or after.type in _NO_DEFINITIONS or _text(comment[0]).startswith(("//!", "/*!"))


def _is_attribute(node: Node) -> bool:
    return node.type in {"attribute_item", "decorator", "attribute_declaration"}


def _shares_line(comment: Node) -> bool:
    """Whether code stands before a comment on its line; the comment is then about that."""
    before = comment.prev_sibling
    return before is not None and _end_line(before) == comment.start_point[0]


def _end_line(node: Node) -> int:
    """The last line of a node; some comments include their line end."""
    line, column = node.end_point
    return line - 1 if column == 0 and line > node.start_point[0] else line


def _text(node: Node) -> str:
    """The text of a comment; some comments include their line end."""
    return text_of(node).rstrip("\n")
