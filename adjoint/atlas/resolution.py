"""What the imports and names of each file mean, resolved again only where that may have changed.

Resolving all names of a tree takes longer than everything else that a small change asks for.  What
a name means depends on the files there are and on definitions and imports of the same name: when
files change, their old and new summaries say which words may mean something else, and only files
that use one of those words are resolved again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from adjoint.atlas.languages import C_FAMILY
from adjoint.atlas.modules import is_standard, package_of
from adjoint.atlas.names import Names
from adjoint.atlas.plain import digest_of
from adjoint.atlas.summaries import Summary
from adjoint.open_types import FromText

_JOINT = re.compile(r"\.|::|#")


class Request(NamedTuple):
    """One import or include, and what it means."""

    line: int
    module: str
    name: str
    files: list[str]
    """Of the tree; none if it means a package outside of it."""
    package: str
    is_standard: bool


class Resolved(NamedTuple):
    """What the imports and names of one file mean."""

    requests: list[Request]
    meanings: dict[str, tuple[str, str, int]]
    """For each name that is used: the file and name that it means, and how many of its parts."""
    digest: str
    """A hash of both."""


def from_json(row: list[FromText]) -> Resolved:
    """What was written to JSON."""
    requests, meanings, digest = row
    found = {name: (path, meant, parts) for name, (path, meant, parts) in meanings.items()}
    return Resolved([Request(*each) for each in requests], found, digest)


def resolve(
    names: Names, before: Mapping[str, Summary], kept: Mapping[str, Resolved]
) -> tuple[dict[str, Resolved], list[str]]:
    """What every file's names mean, and the files that were resolved anew.

    `before` and `kept` are the summaries and what they meant at the last run.
    """
    summaries = names.summaries
    anew = _to_resolve(summaries, before) if kept.keys() == summaries.keys() else summaries.keys()
    found = {path: _resolved(path, names) if path in anew else kept[path] for path in summaries}
    return found, sorted(anew)


def _resolved(path: str, names: Names) -> Resolved:
    requests: list[Request] = []
    for each, bound in names.bound_by(path):
        package = "" if bound.files else package_of(path, each.module)
        standard = bool(package) and is_standard(path, package)
        files = list(bound.files)
        requests.append(Request(each.line, each.module, each.name, files, package, standard))
    meanings: dict[str, tuple[str, str, int]] = {}
    for name in names.summaries[path].uses:
        meaning = names.meaning(path, name)
        if meaning is not None:
            meanings[name] = (meaning.path, meaning.name, meaning.parts)
    return Resolved(requests, meanings, digest_of(requests, meanings))


def _to_resolve(summaries: Mapping[str, Summary], before: Mapping[str, Summary]) -> Iterable[str]:
    """The files in which a name may mean something else than before."""
    changed = [path for path, each in summaries.items() if before[path].key != each.key]
    seen: set[tuple[str, ...]] = set()
    for path in changed:
        old, new = before[path], summaries[path]
        if _opens(old) != _opens(new) or old.language != new.language:
            return summaries.keys()
        seen |= _words(old) ^ _words(new)
    words = {part for name, *_ in seen for part in _JOINT.split(name)}
    _add_aliases(words, summaries.values())
    if not words:
        return frozenset(changed)
    word = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(words)))})(?!\w)")
    found = set(changed)
    for path, each in summaries.items():
        uses = "\n".join(each.uses)
        # Most files have none of the words in any form, which is seen faster without a pattern.
        if any(part in uses for part in words) and word.search(uses):
            found.add(path)
    return found


def _opens(summary: Summary) -> set[str]:
    """The modules whose names are all names of a file."""
    return {each.module for each in summary.imports if each.name == "*"}


def _words(summary: Summary) -> set[tuple[str, ...]]:
    """What other files can see of a file: its definitions, and the names that it imports."""
    found: set[tuple[str, ...]] = {
        (name, each.kind, *each.bases) for name, each in summary.definitions.items()
    }
    found |= {(each.bound, each.module, each.name) for each in summary.imports if each.bound}
    return found


def _add_aliases(words: set[str], summaries: Iterable[Summary]) -> None:
    """Add the names under which words are imported, and the classes that derive from them."""
    links: list[tuple[str, str]] = []
    for summary in summaries if words else ():
        links += [(i.name, i.bound) for i in summary.imports if i.bound and i.bound != i.name]
        if summary.language not in C_FAMILY:
            links += [
                (base.rpartition(".")[2], _JOINT.split(name)[-1])
                for name, each in summary.definitions.items()
                for base in each.bases
            ]
    size = -1
    while size != len(words):
        size = len(words)
        words.update(other for word, other in links if word in words)
