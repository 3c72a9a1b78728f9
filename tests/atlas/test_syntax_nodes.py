from __future__ import annotations

from typing import Any

import pytest

from adjoint.atlas.syntax import installed
from adjoint.atlas.syntax_nodes import (
    bare_name,
    called_name,
    declared_names,
    first_string,
    is_in_class,
    is_local,
    signature_of,
    text_of,
)
from tests.atlas_trees import needs_parsers

pytestmark = needs_parsers


def parsed(text: str) -> Any:
    sitter = installed("tree_sitter")
    language = sitter.Language(installed("tree_sitter_cpp").language())
    return sitter.Parser(language).parse(text.encode()).root_node


def nodes(root: Any, kind: str) -> list[Any]:
    own = [root] if root.type == kind else []
    return own + [found for each in root.named_children for found in nodes(each, kind)]


SOURCE = """\
class Till {
  int total(int x) { int sum = count(x); return sum; }
};
int Till<int>::add() { throw Error("too  much"); }
"""


@pytest.fixture
def root() -> Any:
    return parsed(SOURCE)


def test_names_and_signatures(root: Any) -> None:
    total, add = nodes(root, "function_definition")
    assert signature_of(total) == "int total(int x)"
    (owned,) = nodes(add, "qualified_identifier")
    assert (text_of(owned), bare_name(owned)) == ("Till<int>::add", "Till::add")


def test_where_a_node_stands(root: Any) -> None:
    total, add = nodes(root, "function_definition")
    (declaration,) = nodes(root, "declaration")
    assert [is_in_class(each) for each in (total, add)] == [True, False]
    assert [is_local(each) for each in (total, declaration)] == [False, True]
    assert [*declared_names(declaration, "C++")] == ["sum"]


def test_what_is_called(root: Any) -> None:
    count, error = nodes(root, "call_expression")
    assert [called_name(count), called_name(error)] == ["count", "Error"]
    assert first_string(error) == "too much"
