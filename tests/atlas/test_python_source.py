from __future__ import annotations

import ast
import inspect
import textwrap

from adjoint.atlas import python_source
from tests.atlas_trees import facts, kinds

SOURCE = '''"""What it is for."""

import os.path
from typing import Final, NewType, TypeAlias
from . import near as close

LIMIT = 3
# How it is written.
pace: Final = 2
Key: TypeAlias = "tuple[int, str]"
Id = NewType("Id", int)
table, (first, *rest) = {}, (1, 2)


class Shape(Base, metaclass=Meta):
    """A shape."""

    sides: int
    """How many."""

    def area(self, scale: float = 1.0) -> float:
        """Its area."""
        self.seen = True
        if scale:
            for _ in ():
                pass
        elif scale > 1:
            pass
        return close.measure(self, LIMIT)

    @staticmethod
    def unit():
        def inner():
            return Shape.area
        return inner()


async def later(*names, **rest):
    value = 3
    return value
'''


def test_every_definition_has_its_kind_and_line() -> None:
    assert kinds(SOURCE) == {
        "LIMIT": ("constant", 7),
        "pace": ("constant", 9),
        "Key": ("type", 10),
        "Id": ("type", 11),
        "table": ("variable", 12),
        "first": ("variable", 12),
        "rest": ("variable", 12),
        "Shape": ("class", 15),
        "Shape.sides": ("field", 18),
        "Shape.area": ("method", 21),
        "Shape.seen": ("field", 23),
        "Shape.unit": ("method", 32),
        "Shape.unit.inner": ("function", 33),
        "later": ("function", 38),
    }


def test_signatures_docstrings_and_nesting() -> None:
    found = {symbol.name: symbol for symbol in facts(SOURCE).symbols}
    assert found["Shape"].signature == "class Shape(Base, metaclass=Meta)"
    assert found["Shape.area"].signature == "def area(self, scale: float=1.0) -> float"
    assert found["later"].signature == "async def later(*names, **rest)"
    assert found["Shape.area"].doc == "Its area."
    assert found["Shape.sides"].doc == "How many."
    assert found["pace"].doc == "How it is written."
    # `elif` is a branch, and no block inside the `if`.
    assert found["Shape.area"].nesting == 2
    assert found["Shape.area"].length == 9


def test_imports_say_what_they_bind() -> None:
    found = [tuple(each) for each in facts(SOURCE).imports]
    assert ("os.path", "", "os.path", 3) in found
    assert (".", "near", "close", 5) in found


def test_uses_are_of_what_the_file_knows_and_not_of_local_variables() -> None:
    uses = {(use.name, use.line) for use in facts(SOURCE).uses}
    assert ("close.measure", 29) in uses
    assert ("LIMIT", 29) in uses
    assert ("Shape.seen", 23) in uses
    assert ("Shape.unit.inner", 35) in uses
    assert not {use for use in uses if use[0] in {"value", "scale", "self", "later.value"}}


def test_columns_are_characters() -> None:
    (use,) = facts("import a\nx = 'éé' + a.b(1)\n").uses
    assert (use.column, use.length, use.call) == (11, 3, 6)


def test_a_name_of_an_enclosing_function_hides_an_import() -> None:
    source = "import a\n\n\ndef f(a):\n    return [a for _ in ()], lambda a: a.b\n"
    assert facts(source).uses == ()


def test_options_and_messages() -> None:
    source = textwrap.dedent("""
        import os
        parser.add_argument("-v", "--verbose")
        os.environ["HOME"], os.getenv("SHELL")
        raise ValueError(f"{n} is {'odd'}")
        assert x, "no %s" % x
    """)
    assert kinds(source) == {
        "--verbose": ("option", 3),
        "HOME": ("option", 4),
        "SHELL": ("option", 4),
    }
    assert [(m.text, m.line) for m in facts(source).messages] == [
        ("{n} is {'odd'}", 5),
        ("no %s", 6),
    ]


def test_what_cannot_be_parsed_says_where() -> None:
    found = facts("x = 1\ndef f(:\n")
    assert found.symbols == ()
    assert "line 2" in found.problems[0]
    deep = facts("x = " + "-" * 100_000 + "1")
    assert deep.problems


def test_no_expression_is_too_deep() -> None:
    source = "import a\nx = " + " + ".join(["a.b"] * 900) + "\n"
    found = facts(source)
    assert found.problems == ()
    assert found.uses


def test_it_finds_every_class_and_function_of_a_large_module() -> None:
    text = inspect.getsource(ast)
    expected = {
        (node.name, node.lineno)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }
    found = facts(text).symbols
    assert python_source.parse(text, facts("")).symbols == found
    kinds_found = {"class", "function", "method"}
    assert {(s.name.rpartition(".")[2], s.line) for s in found if s.kind in kinds_found} == expected
