"""Names in declarations of the C family, where they are wrapped in pointers, arrays and calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

_NAMES = frozenset(
    {
        "identifier",
        "type_identifier",
        "field_identifier",
        "namespace_identifier",
        "property_identifier",
        "private_property_identifier",
        "package_identifier",
        "metavariable",
        "qualified_identifier",
        "nested_namespace_specifier",
        "destructor_name",
        "operator_name",
        "operator_cast",
        "primitive_type",
    }
)
_FUNCTION = "function_declarator"


def name_node(node: Node) -> Node | None:
    """The node that names what `node` defines or declares."""
    inner: Node | None = node
    while inner is not None and inner.type not in _NAMES:
        inner = (
            inner.child_by_field_name("name")
            or inner.child_by_field_name("declarator")
            or next((each for each in inner.named_children if _declares(each)), None)
        )
    return inner


def _declares(node: Node) -> bool:
    return node.type in _NAMES or node.type.endswith("declarator")


def is_function(node: Node) -> bool:
    """Whether a declarator declares a function: what is applied to the name first decides."""
    first = ""
    inner: Node | None = node
    while inner is not None and inner.type.endswith("declarator"):
        first = first if inner.type == "parenthesized_declarator" else inner.type
        inner = inner.child_by_field_name("declarator") or next(
            (each for each in inner.named_children if _declares(each)), None
        )
    return first == _FUNCTION or (inner is not None and inner.type == "operator_cast")


def is_macro_call(node: Node, name: str, owners: tuple[str, ...]) -> bool:
    """Whether what looks like a function without a result is the call of a macro.

    Only constructors, destructors and conversions have no type of result.
    """
    if node.child_by_field_name("type") is not None:
        return False
    parts = name.split("::")
    bare = parts[-1]
    owner = parts[-2] if len(parts) > 1 else owners[-1] if owners else ""
    return not (bare == owner or bare.startswith(("~", "operator")))
