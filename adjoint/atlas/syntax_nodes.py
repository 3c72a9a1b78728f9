"""What one node of a syntax tree says: its text and name, where it stands, what it calls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from adjoint.atlas import declarators
from adjoint.atlas.languages import C_FAMILY
from adjoint.atlas.shortening import (
    LONG_CALL_CHARACTERS,
    MAX_MESSAGE_CHARACTERS,
    MAX_SIGNATURE_CHARACTERS,
    shortened,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_BODIES = frozenset({"compound_statement", "statement_block", "block", "function_body"})
CHAIN = re.compile(r"[\w$]+(?:(?:\.|::)[\w$~]+)*")
_STRINGS = frozenset(
    {
        "string_literal",
        "string",
        "interpreted_string_literal",
        "raw_string_literal",
        "template_string",
    }
)


def text_of(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")


def bare_name(name: Node) -> str:
    """The name that a node spells, without arguments of templates."""
    if name.type == "operator_cast":
        kind = name.child_by_field_name("type")
        return f"operator {text_of(kind)}" if kind is not None else ""
    owners, operator, sign = re.split(r"(\boperator\b|$)", text_of(name), maxsplit=1)
    while (shorter := re.sub(r"<[^<>]*>", "", owners)) != owners:
        owners = shorter
    text = " ".join(f"{owners}{operator}{sign}".split())
    return re.sub(r"\s*(::)\s*|(?<=operator) (?=\W)", r"\1", text)


def is_local(node: Node) -> bool:
    """Whether a definition is inside the body of a function."""
    around = node.parent
    while around is not None:
        if around.type in _BODIES:
            return True
        if around.type in {"field_declaration_list", "class_body"}:
            return False
        around = around.parent
    return False


def is_in_class(node: Node) -> bool:
    """Whether a definition stands directly in a class, interface or implementation."""
    around = node.parent
    while around is not None and (
        around.type.startswith("preproc") or around.type == "template_declaration"
    ):
        around = around.parent
    if around is None:
        return False
    if (
        around.type == "declaration_list"
    ):  # Rust's implementations and traits, and C++'s namespaces.
        holder = around.parent
        return holder is not None and holder.type in {"impl_item", "trait_item"}
    return around.type in {"field_declaration_list", "class_body", "interface_body"}


def bound_names(pattern: Node | None) -> Iterator[Node]:
    """The names that `name`, `{name, key: name}` or `[name]` of JavaScript binds."""
    if pattern is None:
        return
    match pattern.type:
        case "identifier" | "shorthand_property_identifier_pattern":
            yield pattern
        case "pair_pattern":
            yield from bound_names(pattern.child_by_field_name("value"))
        case "assignment_pattern" | "object_assignment_pattern":
            yield from bound_names(pattern.child_by_field_name("left"))
        case "object_pattern" | "array_pattern" | "rest_pattern":
            for each in pattern.named_children:
                yield from bound_names(each)
        case _:
            return


def bound_kind(node: Node, value: Node | None) -> str:
    """What `const name = value` of JavaScript defines."""
    if value is not None and value.type in {"arrow_function", "function_expression"}:
        return "function"
    declaration = node.parent
    is_constant = declaration is not None and text_of(declaration).startswith("const")
    return "constant" if is_constant else "variable"


def embedded_types(node: Node) -> list[Node]:
    """The last name of the type of a field of Go that has no other name."""
    meaning = node.child_by_field_name("type")
    while meaning is not None and meaning.type in {"generic_type", "qualified_type"}:
        field = "type" if meaning.type == "generic_type" else "name"
        meaning = meaning.child_by_field_name(field)
    return [] if meaning is None else [meaning]


def has_anonymous_fields(node: Node) -> bool:
    """Whether `typedef struct { ... } name` names the fields inside."""
    meaning = node.child_by_field_name("type") if node.type == "type_definition" else None
    return meaning is not None and meaning.child_by_field_name("name") is None


def is_alternative(node: Node, parent: Node) -> bool:
    """Whether a node is the `else` of its parent."""
    alternative = parent.child_by_field_name("alternative")
    return alternative is not None and alternative.id == node.id


def signature_of(node: Node) -> str:
    """The text of a definition up to its body, on one line."""
    body = node.child_by_field_name("body")
    text = node.text or b""
    if body is not None:
        text = text[: body.start_byte - node.start_byte]
    elif node.type in {"preproc_def", "preproc_function_def"}:
        text = text.split(b"\n")[0]
    return shortened(text.decode(errors="replace"), MAX_SIGNATURE_CHARACTERS)


def declared_names(node: Node, language: str) -> Iterator[str]:
    """The names that a declaration gives to variables."""
    if language in C_FAMILY:
        name = declarators.name_node(node)
        if name is not None:
            yield text_of(name)
        return
    pending = [node]
    while pending:
        each = pending.pop()
        if each.type in {"identifier", "shorthand_property_identifier_pattern"}:
            yield text_of(each)
        pending.extend(each.named_children)


def called_name(node: Node) -> str:
    """The name that a call calls; empty if it calls what another expression computes."""
    function = next(
        (
            found
            for field in ("function", "macro", "constructor")
            if (found := node.child_by_field_name(field)) is not None
        ),
        None,
    )
    if function is None:
        return ""
    if function.type == "template_function":
        function = function.child_by_field_name("name") or function
    name = text_of(function)
    return name if CHAIN.fullmatch(name) else ""


def call_length(node: Node) -> int:
    """The characters of a call; one over several lines counts as long."""
    over = node.end_point[0] - node.start_point[0]
    return LONG_CALL_CHARACTERS * (over + 1) if over else node.end_byte - node.start_byte


def first_string(node: Node) -> str:
    """The first text that a node holds."""
    if node.type == "preproc_call":
        return shortened(text_of(node).partition("error")[2], MAX_MESSAGE_CHARACTERS)
    pending = [node]
    while pending:
        each = pending.pop()
        if each.type in _STRINGS:
            return shortened(text_of(each).strip("\"'`"), MAX_MESSAGE_CHARACTERS)
        pending.extend(reversed(each.named_children))
    return ""
