"""Every message that the package has for a user, and the tests that quote it.

A message is the text of an exception or a warning, where it is made.  It is quoted if a few of its
words, in a row and in no other message, stand in one string of a test.  Only words are compared:
most of those strings are regular expressions, in which other characters are written in many ways.
"""

from __future__ import annotations

import ast
import builtins
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from adjoint.garbage import full_collections_wait

ROOT = Path(__file__).resolve().parent.parent

# How many words in a row quote a message, if it has as many between two values.
WORDS_QUOTED = 3

# Functions that issue a warning.
WARNINGS = {"warn", "warn_explicit", "warn_of_fallback"}

Words = tuple[str, ...]


@dataclass(frozen=True)
class Message:
    """The text of one exception or warning: the words between the values that it shows."""

    module: str
    line: int
    kind: str
    pieces: tuple[Words, ...]

    def __str__(self) -> str:
        text = " ... ".join(" ".join(piece) for piece in self.pieces)
        return f"{self.module}:{self.line} {self.kind}: {text}"


def words_of(text: str) -> Words:
    """The words of a message, or of a regular expression that matches it."""
    return tuple(re.findall(r"[a-z0-9_]+", re.sub(r"\\[a-zA-Z]", " ", text).lower()))


def runs(pieces: Sequence[Words]) -> Iterator[Words]:
    """What may be quoted of a message: runs of words between two values."""
    length = min(WORDS_QUOTED, max(len(piece) for piece in pieces))
    for piece in pieces:
        yield from (piece[at : at + length] for at in range(len(piece) - length + 1))


def trees(folder: str) -> dict[str, ast.Module]:
    """The modules below a folder, by path."""
    # Half of the time of parsing would be spent on looking for garbage in the trees.
    with full_collections_wait():
        return {
            path.relative_to(ROOT).as_posix(): ast.parse(path.read_text())
            for path in sorted((ROOT / folder).rglob("*.py"))
        }


def _name(expression: ast.expr | None) -> str:
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Constant(value=str(name)):
            return name
        case _:
            return ""


def exceptions(modules: Iterable[ast.Module]) -> set[str]:
    """The names of Python's exceptions and of those that these modules define."""
    found = {
        name
        for name, value in vars(builtins).items()
        if isinstance(value, type) and issubclass(value, BaseException)
    } | {"ArgumentTypeError"}
    bases = {
        node.name: {_name(base) for base in node.bases}
        for module in modules
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef)
    }
    while more := {name for name, of in bases.items() if of & found} - found:
        found |= more
    return found


def makers(modules: Iterable[ast.Module], errors: set[str]) -> dict[str, str]:
    """Functions that make or raise an exception from what they are given: its kind."""
    found = {}
    for module in modules:
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef):
                returned = _name(node.returns)
                if returned in errors or returned == "NoReturn":
                    found[node.name] = returned
    return found


def messages_of(module: str, tree: ast.Module, kinds: dict[str, str]) -> Iterator[Message]:
    """The messages in one module."""
    constants = {
        _name(target): node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
    }
    for scope in [tree, *(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))]:
        known = dict(constants) | _assigned(scope)
        for node in _directly_in(scope):
            if not (isinstance(node, ast.Call) and _name(node.func) in kinds):
                continue
            given = [*node.args, *(each.value for each in node.keywords)]
            pieces = dict.fromkeys(
                words for each in given for text in _texts(each, known) if (words := words_of(text))
            )
            if any(len(piece) > 1 for piece in pieces):
                yield Message(module, node.lineno, kinds[_name(node.func)], tuple(pieces))


def _directly_in(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, without those of functions inside it."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, ast.FunctionDef):
            yield child
            yield from _directly_in(child)


def _assigned(scope: ast.AST) -> dict[str, ast.expr]:
    """Values of local variables, where one is assigned once."""
    found: dict[str, ast.expr] = {}
    for node in _directly_in(scope):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            name = _name(node.targets[0])
            found[name] = ast.List([found[name], node.value]) if name in found else node.value
    return found


def _texts(expression: ast.expr, known: dict[str, ast.expr]) -> Iterator[str]:
    """The literal texts of an expression, and of the variables in it."""
    for node in ast.walk(expression):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Name) and node.id in known:
            value = known[node.id]
            inner = {name: of for name, of in known.items() if name != node.id}
            yield from _texts(value, inner)


def messages() -> list[Message]:
    """All messages of the package.

    An `AssertionError` says that the compiler contradicts itself, as `assert` does.  No program is
    known to provoke one, and users are told of it by `graph/boundary.py`.
    """
    modules = trees("adjoint")
    errors = exceptions(modules.values()) - {"AssertionError"}
    kinds = {name: name for name in errors | WARNINGS} | makers(modules.values(), errors)
    return [m for path, tree in modules.items() for m in messages_of(path, tree, kinds)]


def strings(tree: ast.Module) -> Iterator[str]:
    """The strings of a test module that are no docstrings."""
    remaining: list[ast.AST] = [tree]
    while remaining:
        node = remaining.pop()
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                yield node.value
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            remaining.extend(ast.iter_child_nodes(node))


@functools.cache
def quoted() -> frozenset[Words]:
    """All runs of words that stand in a string of a test."""
    found: set[Words] = set()
    for text in {text for tree in trees("tests").values() for text in strings(tree)}:
        words = words_of(text)
        for length in range(1, WORDS_QUOTED + 1):
            found.update(words[at : at + length] for at in range(len(words) - length + 1))
    return frozenset(found)


def unquoted(of: list[Message]) -> list[Message]:
    """The messages of which no test quotes words that stand in as few others as possible."""
    users: dict[Words, set[tuple[Words, ...]]] = {}
    for message in of:
        for run in runs(message.pieces):
            users.setdefault(run, set()).add(message.pieces)
    found = []
    for message in of:
        rarest = min(len(users[run]) for run in runs(message.pieces))
        telling = (run for run in runs(message.pieces) if len(users[run]) == rarest)
        if not any(run in quoted() for run in telling):
            found.append(message)
    return found
