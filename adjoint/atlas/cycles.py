"""Files that import each other, directly or through others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def cycles_of(imported: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """For each file, the files that import it and that it imports, itself among them.

    These are the strongly connected components (Tarjan's algorithm, without recursion); a file
    comes after those that it imports.
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    open_files: list[str] = []
    is_open: set[str] = set()
    found: dict[str, list[str]] = {}
    for root in imported:
        if root in index:
            continue
        work = [(root, iter(imported[root]))]
        index[root] = low[root] = len(index)
        open_files.append(root)
        is_open.add(root)
        while work:
            path, rest = work[-1]
            following = next((each for each in rest if each not in index or each in is_open), None)
            if following is None:
                work.pop()
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[path])
                if low[path] == index[path]:
                    _close(path, open_files, is_open, found)
            elif following in index:
                low[path] = min(low[path], index[following])
            else:
                index[following] = low[following] = len(index)
                open_files.append(following)
                is_open.add(following)
                work.append((following, iter(imported[following])))
    return found


def _close(
    path: str, open_files: list[str], is_open: set[str], found: dict[str, list[str]]
) -> None:
    place = open_files.index(path)
    component = sorted(open_files[place:])
    del open_files[place:]
    is_open.difference_update(component)
    for each in component:
        found[each] = component
