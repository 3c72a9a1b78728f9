"""From the bytes of a file to its facts."""

from __future__ import annotations

import hashlib
from pathlib import Path

from adjoint.atlas import markup, python_source, syntax
from adjoint.atlas.facts import Facts
from adjoint.atlas.grammars import GRAMMARS
from adjoint.atlas.languages import language_of
from adjoint.atlas.reading import Text, licence_of, read
from adjoint.atlas.tree import Entry

VERSION = 3
"""Grows with every change to what facts say, so that stored facts are made anew."""


def extract(root: Path, entry: Entry) -> tuple[Facts, str]:
    """The facts of one file, and its text.  What cannot be read or parsed is among the facts."""
    language = language_of(entry.path)
    if entry.link is not None:
        problem = f"It is a symbolic link to {entry.link}, which is not followed."
        return Facts("symbolic link", 0, 0, "", "", (problem,)), ""
    if entry.problem:
        return Facts(language, 0, 0, "", "", (entry.problem,)), ""
    content, text = read(root / entry.path, language)
    return facts_of(content, text, language), text.text


def facts_of(content: bytes, text: Text, language: str) -> Facts:
    """The facts of a file that has been read."""
    lines = content.count(b"\n") + (not content.endswith(b"\n") and bool(content))
    facts = Facts(language, len(content), lines, licence_of(text.text), "", text.problems)
    if not text.is_text:
        return facts
    try:
        return _parsed(text.text, facts)
    except syntax.MissingParser as missing:
        problem = (
            f"It is not parsed, because {missing} is not installed; `pip install adjoint[atlas]` "
            "installs it."
        )
    except RecursionError:
        problem = "It nests too deeply to be parsed."
    return facts._replace(problems=(*facts.problems, problem))


def _parsed(text: str, facts: Facts) -> Facts:
    language = facts.language
    if language == "Python":
        return python_source.parse(text, facts)
    if language in GRAMMARS:
        return syntax.parse(text, facts)
    if language in {"YAML", "TOML"}:
        return markup.parse_data(text, facts)
    if language == "Markdown":
        return markup.parse_markdown(text, facts)
    return markup.parse_text(text, facts)


def content_key(root: Path, entry: Entry) -> str:
    """What the facts of a file depend on: its bytes, its language, and how facts are made."""
    digest = hashlib.sha256(f"{VERSION} {language_of(entry.path)} ".encode())
    if entry.link is not None or entry.problem:
        digest.update(f"{entry.link} {entry.problem}".encode())
    else:
        try:
            with open(f"{root}/{entry.path}", "rb") as file:
                while part := file.read(1 << 20):
                    digest.update(part)
        except OSError as error:
            digest.update(str(error.strerror).encode())
    return digest.hexdigest()[:32]
