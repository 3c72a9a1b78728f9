"""`docs/reference.md`: every public name with its signature and docstring.

`python -m tests.apidoc` writes it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import adjoint

FILE = Path(__file__).parent.parent / "docs" / "reference.md"

_HEAD = """\
# Reference

Every public name. This page is written by `python -m tests.apidoc` from the docstrings, and tested
to be fresh.
"""


def written() -> str:
    """The page."""
    names = sorted(adjoint.__all__, key=str.lower)
    entries = ["\n".join(_entry(name, getattr(adjoint, name))) for name in names]
    return "\n".join([_HEAD, *entries])


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"## `adjoint.{name}`"
    yield ""
    if inspect.isclass(value):
        yield from _fenced(f"class {name}")
    else:
        yield from _fenced(f"adjoint.{name}{_signature(value)}")
    yield ""
    yield from _prose(inspect.getdoc(value) or "")
    if inspect.isclass(value) and not issubclass(value, Exception):
        yield from _members(value)


def _signature(value: Any) -> str:
    """The parameters with their defaults; types are for tools, and are in the source."""
    signature = inspect.signature(value)
    bare = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    return str(inspect.Signature(bare))


def _members(cls: type) -> Iterator[str]:
    if dataclasses.is_dataclass(cls):
        names = ", ".join(f"`{each.name}`" for each in dataclasses.fields(cls) if each.init)
        yield f"Fields: {names}."
        yield ""
    for name, member in vars(cls).items():
        if name.startswith("_"):
            continue
        function = getattr(member, "__func__", member)
        doc = inspect.getdoc(function.fget if isinstance(function, property) else function)
        if doc and (callable(function) or isinstance(function, property)):
            call = "" if isinstance(function, property) else "()"
            yield f"- `{name}{call}`: {' '.join(doc.split())}"
    yield ""


def _prose(doc: str) -> Iterator[str]:
    """A docstring: what is indented is code."""
    for paragraph in doc.split("\n\n"):
        lines = paragraph.splitlines()
        if lines and all(line.startswith(("    ", ">>>", "@")) or not line for line in lines):
            yield from _fenced(inspect.cleandoc(paragraph))
        else:
            yield paragraph
        yield ""


def _fenced(text: str) -> Iterator[str]:
    yield "```text"
    yield text
    yield "```"


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
