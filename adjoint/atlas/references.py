"""How the files of a tree refer to each other: both ways, for each file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from adjoint.atlas.cycles import cycles_of
from adjoint.atlas.history import Change, History
from adjoint.atlas.languages import C_FAMILY, is_test
from adjoint.atlas.names import Names
from adjoint.atlas.resolution import Request, Resolved
from adjoint.atlas.roles import Roles, Statement
from adjoint.atlas.summaries import Definition, Summary

MAX_SITES = 5
MAX_TESTS = 8


class Site(NamedTuple):
    """A line of another file."""

    path: str
    line: int
    text: str = ""
    """The line, where it is shown."""


class Tested(NamedTuple):
    """A test that names something."""

    path: str
    line: int
    test: str
    """Empty outside of a function."""


class References(NamedTuple):
    """What one file's pages need to know of the rest of the tree."""

    requests: list[Request]
    importers: list[Site]
    cycle: list[str]
    """Files that import this one and are imported by it, at any depth."""
    meanings: dict[str, tuple[str, str, int]]
    """For each name that is used: the file and name that it means, and how many of its parts."""
    users: dict[str, list[tuple[str, list[int]]]]
    """For each name that is defined: the files that use it, and their lines."""
    sites: dict[str, list[Site]]
    """For each name: its shortest calls in other files."""
    test_files: list[str]
    tests: dict[str, list[Tested]]
    documented: dict[str, list[Statement]]
    """For each name, and for the file (an empty name): the sentences that speak of it."""
    elsewhere: dict[str, list[Site]]
    """For each name of the C family: its declarations and definitions in related files."""
    role: list[Statement]
    layer: str
    dependents: int
    """How many files import this one, at any depth."""
    together: list[tuple[str, int]]
    change: Change | None


def references(
    summaries: Mapping[str, Summary],
    resolved: Mapping[str, Resolved],
    names: Names,
    roles: Roles,
    history: History,
) -> dict[str, References]:
    """The references of every file."""
    requests = {path: each.requests for path, each in resolved.items()}
    meanings = {path: each.meanings for path, each in resolved.items()}
    imported = {
        path: sorted({file for each in found for file in each.files if file != path})
        for path, found in requests.items()
    }
    importers: dict[str, list[Site]] = {path: [] for path in summaries}
    for path, found in requests.items():
        first: dict[str, int] = {}
        for each in found:
            for file in each.files:
                first.setdefault(file, each.line)
        for file, line in first.items():
            if file != path:
                importers[file].append(Site(path, line))
    used = _Used(summaries, meanings)
    cycles = cycles_of(imported)
    reached_by = _dependents(importers, cycles)
    elsewhere = _elsewhere(summaries, names)
    found_references = {}
    for path in summaries:
        test_files = {site.path for site in importers[path] if is_test(site.path)}
        test_files |= {each.path for tests in used.tests.get(path, {}).values() for each in tests}
        found_references[path] = References(
            requests=requests[path],
            importers=sorted(importers[path]),
            cycle=[each for each in cycles[path] if each != path],
            meanings=meanings[path],
            users=used.users.get(path, {}),
            sites=used.sites(path),
            test_files=sorted(test_files - {path}),
            tests=used.tests.get(path, {}),
            documented=_documented(path, summaries[path], roles),
            elsewhere=elsewhere.get(path, {}),
            role=roles.role(path),
            layer=roles.layer(path),
            dependents=reached_by[path],
            together=[each for each in history.together.get(path, ()) if each[0] in summaries],
            change=history.last.get(path),
        )
    return found_references


