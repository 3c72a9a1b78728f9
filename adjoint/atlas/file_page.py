"""The page of a file: each section has facts with their lines, or is left out."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator

from adjoint.atlas.document import (
    Block,
    Bullets,
    Code,
    Heading,
    Inline,
    Inlines,
    Link,
    Page,
    Paragraph,
    Table,
    crumbs,
    docs_page,
    folder_page,
    keywords_page,
    paragraphs,
    sections,
)
from adjoint.atlas.facts import HEADINGS
from adjoint.atlas.listing import listing
from adjoint.atlas.resolution import Request
from adjoint.atlas.structure import structure
from adjoint.atlas.subject import Subject, grouped, joined
from adjoint.quantities import counted

MAX_RELATED = 6
MAX_USAGES = 40

_PLURALS = {
    "class": "classes",
    "namespace": "namespaces",
}


def file_page(subject: Subject) -> Page:
    """The page of one file."""
    path = subject.path
    blocks: list[Block] = [Heading(1, (Code(path),), "")]
    folder = posixpath.dirname(path)
    blocks.append(
        Paragraph(
            (
                Link("Names", keywords_page(path)),
                " · ",
                Link(f"{folder or '.'}/", folder_page(folder)),
            )
        )
    )
    blocks += sections({title: content(subject) for title, content in _SECTIONS.items()})
    return Page(docs_page(path), posixpath.basename(path), tuple(blocks), crumbs(folder))


def _metadata(subject: Subject) -> Iterator[Block]:
    facts, change = subject.facts, subject.references.change
    rows: list[tuple[Inlines, ...]] = [
        (("Path",), (Code(subject.path),)),
        (("Language",), (facts.language,)),
        (("Size",), (counted(facts.size, "byte"),)),
        (("Lines",), (f"{facts.lines:,}",)),
    ]
    if facts.licence:
        rows.append((("Licence",), (facts.licence,)))
    if change is not None:
        text = f"{change.date}, commit {change.commit}: {change.subject}"
        rows.append((("Last change",), (text,)))
    yield Table(("", ""), tuple(rows))


def _problems(subject: Subject) -> Iterator[Block]:
    if subject.facts.problems:
        yield Bullets(tuple(subject.prose(each) for each in subject.facts.problems))


def _purpose(subject: Subject) -> Iterator[Block]:
    purpose = subject.facts.purpose
    if not purpose:
        if not subject.facts.problems:
            yield Paragraph(("The file does not say what it is for.",))
        return
    for paragraph in paragraphs(purpose):
        yield Paragraph(subject.linked(paragraph.content))


def _overview(subject: Subject) -> Iterator[Block]:
    kinds = Counter(symbol.kind for _, symbol in subject.symbols)
    counts = [
        counted(kinds[kind], kind, _PLURALS.get(kind, "")) for kind in HEADINGS if kinds[kind]
    ]
    if counts:
        yield Paragraph((f"It defines {_listed(counts)}.",))
    functions = [(n, s) for n, s in subject.symbols if s.kind in {"function", "method"}]
    if len(functions) > 1:
        name, longest = max(functions, key=lambda each: (each[1].length, -each[1].line))
        text = f" has {counted(longest.length, 'line')} and nests {longest.nesting} deep."
        yield Paragraph(("The longest function, ", subject.name(subject.path, name), ",", text))
    if subject.facts.is_script:
        yield Paragraph(("It runs as a program.",))
    headings = subject.facts.headings
    if headings:
        yield Bullets(
            tuple(
                ("· " * (each.level - 1), subject.line(each.line, each.text)) for each in headings
            )
        )


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _role(subject: Subject) -> Iterator[Block]:
    references = subject.references
    items: list[Inlines] = []
    for each in references.role:
        source = subject.line(each.line, f"{each.document}:{each.line}", each.document)
        items.append((*subject.prose(each.sentence), " (", source, ")"))
    if references.layer:
        items.append(("Import rules: ", *subject.prose(references.layer), "."))
    if references.dependents:
        direct = len(references.importers)
        verb = "depends" if references.dependents == 1 else "depend"
        total = counted(references.dependents, "file")
        items.append((f"{total} {verb} on it, {direct} directly.",))
    if items:
        yield Bullets(tuple(items))


def _dependencies(subject: Subject) -> Iterator[Block]:
    references = subject.references
    if references.requests:
        by_module: dict[tuple[str, tuple[str, ...]], list[Request]] = {}
        for each in references.requests:
            by_module.setdefault((each.module, tuple(each.files)), []).append(each)
        rows = [
            (
                subject.lines(dict.fromkeys(each.line for each in asked)),
                (Code(module),),
                joined(Code(each.name) for each in asked if each.name not in {"", "*"}),
                _meaning(subject, asked[0]),
            )
            for (module, _), asked in by_module.items()
        ]
        yield Paragraph(("It asks for:",))
        yield Table(("Line", "Module", "Names", "Which is"), tuple(rows))
    if references.importers:
        yield Paragraph((f"{counted(len(references.importers), 'file')} ask for it:",))
        yield Bullets(
            tuple(
                (subject.file(site.path), ", line ", subject.line(site.line, path=site.path))
                for site in references.importers
            )
        )
    if references.cycle:
        yield Paragraph(("It is in a cycle of imports with:",))
        yield Bullets(tuple((subject.file(path),) for path in references.cycle))


def _meaning(subject: Subject, request: Request) -> Inlines:
    if request.files:
        return joined(map(subject.file, request.files))
    if request.is_standard:
        return ("standard library",)
    return ("package ", Code(request.package))


def _noted(section: str, subject: Subject) -> Iterator[Block]:
    notes = grouped((n.what, n.line) for n in subject.facts.notes if n.section == section)
    if notes:
        items = (
            (*subject.prose(what), ": line ", *subject.lines(lines))
            for what, lines in notes.items()
        )
        yield Bullets(tuple(items))


def _patterns(subject: Subject) -> Iterator[Block]:
    return _noted("patterns", subject)


def _performance(subject: Subject) -> Iterator[Block]:
    return _noted("performance", subject)


def _safety(subject: Subject) -> Iterator[Block]:
    return _noted("safety", subject)


def _tests(subject: Subject) -> Iterator[Block]:
    references = subject.references
    if references.test_files:
        yield Bullets(tuple((subject.file(path),) for path in references.test_files))
    rows = [
        (
            (subject.name(subject.path, name),),
            joined(subject.line(t.line, t.test, t.path) for t in references.tests[name]),
        )
        for name, _ in subject.symbols
        if references.tests.get(name)
    ]
    if rows:
        yield Table(("Name", "Tests that name it"), tuple(rows))


def _usage(subject: Subject) -> Iterator[Block]:
    items: list[Inlines] = []
    for name, _ in subject.symbols:
        for site in subject.references.sites.get(name, ()):
            place = subject.line(site.line, f"{site.path}:{site.line}", site.path)
            items.append((Code(site.text), " ", place))
    shown = list(dict.fromkeys(items))
    shown.sort(key=lambda item: len(item[0].text) if isinstance(item[0], Code) else 0)
    if shown:
        yield Bullets(tuple(shown[:MAX_USAGES]))


def _related(subject: Subject) -> Iterator[Block]:
    """Files that share the most names with this one, and files that change with it."""
    shared: Counter[str] = Counter()
    for path, name, _ in set(subject.references.meanings.values()):
        if name and path != subject.path:
            shared[path] += 1
    for users in subject.references.users.values():
        shared.update(path for path, _ in users)
    nearest = sorted(shared.items(), key=lambda each: (-each[1], each[0]))[:MAX_RELATED]
    items: list[Inlines] = [
        (subject.file(path), f": {counted(count, 'name')} in common") for path, count in nearest
    ]
    items += [
        (subject.file(path), f": changed with it in {counted(count, 'commit')}")
        for path, count in subject.references.together
    ]
    if items:
        yield Bullets(tuple(items))


def _cross_references(subject: Subject) -> Iterator[Block]:
    references = subject.references
    items: list[Inlines] = []
    for name, statements in references.documented.items():
        about: Inline = subject.name(subject.path, name) if name else "the file"
        places = joined(
            subject.line(s.line, f"{s.document}:{s.line}", s.document)
            for s in dict.fromkeys(statements)
        )
        items.append((about, " in ", *places))
    for name, sites in references.elsewhere.items():
        places = joined(subject.line(s.line, f"{s.path}:{s.line}", s.path) for s in sites)
        items.append((subject.name(subject.path, name), ": also in ", *places))
    if items:
        yield Bullets(tuple(items))


def _source(subject: Subject) -> Iterator[Block]:
    if subject.has_source:
        yield listing(subject)


_SECTIONS = {
    "Metadata": _metadata,
    "Problems": _problems,
    "Purpose": _purpose,
    "Overview": _overview,
    "Role": _role,
    "Structure": structure,
    "Dependencies": _dependencies,
    "Patterns": _patterns,
    "Performance notes": _performance,
    "Safety notes": _safety,
    "Tests": _tests,
    "Usage": _usage,
    "Related files": _related,
    "Cross-references": _cross_references,
    "Source": _source,
}
