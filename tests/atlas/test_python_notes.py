from __future__ import annotations

import textwrap

import pytest

from tests.atlas_trees import facts


def notes(text: str) -> list[tuple[str, str, int]]:
    found = facts(textwrap.dedent(text).lstrip("\n")).notes
    return [(note.section, note.what, note.line) for note in found]


@pytest.mark.parametrize(
    ("text", "section", "what", "line"),
    [
        ("import pickle as p\np.loads(b)", "safety", "pickle: `p.loads`", 2),
        ("eval(x)", "safety", "evaluates text as code: `eval`", 1),
        ("from typing import cast\ncast(int, x)", "safety", "unchecked cast: `cast`", 2),
        (
            "import subprocess\nsubprocess.run(c, shell=True)",
            "safety",
            "starts a process: `subprocess.run(shell=True)`",
            2,
        ),
        ("try:\n    f()\nexcept Exception:\n    pass", "safety", "drops every exception", 3),
        (
            "import functools\n@functools.cache\ndef f(): ...",
            "performance",
            "cache without a bound: `f`",
            3,
        ),
        ("import threading\nl = threading.Lock()", "performance", "lock: `threading.Lock`", 2),
        (
            "for i in range(x.shape[0]):\n    pass",
            "performance",
            "Python loop over an axis of a tensor: `range(x.shape[0])`",
            1,
        ),
        (
            "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass A: ...",
            "patterns",
            "dataclass `A`",
            3,
        ),
        ("@rules.vjp(op)\ndef f(): ...", "patterns", "decorated by `rules.vjp`", 2),
        ("import enum\nclass A(enum.Enum): ...", "patterns", "enumeration `A`", 2),
        (
            "class A:\n    def __enter__(self): ...\n    def __exit__(self): ...",
            "patterns",
            "context manager `A`",
            2,
        ),
        (
            "class V:\n    def visit_a(self): ...\n    def visit_b(self): ...",
            "patterns",
            "visitor `V`: 2 methods `visit_…`",
            2,
        ),
        (
            "T = {}\ndef rule(op):\n def add(f):\n  T[op] = f\n  return f\n return add",
            "patterns",
            "registry `T`, filled by `rule`",
            4,
        ),
        (
            "match x:\n    case A(): ...\n    case B(): ...\n    case C() | D(): ...",
            "patterns",
            "case distinction by class: `match x`, 3 cases",
            1,
        ),
    ],
)
def test_a_note_has_the_line_that_shows_it(text: str, section: str, what: str, line: int) -> None:
    assert (section, what, line) in notes(text)


@pytest.mark.parametrize(
    "text",
    [
        "model.eval()",
        "class A:\n    @property\n    def x(self): ...\n    @x.setter\n    def x(self, v): ...",
        "def eval(x): ...\neval(1)",
        "pickle = 3\npickle.loads(x)",
        "for i in range(3):\n    pass",
        "try:\n    f()\nexcept ValueError:\n    pass",
        "T = {}\ndef put(k, v):\n    T[k] = v",
        "class A:\n    def visit_a(self): ...",
    ],
)
def test_what_is_not_there_is_not_noted(text: str) -> None:
    assert notes(text) == []