class _Used:
    """The uses of every name, by the file that defines it."""

    def __init__(
        self,
        summaries: Mapping[str, Summary],
        meanings: Mapping[str, dict[str, tuple[str, str, int]]],
    ) -> None:
        self.users: dict[str, dict[str, list[tuple[str, list[int]]]]] = {}
        self.tests: dict[str, dict[str, list[Tested]]] = {}
        self._calls: dict[str, dict[str, list[tuple[int, str, int, str]]]] = {}
        for path, summary in summaries.items():
            enclosing = _Enclosing(summary.definitions) if is_test(path) else None
            gathered: dict[tuple[str, str], list[int]] = {}
            for name, (file, defined, _) in meanings[path].items():
                if file == path or not defined:
                    continue
                gathered.setdefault((file, defined), []).extend(summary.uses[name])
                for line, length, text in summary.calls.get(name, ()):
                    calls = self._calls.setdefault(file, {}).setdefault(defined, [])
                    calls.append((length, path, line, text))
            for (file, defined), lines in gathered.items():
                lines = sorted(set(lines))
                self.users.setdefault(file, {}).setdefault(defined, []).append((path, lines))
                if enclosing is not None:
                    self._test(file, defined, path, lines, enclosing)

    def _test(
        self, file: str, defined: str, path: str, lines: list[int], enclosing: _Enclosing
    ) -> None:
        tests = self.tests.setdefault(file, {}).setdefault(defined, [])
        seen: set[str] = set()
        for line in lines:
            test = enclosing.function(line)
            if len(tests) < MAX_TESTS and test and test not in seen:
                seen.add(test)
                tests.append(Tested(path, line, test))

    def sites(self, path: str) -> dict[str, list[Site]]:
        """The shortest calls of each name, those outside of tests first."""
        return {
            name: [
                Site(file, line, text)
                for _, file, line, text in sorted(
                    calls, key=lambda c: (is_test(c[1]), c[0], c[1], c[2])
                )[:MAX_SITES]
            ]
            for name, calls in self._calls.get(path, {}).items()
        }


class _Enclosing:
    """The functions of a file, by line."""

    def __init__(self, definitions: Mapping[str, Definition]) -> None:
        self.functions = sorted(
            (each.line, each.end, name)
            for name, each in definitions.items()
            if each.kind in {"function", "method"}
        )

    def function(self, line: int) -> str:
        """The innermost function around a line."""
        found = ""
        for start, end, name in self.functions:
            if start > line:
                break
            if line <= end:
                found = name
        return found


def _documented(path: str, summary: Summary, roles: Roles) -> dict[str, list[Statement]]:
    found = {"": roles.of_file.get(path, [])}
    for name in summary.definitions:
        found[name] = roles.of_name.get((path, name), [])
    return {name: statements for name, statements in found.items() if statements}


def _elsewhere(summaries: Mapping[str, Summary], names: Names) -> dict[str, dict[str, list[Site]]]:
    """Functions and types of the C family that related files declare or define as well."""
    places: dict[str, list[tuple[str, int]]] = {}
    for path, summary in summaries.items():
        if summary.language in C_FAMILY:
            for name, each in summary.definitions.items():
                if each.kind in {"function", "method", "struct", "class"}:
                    places.setdefault(name, []).append((path, each.line))
    found: dict[str, dict[str, list[Site]]] = {}
    for name, sites in places.items():
        for path, _ in sites if len(sites) > 1 else ():
            for other, line in sites:
                related = other in names.closure(path) or path in names.closure(other)
                if other != path and related:
                    found.setdefault(path, {}).setdefault(name, []).append(Site(other, line))
    return found


def _dependents(
    importers: Mapping[str, Iterable[Site]], cycles: Mapping[str, list[str]]
) -> dict[str, int]:
    """How many files import each file, at any depth.

    `cycles` has a file after those that it imports, so its reverse has importers first; sets of
    files are the bits of a number.
    """
    bit = {path: 1 << number for number, path in enumerate(cycles)}
    reached: dict[str, int] = {}
    for path in reversed(list(cycles)):
        component = cycles[path]
        if component[0] in reached:
            continue
        members = sum(bit[each] for each in component)
        outside = 0
        for each in component:
            for site in importers[each]:
                if not bit[site.path] & members:
                    outside |= bit[site.path] | reached[cycles[site.path][0]]
        reached[component[0]] = outside | members
    return {path: (reached[cycles[path][0]] & ~bit[path]).bit_count() for path in cycles}
