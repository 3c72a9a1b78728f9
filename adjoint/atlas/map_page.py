"""The map of a tree: its modules, in levels, and which of them import which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape

from adjoint.atlas.cycles import cycles_of
from adjoint.atlas.document import (
    Block,
    Bullets,
    Drawing,
    Heading,
    Link,
    Page,
    Paragraph,
    Table,
    docs_page,
    folder_page,
    prose,
)
from adjoint.atlas.markdown import address
from adjoint.atlas.subject import joined
from adjoint.atlas.summaries import Summary, first_sentence

MAX_MODULES = 36
"""How many boxes a reader can take in."""

MAX_IN_A_ROW = 9

_WIDTH, _HEIGHT, _GAP, _ROW = 132, 30, 14, 84


def map_page(
    summaries: Mapping[str, Summary],
    imported: Mapping[str, Iterable[str]],
    purposes: Mapping[str, str],
) -> Page:
    """The map; `imported` has the files that each file imports, `purposes` those of folders."""
    modules = _modules(list(summaries))
    home = {path: module for path in summaries for module in [_home(path, modules)]}
    edges: dict[str, set[str]] = {module: set() for module in modules}
    for path, files in imported.items():
        for file in files:
            if home[file] != home[path]:
                edges[home[path]].add(home[file])
    cycles = cycles_of({module: sorted(edges[module]) for module in modules})
    levels = _levels(edges, cycles)
    users: dict[str, set[str]] = {module: set() for module in modules}
    for module, found in edges.items():
        for each in found:
            users[each].add(module)
    order = sorted(modules, key=lambda each: (-levels[each], each))
    rows = tuple(
        (
            (_link(module),),
            prose(first_sentence(purposes.get(module) or _purpose(summaries, module))),
            joined(_link(each) for each in sorted(edges[module])),
            joined(_link(each) for each in sorted(users[module])),
        )
        for module in order
    )
    blocks: list[Block] = [
        Heading(1, ("Map of modules",), ""),
        Paragraph(("A module imports from those below it. ", Link("The tree", "index"), ".")),
        Paragraph(("The drawing leaves out imports that follow from others.",)),
        Drawing(_drawing(order, edges, levels, cycles)),
        Table(("Module", "Purpose", "Imports", "Imported by"), rows),
    ]
    circles = [each for module, each in sorted(cycles.items()) if each[0] == module and each[1:]]
    if circles:
        lists = tuple(joined(map(_link, each)) for each in circles)
        about = (
            "These modules import each other, directly or through others, and stand side by side:"
        )
        blocks[2:2] = [Paragraph((about,)), Bullets(lists)]
    return Page("map", "Map of modules", tuple(blocks))


def _modules(paths: list[str]) -> list[str]:
    """Folders (which end in a slash) and files: the largest folders are opened while they fit."""
    found = _inside("", paths)
    while True:
        folders = [each for each in found if each.endswith("/")]
        sizes = {each: sum(path.startswith(each) for path in paths) for each in folders}
        for largest in sorted(folders, key=lambda each: (-sizes[each], each)):
            inner = _inside(largest, paths)
            if len(found) - 1 + len(inner) <= MAX_MODULES:
                found = [each for each in found if each != largest] + inner
                break
        else:
            return sorted(found)


def _inside(folder: str, paths: list[str]) -> list[str]:
    children: dict[str, None] = {}
    for path in paths:
        if path.startswith(folder):
            name, slash, _ = path[len(folder) :].partition("/")
            children[folder + name + slash] = None
    return list(children)


def _home(path: str, modules: list[str]) -> str:
    return next(m for m in modules if path == m or (m.endswith("/") and path.startswith(m)))


def _purpose(summaries: Mapping[str, Summary], module: str) -> str:
    return summaries[module].purpose if module in summaries else ""


def _link(module: str) -> Link:
    if module.endswith("/"):
        return Link(module, folder_page(module.rstrip("/")), is_code=True)
    return Link(module, docs_page(module), is_code=True)


def _levels(edges: Mapping[str, set[str]], cycles: Mapping[str, list[str]]) -> dict[str, int]:
    """How far each module is above the lowest; modules that import each other are level."""
    levels: dict[str, int] = {}
    for module, cycle in cycles.items():  # What a module imports comes before it.
        if module not in levels:
            outside = {each for member in cycle for each in edges[member]} - set(cycle)
            level = max((levels[each] for each in outside), default=-1) + 1
            levels.update(dict.fromkeys(cycle, level))
    return levels


def _drawing(
    order: list[str],
    edges: Mapping[str, set[str]],
    levels: Mapping[str, int],
    cycles: Mapping[str, list[str]],
) -> str:
    connected = [each for each in order if edges[each] or any(each in e for e in edges.values())]
    if not connected:
        return ""
    by_level: dict[int, list[str]] = {}
    for module in connected:
        by_level.setdefault(levels[module], []).append(module)
    rows = [
        row[at : at + MAX_IN_A_ROW]
        for _, row in sorted(by_level.items(), reverse=True)
        for at in range(0, len(row), MAX_IN_A_ROW)
    ]
    widest = max(len(row) for row in rows)
    width = widest * (_WIDTH + _GAP) + _GAP
    places: dict[str, tuple[int, int]] = {}
    for number, row in enumerate(rows):
        start = (width - len(row) * (_WIDTH + _GAP) + _GAP) // 2
        for column, module in enumerate(row):
            places[module] = (start + column * (_WIDTH + _GAP), _GAP + number * _ROW)
    height = _GAP + len(rows) * _ROW - (_ROW - _HEIGHT) + _GAP
    parts = [f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img">']
    parts += [_arrow(places[a], places[b]) for a, b in _direct(connected, edges, cycles)]
    parts += [_box(module, *places[module]) for module in connected]
    return "".join([*parts, "</svg>"])


def _direct(
    modules: list[str], edges: Mapping[str, set[str]], cycles: Mapping[str, list[str]]
) -> Iterator[tuple[str, str]]:
    """The imports that do not follow from others, and are not within a cycle."""
    reached = {module: _reached(module, edges) for module in modules}
    for module in modules:
        outside = {each for m in cycles[module] for each in edges[m]} - set(cycles[module])
        for each in sorted(edges[module] & outside):
            others = outside - set(cycles[each])
            if not any(each in reached[other] for other in others):
                yield module, each


def _reached(module: str, edges: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    pending = [module]
    while pending:
        for each in edges[pending.pop()] - found:
            found.add(each)
            pending.append(each)
    return found


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1 = start[0] + _WIDTH // 2, start[1] + _HEIGHT
    x2, y2 = end[0] + _WIDTH // 2, end[1]
    middle = (y1 + y2) // 2
    return f'<path d="M{x1} {y1}C{x1} {middle} {x2} {middle} {x2} {y2}"/>'


def _box(module: str, x: int, y: int) -> str:
    link = _link(module)
    shown = module if len(module) <= 20 else "…" + module[-19:]
    href = escape(address("map", link.page, "", ".html"))
    return (
        f'<a href="{href}"><title>{escape(module)}</title>'
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="5"/>'
        f'<text x="{x + _WIDTH // 2}" y="{y + _HEIGHT // 2}">{escape(shown)}</text></a>'
    )
