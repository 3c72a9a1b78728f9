from __future__ import annotations

import ast

import pytest

from adjoint.atlas.python_values import assigned_kind, dotted, message_of, option_names, written


def expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def test_chains_of_attributes() -> None:
    assert dotted(expression("a.b.c")) == "a.b.c"
    assert dotted(expression("a().b")) == ""


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("LIMIT = 1", "constant"),
        ("_ = 1", "variable"),
        ("x: Final[int] = 1", "constant"),
        ("X: TypeAlias = int", "type"),
        ("T = TypeVar('T')", "type"),
        ("x = 1", "variable"),
    ],
)
def test_kinds_of_assignments(text: str, kind: str) -> None:
    (node,) = ast.parse(text).body
    target = text.partition(" ")[0].rstrip(":")
    assert assigned_kind(target, node, in_class=False, in_enum=False) == kind


def test_names_in_classes() -> None:
    (node,) = ast.parse("x = 1").body
    assert assigned_kind("x", node, in_class=True, in_enum=False) == "field"
    assert assigned_kind("x", node, in_class=True, in_enum=True) == "constant"


def test_options_are_long_and_declared() -> None:
    call = expression("parser.add_argument('-o', '--out', help='--no')")
    assert isinstance(call, ast.Call)
    assert option_names(call) == ["--out"]
    call = expression("show('--out')")
    assert isinstance(call, ast.Call)
    assert option_names(call) == []


def test_messages_of_several_forms() -> None:
    texts = {
        "raise E('a' 'b')": "ab",
        "raise E(code, 'late')": "late",
        "raise E('a {}'.format(1))": "a {}",
        "raise E('a' + b)": "a",
        "raise E": "",
        "assert x": "",
    }
    for text, message in texts.items():
        (node,) = ast.parse(text).body
        assert isinstance(node, ast.Raise | ast.Assert)
        assert message_of(node) == message


def test_long_expressions_are_cut() -> None:
    assert written(expression("f(" + "1, " * 200 + "1)")).endswith("…")
