"""The facts of a file that tree-sitter parses, by the query of its language (`grammars`)."""

from __future__ import annotations

import bisect
import functools
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from adjoint.atlas import declarators
from adjoint.atlas.comments import comment_before, leading_comment
from adjoint.atlas.facts import HEADINGS, Facts, Import, Message, Note, Symbol, Use, owner
from adjoint.atlas.grammars import CALLS, FAILING, FAMILY, GRAMMARS, NOTES, RESERVED
from adjoint.atlas.languages import C_FAMILY
from adjoint.atlas.macros import without_alternatives, without_conditions, without_macros
from adjoint.atlas.requests import imports_of, required
from adjoint.atlas.shortening import (
    shortened,
)
from adjoint.atlas.syntax_nodes import (
    CHAIN,
    bare_name,
    bound_kind,
    bound_names,
    call_length,
    called_name,
    declared_names,
    embedded_types,
    first_string,
    has_anonymous_fields,
    is_alternative,
    is_in_class,
    is_local,
    signature_of,
    text_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node, Parser, Query

_CONTAINERS = frozenset(
    {"class", "struct", "union", "namespace", "interface", "trait", "container"}
)
_SEVERAL_KINDS = frozenset({"declaration", "binding", "container", "parameter"})
_OWNED_MARKS = frozenset({"accessibility_modifier", "override_modifier", "readonly"})
_LOCAL_KINDS = frozenset({"declaration", "binding", "constant", "variable", "type"})
_NAME = re.compile(r"#?(?:[\w$]+::)*(?:~?[\w$]+|operator\b.+)")


class MissingParser(Exception):
    """The parser of a language is not installed."""


@functools.cache
def _parser(language: str) -> tuple[Parser, Query]:
    grammar = GRAMMARS[language]
    tree_sitter, package = installed("tree_sitter"), installed(grammar.package)
    made = tree_sitter.Language(getattr(package, grammar.language)())
    return tree_sitter.Parser(made), tree_sitter.Query(made, grammar.query)


def installed(module: str) -> ModuleType:
    """A parser, which the extra `adjoint[atlas]` installs."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise MissingParser(module) from None


def parse(text: str, facts: Facts) -> Facts:
    """`facts`, with what the syntax of `text` says; parts that cannot be parsed are named."""
    content = text.encode()
    language, root = _best(content, facts.language)
    problems = facts.problems
    line = _first_error(root)
    if line:
        problems += (f"The parser of {language} cannot parse a part of it, first in line {line}.",)
    walk = _Walk(content, root, language)
    return facts._replace(
        language=language,
        purpose=leading_comment(root) or facts.purpose,
        problems=problems,
        symbols=walk.symbols,
        imports=tuple(sorted(set(walk.imports()), key=lambda i: (i.line, i))),
        uses=tuple(walk.uses()),
        notes=tuple(sorted(set(walk.notes()), key=lambda n: (n.section, n.line, n.what))),
        messages=tuple(sorted(set(walk.messages()), key=lambda m: (m.line, m.text))),
    )


# What only C++ has, at the start of a line, and what only CUDA has.
_CPP_ONLY = re.compile(rb"^\s*(?:class|namespace|template|using|public:|private:)\b", re.MULTILINE)
_CUDA_ONLY = re.compile(rb"\b__(?:device|global|host|shared)__\b")


def _best(content: bytes, language: str) -> tuple[str, Node]:
    """The language and syntax tree with the fewest errors, of those that a file may be in.

    A header of C may be one of C++ or CUDA.  A macro may stand where no grammar has a word: that is
    an error, although a parser that takes it for a type does not say so.
    """
    if language not in C_FAMILY:
        return language, _parser(language)[0].parse(content).root_node
    if language == "C" and _CPP_ONLY.search(content):
        language = "C++"
    if language == "C++" and _CUDA_ONLY.search(content):
        language = "CUDA"
    plain = without_macros(content)
    strays = plain.count(b" ") - content.count(b" ")
    root = _parser(language)[0].parse(plain).root_node
    if not root.has_error:
        return language, root
    found = [(_error_bytes(root), language, root)]
    first = without_alternatives(plain)
    others = [
        (strays, language, content),
        (0, language, without_conditions(plain)),
        (first.count(b" ") - plain.count(b" "), language, first),
    ]
    others += [(0, "C++", plain)] if language == "C" else []
    for penalty, other, text in others:
        root = _parser(other)[0].parse(text).root_node
        found.append((penalty + _error_bytes(root), other, root))
    return min(found, key=lambda each: each[0])[1:]


MISSING_BYTES = 100
"""What a brace that is missing counts for: everything up to the next may be in the wrong place."""


def _error_bytes(node: Node) -> int:
    """How many bytes of a tree are in no node of the grammar."""
    if node.is_error:
        return max(node.end_byte - node.start_byte, 1)
    if node.is_missing:
        return MISSING_BYTES
    return sum(map(_error_bytes, node.children)) if node.has_error else 0


def _first_error(root: Node) -> int:
    """The first line that could not be parsed; 0 if there is none."""
    node = root
    while node.has_error and not (node.is_error or node.is_missing):
        node = next(
            (each for each in node.children if each.has_error or each.is_missing), node.children[0]
        )
    return node.start_point[0] + 1 if root.has_error else 0


@dataclass(frozen=True, eq=False)
class _Definition:
    """A node that defines a name."""

    kind: str
    node: Node
    name: Node
    bare: str


class _Walk:
    """The captures of one file, read as facts."""

    def __init__(self, content: bytes, root: Node, language: str) -> None:
        self.content = content
        self.language = language
        self.separator = GRAMMARS[language].separator
        self.reserved = RESERVED.get(language, frozenset())
        query_cursor = installed("tree_sitter").QueryCursor(_parser(language)[1])
        self.captures: dict[str, list[Node]] = query_cursor.captures(root)
        self.blocks = sorted(self._blocks())
        self.definitions = sorted(
            self._definitions(), key=lambda d: (d.node.start_byte, -d.node.end_byte)
        )
        self.named_at = {definition.name.start_byte for definition in self.definitions}
        self.symbols = self._symbols()

    def _nodes(self, capture: str) -> list[Node]:
        return self.captures.get(capture, [])

    # What is defined.

    def _definitions(self) -> Iterator[_Definition]:
        for capture, nodes in self.captures.items():
            if capture not in HEADINGS and capture not in _SEVERAL_KINDS:
                continue
            for node in nodes:
                if capture in _LOCAL_KINDS and is_local(node):
                    continue
                for kind, name in self._named(capture, node):
                    bare = bare_name(name)
                    if _NAME.fullmatch(bare) and bare not in self.reserved:
                        yield _Definition(kind, node, name, bare)

    def _named(self, capture: str, node: Node) -> Iterator[tuple[str, Node]]:
        """The kinds and names that a node defines; a declaration may have several."""
        match capture:
            case "declaration":
                in_class = node.type == "field_declaration" or is_in_class(node)
                for each in node.children_by_field_name("declarator"):
                    name = declarators.name_node(each)
                    if name is not None and name.type != "primitive_type":
                        yield self._declared(node, each, in_class), name
            case "binding":
                name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
                for each in bound_names(name):
                    yield bound_kind(node, value), each
            case "container":
                name = node.child_by_field_name("type")
                if name is not None:
                    yield capture, name
            case "type" if node.type == "type_definition":
                for each in node.children_by_field_name("declarator"):
                    name = declarators.name_node(each)
                    if name is not None:
                        yield "type", name
            case "type" if node.type == "type_spec":
                name, meaning = node.child_by_field_name("name"), node.child_by_field_name("type")
                kinds = {"struct_type": "struct", "interface_type": "interface"}
                if name is not None and meaning is not None:
                    yield kinds.get(meaning.type, "type"), name
            case "constant" | "variable" if node.type in {"const_spec", "var_spec"}:
                for each in node.children_by_field_name("name"):
                    if each.type == "identifier":
                        yield capture, each
            case "field" if self.language == "Go":
                names = node.children_by_field_name("name") or embedded_types(node)
                yield from ((capture, each) for each in names)
            case "parameter":
                name = node.child_by_field_name("pattern")
                if name is not None and any(c.type in _OWNED_MARKS for c in node.children):
                    yield "field", name
            case _:
                name = declarators.name_node(node)
                if name is not None:
                    yield capture, name

    def _declared(self, node: Node, declarator: Node, in_class: bool) -> str:
        if declarators.is_function(declarator):
            return "method" if in_class else "function"
        if in_class:
            return "field"
        qualifiers = {text_of(each) for each in node.children if each.type == "type_qualifier"}
        return "constant" if qualifiers & {"const", "constexpr"} else "variable"

    def _symbols(self) -> tuple[Symbol, ...]:
        """Each definition, qualified by the definitions around it; prototypes of none of them."""
        found: dict[tuple[str, int], Symbol] = {}
        bodies: set[str] = set()
        around: list[tuple[int, str]] = []
        for each in self.definitions:
            node = each.node
            while around and around[-1][0] <= node.start_byte:
                around.pop()
            owners = tuple(name for _, name in around)
            if each.kind in _CONTAINERS or self._is_scope(node):
                around.append((node.end_byte, each.bare))
            if each.kind == "container" or (
                each.kind == "function" and self._is_false(each, owners)
            ):
                continue
            symbol = self._symbol(each, owners)
            found.setdefault((symbol.name, symbol.line), symbol)
            if symbol.kind == "namespace":  # `namespace a::b` is two of them.
                for count in range(each.bare.count("::")):
                    outer = symbol.name.rsplit("::", count + 1)[0]
                    found.setdefault((outer, symbol.line), symbol._replace(name=outer))
            if self.language == "C" and node.child_by_field_name("body") is not None:
                bodies.add(symbol.name)  # In C++ a prototype may be of another overload.
        classes = {s.name for s in found.values() if HEADINGS[s.kind] == HEADINGS["class"]}
        kept = (
            s._replace(kind="method") if s.kind == "function" and owner(s.name) in classes else s
            for s in found.values()
            if s.name not in bodies or not s.signature.endswith(";")
        )
        return tuple(sorted(kept, key=lambda s: (s.line, -s.end, s.name)))

    def _is_scope(self, node: Node) -> bool:
        """Whether an enumeration, or a structure without a name, qualifies the names inside."""
        if node.type == "type_definition":
            return has_anonymous_fields(node)
        if node.type not in {"enum_specifier", "enum_declaration", "enum_item"}:
            return False
        return self.language not in C_FAMILY or text_of(node).startswith(
            ("enum class", "enum struct")
        )

    def _is_false(self, definition: _Definition, owners: tuple[str, ...]) -> bool:
        """Whether recovery from an error, or a macro, only looks like a function."""
        if self.language not in C_FAMILY or definition.node.type != "function_definition":
            return False
        return is_local(definition.node) or declarators.is_macro_call(
            definition.node, definition.bare, owners
        )

    def _symbol(self, definition: _Definition, owners: tuple[str, ...]) -> Symbol:
        node, kind = definition.node, definition.kind
        receiver = node.child_by_field_name("receiver") if kind == "method" else None
        if receiver is not None:
            owners = tuple(re.findall(r"(\w+)\W*$", re.sub(r"\[.*?\]", "", text_of(receiver)))[:1])
        if kind == "function" and owners and is_in_class(node):
            kind = "method"
        name = self.separator.join((*owners, definition.bare))
        line = definition.name.start_point[0] + 1
        end = max(node.end_point[0] + (node.end_point[1] > 0), line)
        depth = self._depth(node) if kind in {"function", "method"} else 0
        return Symbol(name, kind, line, end, signature_of(node), comment_before(node), depth)

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """The byte ranges of nested statements; `else if` is a branch of its `if`."""
        for node in self._nodes("block"):
            parent = node.parent
            if parent is None or not (parent.type == "else_clause" or is_alternative(node, parent)):
                yield node.start_byte, node.end_byte

    def _depth(self, node: Node) -> int:
        deepest = 0
        open_ends: list[int] = []
        first = bisect.bisect_left(self.blocks, (node.start_byte, 0))
        for start, end in self.blocks[first:]:
            if start >= node.end_byte:
                break
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            open_ends.append(end)
            deepest = max(deepest, len(open_ends))
        return deepest

    # What is used.

    def imports(self) -> Iterator[Import]:
        for node in self._nodes("import"):
            yield from imports_of(node, self.language)
        if self.language in {"JavaScript", "TypeScript", "TSX"}:
            for node in self._nodes("call"):
                yield from required(node)

    def uses(self) -> Iterator[Use]:
        """Names in the order of the file; the longest where one contains another."""
        calls = {each.start_byte: call_length(each) for each in self._nodes("call")}
        local = self._locals()
        end = 0
        lines = self.content.split(b"\n")
        for node in sorted(self._nodes("use"), key=lambda n: (n.start_byte, -n.end_byte)):
            name = text_of(node)
            if node.start_byte < end or not CHAIN.fullmatch(name):
                continue
            end = node.end_byte
            first = re.split(r"\.|::", name)[0]
            if node.start_byte in self.named_at or first in self._around(local, node):
                continue
            row, column = node.start_point
            column = len(lines[row][:column].decode(errors="replace"))
            yield Use(name, row + 1, column, len(name), calls.get(node.start_byte, 0))

    def _locals(self) -> list[tuple[int, int, frozenset[str]]]:
        """The byte range of each function, with the names that it declares for itself."""
        functions = [d.node for d in self.definitions if d.kind in {"function", "method"}]
        starts = [node.start_byte for node in functions]
        names: list[set[str]] = [set() for _ in functions]
        for node in self._nodes("local"):
            place = bisect.bisect_right(starts, node.start_byte) - 1
            if place >= 0 and node.end_byte <= functions[place].end_byte:
                names[place].update(declared_names(node, self.language))
        return [
            (n.start_byte, n.end_byte, frozenset(s)) for n, s in zip(functions, names, strict=True)
        ]

    def _around(self, local: list[tuple[int, int, frozenset[str]]], node: Node) -> frozenset[str]:
        place = bisect.bisect_right(local, node.start_byte, key=lambda each: each[0]) - 1
        if place < 0 or local[place][1] < node.end_byte:
            return frozenset()
        return local[place][2]

    # What is noted.

    def notes(self) -> Iterator[Note]:
        for capture, (section, what) in NOTES.items():
            for node in self._nodes(capture):
                text = shortened(text_of(node), 60)
                yield Note(section, what.format(text=text), node.start_point[0] + 1)
        table = CALLS[FAMILY.get(self.language, self.language)]
        for node in self._nodes("call") + self._nodes("construction"):
            name = called_name(node)
            if name in table:
                section, what = table[name]
                yield Note(section, what.format(name=name), node.start_point[0] + 1)

    def messages(self) -> Iterator[Message]:
        failing = [n for n in self._nodes("call") if called_name(n).rpartition("::")[2] in FAILING]
        for node in self._nodes("message") + failing:
            text = first_string(node)
            if text:
                yield Message(text, node.start_point[0] + 1)
