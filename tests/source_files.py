"""The files that are written by hand: what rules about source text look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "adjoint"


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def written_here() -> list[Path]:
    return list(sources("adjoint", "tests", "demo"))
