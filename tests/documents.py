"""The code of documents: blocks of Python, which tests run in order, each document by itself."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent

# The first line of a block that is not run, with the reason.
_NOT_RUN = re.compile(r"# docs: not run, because (.+)")


@dataclass(frozen=True)
class Block:
    """A block of Python in a document."""

    line: int
    code: str
    not_run: str
    """Why it is not run; empty: it is."""


def documents() -> list[Path]:
    """README, and every page of the site."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str) -> list[Block]:
    """The blocks of a document that are Python."""
    found: list[Block] = []
    for match in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        reason = _NOT_RUN.match(match[1])
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block(line, match[1], reason[1] if reason else ""))
    return found


def run(path: Path) -> int:
    """Run the blocks of a document in one namespace; how many there were."""
    text = path.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "document"}
    count = 0
    for block in blocks(text):
        if not block.not_run:
            # Lines are those of the document, for tracebacks and for `inspect`.
            code = "\n" * (block.line - 1) + block.code
            exec(compile(code, str(path), "exec"), namespace)
            count += 1
    return count


def command_lines(text: str) -> list[list[str]]:
    """The arguments of each `adjoint` on a line of its own, without the comment after it."""
    found = re.findall(r"^(?: {4}|\$ )adjoint (.+)$", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in found]


def commands(text: str) -> set[str]:
    """What `adjoint` is told to do anywhere else: `explain` of "`adjoint explain`"."""
    return set(re.findall(r"`adjoint ([a-z-]+)", text))
