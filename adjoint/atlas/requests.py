"""What files of tree-sitter's languages import or include."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from adjoint.atlas.facts import Import
from adjoint.atlas.syntax_nodes import text_of

if TYPE_CHECKING:
    from tree_sitter import Node


def imports_of(node: Node, language: str) -> Iterator[Import]:
    """The imports that one statement of a language asks for."""
    line = node.start_point[0] + 1
    match language:
        case "C" | "C++" | "CUDA":
            path = node.child_by_field_name("path")
            if path is not None and path.type in {"string_literal", "system_lib_string"}:
                yield Import(text_of(path), "*", "", line)
        case "Rust":
            yield from _of_rust(node, line)
        case "Go":
            path = node.child_by_field_name("path")
            alias = node.child_by_field_name("name")
            if path is not None:
                module = _unquoted(path)
                bound = module.rpartition("/")[2] if alias is None else text_of(alias)
                yield Import(module, "", bound, line)
        case _:
            yield from _of_javascript(node, line)


def required(node: Node) -> Iterator[Import]:
    """What a call of `require` or `import` asks for."""
    called = node.child_by_field_name("function")
    arguments = node.child_by_field_name("arguments")
    if called is None or arguments is None or text_of(called) not in {"require", "import"}:
        return
    strings = [each for each in arguments.named_children if each.type == "string"]
    if len(strings) != 1:
        return
    module, line = _unquoted(strings[0]), node.start_point[0] + 1
    holder = node.parent
    target = holder.child_by_field_name("name") if holder is not None else None
    if target is None:
        yield Import(module, "", "", line)
    elif target.type == "identifier":
        yield Import(module, "", text_of(target), line)
    else:
        for each in target.named_children:
            if each.type == "shorthand_property_identifier_pattern":
                yield Import(module, text_of(each), text_of(each), line)


def _of_javascript(node: Node, line: int) -> Iterator[Import]:
    source = node.child_by_field_name("source")
    if source is None:
        return
    module = _unquoted(source)
    found = False
    for each in _descendants(node):
        match each.type:
            case "import_specifier" | "export_specifier":
                name = each.child_by_field_name("name")
                alias = each.child_by_field_name("alias") or name
                if name is not None and alias is not None:
                    found = True
                    yield Import(module, text_of(name), text_of(alias), line)
            case "namespace_import":
                found = True
                yield Import(module, "", text_of(each.named_children[0]), line)
            case "identifier" if each.parent is not None and each.parent.type == "import_clause":
                found = True
                yield Import(module, "default", text_of(each), line)
    if not found:
        everything = "*" if node.type == "export_statement" else ""
        yield Import(module, everything, "", line)


def _of_rust(node: Node, line: int) -> Iterator[Import]:
    argument = node.child_by_field_name("argument") or node.child_by_field_name("name")
    if argument is None:
        return
    for path, bound in _expanded(text_of(argument)):
        module, _, name = path.rpartition("::")
        if not module:
            yield Import(name, "", bound, line)
        elif name == "self":
            yield Import(module, "", bound or module.rpartition("::")[2], line)
        else:
            yield Import(module, name, "" if name == "*" else bound, line)


def _expanded(text: str, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every path of a `use` tree with the name it binds: `a::{b, c as d}` has two."""
    text = re.sub(r"\s+", " ", text).strip()
    head, brace, rest = text.partition("{")
    if brace:
        inner = rest.rpartition("}")[0]
        for part in _split(inner):
            yield from _expanded(part, prefix + head)
        return
    path, _, alias = text.partition(" as ")
    path = prefix + path.strip()
    last = path.rpartition("::")[2]
    yield path, alias.strip() or ("" if last == "self" else last)


def _split(text: str) -> Iterator[str]:
    """The parts between commas that are in no inner braces."""
    depth, start = 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    if text[start:].strip():
        yield text[start:]


def _descendants(node: Node) -> Iterator[Node]:
    for child in node.named_children:
        yield child
        yield from _descendants(child)


def _unquoted(node: Node) -> str:
    return text_of(node).strip("\"'`")
