"""The facts of data and documents: YAML, TOML, Markdown, and the headings of other text."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from adjoint.atlas.facts import Facts, Heading, Mention, Symbol
from adjoint.atlas.shortening import MAX_LINE_CHARACTERS, shortened
from adjoint.atlas.syntax import installed
from adjoint.atlas.syntax_nodes import text_of

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_LANGUAGES = {
    "YAML": ("tree_sitter_yaml", "language"),
    "TOML": ("tree_sitter_toml", "language"),
    "Markdown": ("tree_sitter_markdown", "language"),
    "Markdown inline": ("tree_sitter_markdown", "inline_language"),
}
MAX_SENTENCE_CHARACTERS = 400


@functools.cache
def _parser(language: str) -> Parser:
    package, function = _LANGUAGES[language]
    tree_sitter = installed("tree_sitter")
    made = tree_sitter.Language(getattr(installed(package), function)())
    parser: Parser = tree_sitter.Parser(made)
    return parser


def parse_data(text: str, facts: Facts) -> Facts:
    """The keys of YAML or TOML, which are options; keys inside of sequences are data."""
    root = _parser(facts.language).parse(text.encode()).root_node
    found = _yaml_keys(root) if facts.language == "YAML" else _toml_keys(root)
    symbols: dict[str, Symbol] = {}
    for name, node in found:
        line, end = node.start_point[0] + 1, node.end_point[0] + (node.end_point[1] > 0)
        first = shortened(text_of(node).partition("\n")[0], MAX_LINE_CHARACTERS)
        symbol = Symbol(name, "option", line, max(end, line), first, "", 0)
        symbols.setdefault(name, symbol)
    problems = facts.problems
    if root.has_error:
        problems += (f"The parser of {facts.language} cannot parse a part of it.",)
    comment = _hash_comment(text)
    return facts._replace(
        symbols=tuple(symbols.values()), problems=problems, purpose=facts.purpose or comment
    )


def _yaml_keys(node: Node, prefix: str = "") -> Iterator[tuple[str, Node]]:
    for child in node.named_children:
        if child.type in {"block_mapping_pair", "flow_pair"}:
            key, value = child.child_by_field_name("key"), child.child_by_field_name("value")
            if key is None:
                continue
            name = prefix + text_of(key).strip("\"'")
            yield name, child
            if value is not None:
                yield from _yaml_keys(value, f"{name}.")
        elif child.type not in {"block_sequence", "flow_sequence"}:
            yield from _yaml_keys(child, prefix)


def _toml_keys(root: Node) -> Iterator[tuple[str, Node]]:
    for child in root.named_children:
        if child.type == "table":
            key = child.named_children[0]
            prefix = _toml_name(key)
            yield prefix, child
            for pair in child.named_children[1:]:
                if pair.type == "pair":
                    yield f"{prefix}.{_toml_name(pair.named_children[0])}", pair
        elif child.type == "pair":
            yield _toml_name(child.named_children[0]), child


def _toml_name(key: Node) -> str:
    return re.sub(r"\s+", "", text_of(key)).replace('"', "").replace("'", "")


def _hash_comment(text: str) -> str:
    """The comment at the top of a file whose comments start with #."""
    lines: list[str] = []
    for line in text.split("\n"):
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("#! "))
    return "\n".join(lines).strip()


def parse_markdown(text: str, facts: Facts) -> Facts:
    """The headings of a document, its first paragraph, and what it marks as code."""
    content = text.encode()
    root = _parser("Markdown").parse(content).root_node
    headings: list[Heading] = []
    purpose = ""
    inlines: list[Node] = []
    pending = [root]
    while pending:
        node = pending.pop()
        if node.type in {"atx_heading", "setext_heading"}:
            headings.append(_heading(node))
        elif node.type == "paragraph" and not purpose:
            purpose = text_of(node).strip()
        if node.type in {"inline", "pipe_table_row", "pipe_table_header"}:
            inlines.append(node)
        if node.type != "fenced_code_block":
            pending.extend(reversed(node.children))
    mentions = [each for node in inlines for each in _mentions(node)]
    return facts._replace(
        purpose=facts.purpose or purpose, headings=tuple(headings), mentions=tuple(mentions)
    )


def _heading(node: Node) -> Heading:
    mark = node.children[0].type if node.type == "atx_heading" else node.children[-1].type
    digits = re.findall(r"\d", mark)
    level = int(digits[0]) if digits else 1
    inner = next((each for each in node.children if each.type in {"inline", "paragraph"}), None)
    text = text_of(inner).strip() if inner is not None else ""
    return Heading(text, level, node.start_point[0] + 1)


def _mentions(node: Node) -> Iterator[Mention]:
    """The code spans of a paragraph, or of a row, which is one sentence."""
    text = text_of(node)
    is_row = node.type != "inline"
    first_cell_end = text.find("|", text.find("|") + 1) if is_row else -1
    for span in _code_spans(text):
        start, end = span
        name = text[start:end].strip("`").strip()
        line = node.start_point[0] + 1 + text.count("\n", 0, start)
        around = _row_sentence(text) if is_row else _sentence(text, start, end)
        yield Mention(
            name, shortened(around, MAX_SENTENCE_CHARACTERS), line, is_row and end <= first_cell_end
        )


def _row_sentence(text: str) -> str:
    """A row of a table as a sentence: its first cell is what the others speak of."""
    first, *others = (cell.strip() for cell in text.strip().strip("|").split("|"))
    return f"{first}: {'; '.join(cell for cell in others if cell)}"


def _code_spans(text: str) -> Iterator[tuple[int, int]]:
    if "`" not in text:
        return
    content = text.encode()
    pending = [_parser("Markdown inline").parse(content).root_node]
    while pending:
        node = pending.pop()
        if node.type == "code_span":
            start = len(content[: node.start_byte].decode())
            yield start, start + len(text_of(node))
        pending.extend(reversed(node.children))


def _sentence(text: str, start: int, end: int) -> str:
    """The sentence around a part of a text."""
    ends = (match.end() for match in re.finditer(r"[.!?:]\s+(?=[A-Z`*])", text))
    before = [each for each in ends if each <= start]
    after = re.search(r"[.!?](?=\s+[A-Z`*]|\s*$)", text[end:])
    return text[before[-1] if before else 0 : end + after.end() if after else len(text)]


def parse_text(text: str, facts: Facts) -> Facts:
    """The headings of other text: lines underlined as reStructuredText underlines them."""
    lines = text.split("\n")
    headings: list[Heading] = []
    marks: list[str] = []
    for number, (line, under) in enumerate(itertools.pairwise(lines), 1):
        is_ruler = re.fullmatch(r"([=\-~^\"'*+#])\1{2,}", under.rstrip())
        if is_ruler and line.strip() and len(under.rstrip()) >= len(line.rstrip()):
            mark = under[0]
            if mark not in marks:
                marks.append(mark)
            headings.append(Heading(line.strip(), marks.index(mark) + 1, number))
    return facts._replace(headings=tuple(headings), purpose=facts.purpose or _hash_comment(text))
