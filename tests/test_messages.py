"""Every message of ours is quoted by a test, which provokes it."""

from __future__ import annotations

import ast

from tests.messages import messages, messages_of, trees, unquoted


def test_every_message_is_quoted_by_a_test() -> None:
    found = messages()
    assert len(found) > 400
    missing = [str(each) for each in unquoted(found)]
    assert not missing, "no test quotes:\n" + "\n".join(missing)


def test_a_message_is_what_stands_between_its_values() -> None:
    text = """
LIMIT = "at most 3 are legal"
def f(n):
    why = f"{n} is too many"
    raise ValueError(f"{why}; {LIMIT}", n)
"""
    (found,) = messages_of("f.py", ast.parse(text), {"ValueError": "ValueError"})
    assert set(map(" ".join, found.pieces)) == {"is too many", "at most 3 are legal"}
    assert found.line == 5


def test_a_message_that_no_test_quotes_is_found() -> None:
    words = " ".join(["nowhere", "in", "tests", "stands", "quite", "this"][::-1])
    tree = ast.parse(f"raise ValueError('{words}')")
    found = list(messages_of("f.py", tree, {"ValueError": "ValueError"}))
    assert unquoted(found) == found


def test_every_refusal_is_given_the_users_line() -> None:
    """A `CaptureError` and a `DifferentiationError` have a fourth argument: the line."""
    missing = [
        f"{path}:{node.lineno}"
        for path, tree in trees("adjoint").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("CaptureError", "DifferentiationError")
        and not any(isinstance(each, ast.Starred) for each in node.args)
        and len(node.args) + len(node.keywords) < 4
    ]
    assert not missing
