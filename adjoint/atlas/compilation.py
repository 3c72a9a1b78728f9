"""The atlas of a compilation: pages of its graphs, kernels and saved values, and an index.

The index goes from the user's names to the nodes that compute them, and on to kernels, and back.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from adjoint.atlas import html
from adjoint.atlas.artefacts import Artefacts, GraphHistory, KernelRecord, Port, Value
from adjoint.atlas.document import (
    Anchor,
    Block,
    Bullets,
    Code,
    Heading,
    Inlines,
    Link,
    Listing,
    Page,
    Paragraph,
    Quoted,
    Table,
    name_anchor,
    section_anchor,
    sections,
)
from adjoint.atlas.linkcheck import dead, links_of, places_of
from adjoint.atlas.making import Made
from adjoint.atlas.subject import joined
from adjoint.atlas.tree_pages import script_of
from adjoint.atlas.work import Setting
from adjoint.errors import SourceLine
from adjoint.finding import called
from adjoint.quantities import counted
from adjoint.stages import observe


def make_of(
    function: str, expression: str | None, order: int, dynamic: bool, out: Path, format: str
) -> Made:
    """Compile, call and differentiate a function, and document what the compiler made."""
    artefacts = Artefacts()
    target, args, kwargs = called(function, expression)
    observe(artefacts, target, args, kwargs, order, dynamic)
    pages = pages_of(function, artefacts.graphs)
    setting = Setting(Path(os.getcwd()), out, format, function, frozenset())
    for page in pages:
        setting.write(page)
    if format == "html":
        names = [row for graph in artefacts.graphs for row in _searched(graph)]
        for name, text in (*html.assets(), (html.NAMES, script_of(names))):
            (out / name).write_text(text, encoding="utf-8", newline="\n")
    places = {page.path: places_of(page) for page in pages}
    links = {page.path: links_of(page) for page in pages}
    written = tuple(page.path for page in pages)
    return Made(len(artefacts.graphs), (), written, (), tuple(dead(places, links)), {})


def pages_of(function: str, graphs: list[GraphHistory]) -> list[Page]:
    """All pages of a compilation."""
    pages = [index_page(function, graphs), names_page(graphs)]
    for graph in graphs:
        pages.append(graph_page(graph))
        pages += [kernel_page(graph, kernel) for kernel in graph.kernels]
        pages += [saved_page(graph, place, graphs) for place in range(len(graph.saved))]
    return pages


def _graph(graph: GraphHistory) -> str:
    return f"graphs/{graph.number}-{graph.role}_docs"


def _kernel(kernel: KernelRecord) -> str:
    return f"kernels/{kernel.name}_docs"


def _saved(graph: GraphHistory, place: int) -> str:
    return f"saved/{graph.number}-{place}_docs"


def _graph_link(graph: GraphHistory) -> Link:
    return Link(graph.title, _graph(graph))


def _value_link(graph: GraphHistory, name: str) -> Link:
    return Link(name, _graph(graph), name_anchor(name), is_code=True)


def _kernel_link(kernel: KernelRecord) -> Link:
    return Link(kernel.name, _kernel(kernel), is_code=True)


def _line(line: SourceLine) -> Inlines:
    place = f"{os.path.basename(line.file)}:{line.line}"
    text = line.text.strip()
    return (Code(place), *((" ", Code(text)) if text else ()))


def index_page(function: str, graphs: list[GraphHistory]) -> Page:
    """What the compiler made."""
    blocks: list[Block] = [
        Heading(1, ("What the compiler makes of ", Code(function)), ""),
        Paragraph((Link("Names", "names"), ": from your names to nodes, kernels, and back.")),
        Heading(2, ("Graphs",), section_anchor("Graphs")),
        Table(
            ("Graph", "Inputs", "Values", "Outputs", "Passes", "Kernels", "Saved values"),
            tuple(
                (
                    (_graph_link(graph),),
                    (str(len(graph.last.inputs)),),
                    (str(len(graph.last.values)),),
                    (str(len(graph.last.outputs)),),
                    (str(len(graph.touches)),),
                    (str(len(graph.kernels)) if graph.is_lowered else "",),
                    (str(len(graph.saved)) if graph.saved else "",),
                )
                for graph in graphs
            ),
        ),
    ]
    kernels = [(graph, kernel) for graph in graphs for kernel in graph.kernels]
    if kernels:
        rows = tuple(
            ((_kernel_link(kernel),), (_graph_link(graph),), (kernel.read,), (kernel.written,))
            for graph, kernel in kernels
        )
        blocks.append(Heading(2, ("Kernels",), section_anchor("Kernels")))
        blocks.append(Table(("Kernel", "Graph", "Bytes read", "Bytes written"), rows))
    saved = [(graph, place) for graph in graphs for place in range(len(graph.saved))]
    if saved:
        items = tuple(
            (Link(g.saved[at], _saved(g, at)), " of the ", _graph_link(g)) for g, at in saved
        )
        blocks.append(Heading(2, ("Saved values",), section_anchor("Saved values")))
        blocks.append(Bullets(items))
    return Page("index", function, tuple(blocks))


def graph_page(graph: GraphHistory) -> Page:
    """One graph: inputs and outputs by descriptor, the passes that touched it, its values."""
    version = graph.first
    blocks: list[Block] = [
        Heading(1, (graph.title.capitalize(),), ""),
        Paragraph((Link("The compilation", "index"), " · ", Link("Names", "names"))),
    ]
    contents: dict[str, Iterable[Block]] = {
        "Inputs": _inputs(graph),
        "Outputs": _outputs(graph),
        "Passes that touched it": _touches(graph),
        "Values": _values(graph),
        "Kernels": _kernels(graph),
        "Saved values": _saved_values(graph),
        "Program": _program(graph),
        "As it was lowered": [Quoted(graph.last.text)] if graph.last.text != version.text else [],
    }
    blocks += sections(contents)
    return Page(_graph(graph), graph.title, tuple(blocks))


def _inputs(graph: GraphHistory) -> Iterator[Block]:
    rows = tuple(
        ((Anchor(name_anchor(port.name)), Code(port.name)), (Code(port.type),), (port.meaning,))
        for port in graph.first.inputs
    )
    if rows:
        yield Table(("Name", "Type", "Meaning"), rows)


def _outputs(graph: GraphHistory) -> Iterator[Block]:
    rows = tuple(
        ((_port_link(graph, port),), (Code(port.type),) if port.type else (), (port.meaning,))
        for port in graph.first.outputs
    )
    if rows:
        yield Table(("Value", "Type", "Meaning"), rows)


def _port_link(graph: GraphHistory, port: Port) -> Link | Code:
    """An output that is no constant is an input or a value of its graph."""
    return _value_link(graph, port.name) if port.name in _names(graph) else Code(port.name)


def _names(graph: GraphHistory) -> set[str]:
    """The names of the inputs and values of a graph."""
    return {port.name for port in graph.first.inputs} | {v.name for v in graph.first.values}


def _touches(graph: GraphHistory) -> Iterator[Block]:
    if graph.touches:
        yield Table(
            ("Pass", "Lines added", "Lines removed"),
            tuple(((Code(t.name),), (str(t.added),), (str(t.removed),)) for t in graph.touches),
        )


def _values(graph: GraphHistory) -> Iterator[Block]:
    computed = graph.computed_by()
    rows = tuple(
        (
            (Anchor(name_anchor(value.name)), Code(value.name)),
            (Code(value.operation),),
            (Code(value.type),) if value.type else (),
            _line(value.line) if value.line is not None else (),
            joined(_kernel_link(kernel) for kernel in computed[value.name]),
        )
        for value in graph.first.values
    )
    if rows:
        yield Table(("Name", "Operation", "Type", "Your line", "Kernels"), rows)


def _kernels(graph: GraphHistory) -> Iterator[Block]:
    items: list[Inlines] = [
        (_kernel_link(k), f": reads {k.read} bytes, writes {k.written}") for k in graph.kernels
    ]
    items += [("library call: ", Code(call)) for call in graph.calls]
    if items:
        yield Bullets(tuple(items))


def _saved_values(graph: GraphHistory) -> Iterator[Block]:
    if graph.saved:
        yield Bullets(
            tuple((Link(text, _saved(graph, at)),) for at, text in enumerate(graph.saved))
        )


def _program(graph: GraphHistory) -> Iterator[Block]:
    """The text of a graph, with links from its values to what is said of them."""
    names = _names(graph)
    lines: list[tuple[str | Link, ...]] = []
    for line in graph.first.text.split("\n"):
        code, mark, comment = line.partition("#")
        pieces: list[str | Link] = [
            Link(piece, _graph(graph), name_anchor(piece)) if piece in names else piece
            for piece in re.split(r"(\w+)", code)
        ]
        lines.append(tuple(piece for piece in (*pieces, mark + comment) if piece))
    yield Listing(tuple(lines))


def kernel_page(graph: GraphHistory, kernel: KernelRecord) -> Page:
    """One kernel: your lines, its loops, and its memory traffic."""
    computed = [value for value in graph.first.values if kernel in graph.computed_by()[value.name]]
    blocks: list[Block] = [
        Heading(1, ("Kernel ", Code(kernel.name)), ""),
        Paragraph((Link("The compilation", "index"), " · ", _graph_link(graph))),
        Heading(2, ("Traffic",), section_anchor("Traffic")),
        Paragraph((f"A launch reads {kernel.read} bytes and writes {kernel.written}.",)),
        Table(
            ("Buffer", "Type", "Of", "Bytes", ""),
            tuple(
                (
                    (Code(each.name),),
                    (each.dtype,),
                    (each.shape,),
                    (each.size,),
                    ("written" if each.written else "read",),
                )
                for each in kernel.operands
            ),
        ),
    ]
    if kernel.lines:
        blocks.append(Heading(2, ("Your lines",), section_anchor("Your lines")))
        blocks.append(Bullets(tuple(_line(line) for line in kernel.lines)))
    if computed:
        blocks.append(Heading(2, ("Values that it computes",), section_anchor("Values")))
        blocks.append(Bullets(tuple((_value_link(graph, value.name),) for value in computed)))
    if kernel.loops:
        blocks.append(Heading(2, ("Loops",), section_anchor("Loops")))
        blocks.append(Bullets(tuple((each,) for each in kernel.loops)))
    blocks += [Heading(2, ("Program",), section_anchor("Program")), _listing(kernel.text)]
    return Page(_kernel(kernel), f"Kernel {kernel.name}", tuple(blocks))


def _listing(text: str) -> Listing:
    return Listing(tuple((line,) if line else () for line in text.rstrip("\n").split("\n")))


def saved_page(graph: GraphHistory, place: int, graphs: list[GraphHistory]) -> Page:
    """One saved value: what it is, where it is computed, and which graphs read it."""
    meaning = graph.saved[place]
    rows: list[tuple[Inlines, ...]] = []
    ports = (*graph.first.inputs, *graph.first.outputs)
    saved = next((port for port in ports if port.meaning == meaning), None)
    if saved is not None:
        rows.append((("Saved by",), (_graph_link(graph), ", as ", _port_link(graph, saved))))
        rows.append((("Type",), (Code(saved.type),)))
        values = (value for value in graph.first.values if value.name == saved.name)
        for value in values:
            rows.append((("Computed by",), (Code(value.operation),)))
            if value.line is not None:
                rows.append((("Your line",), _line(value.line)))
    readers = (each for each in graphs if each.role == "backward" and each.order == graph.order + 1)
    rows += [
        (("Read by",), (_graph_link(reader), ", as ", _value_link(reader, port.name)))
        for reader in readers
        for port in reader.first.inputs
        if port.meaning == meaning
    ]
    blocks: tuple[Block, ...] = (
        Heading(1, (meaning.capitalize() if meaning.startswith("saved") else meaning,), ""),
        Paragraph((Link("The compilation", "index"), " · ", _graph_link(graph))),
        Table(("", ""), tuple(rows)),
    )
    return Page(_saved(graph, place), meaning, blocks)


def names_page(graphs: list[GraphHistory]) -> Page:
    """From the user's names to nodes to kernels, and from operators to the user's lines."""
    names: dict[tuple[str, str], list[tuple[GraphHistory, Value]]] = {}
    for graph in graphs:
        for value in graph.first.values:
            if value.line is not None:
                for name in names_in(value.line.text):
                    place = f"{os.path.basename(value.line.file)}:{value.line.line}"
                    names.setdefault((name, place), []).append((graph, value))
    computed = {graph.number: graph.computed_by() for graph in graphs}
    rows = tuple(
        (
            (Code(name),),
            (Code(place),),
            joined(_value_link(graph, value.name) for graph, value in found),
            joined(
                _kernel_link(kernel)
                for kernel in dict.fromkeys(
                    k for graph, value in found for k in computed[graph.number][value.name]
                )
            ),
        )
        for (name, place), found in sorted(names.items())
    )
    inputs = tuple(
        ((Code(port.meaning),), (_graph_link(graph),), (_value_link(graph, port.name),))
        for graph in graphs
        for port in graph.first.inputs
        if port.meaning
    )
    blocks: list[Block] = [
        Heading(1, ("Names",), ""),
        Paragraph((Link("The compilation", "index"), f". {counted(len(rows), 'name')} of yours.")),
    ]
    if rows:
        blocks.append(Heading(2, ("Your names",), section_anchor("Your names")))
        blocks.append(Table(("Name", "Line", "Nodes", "Kernels"), rows))
    if inputs:
        blocks.append(Heading(2, ("Inputs",), section_anchor("Inputs")))
        blocks.append(Table(("Meaning", "Graph", "Node"), inputs))
    return Page("names", "Names", tuple(blocks))


def names_in(line: str) -> list[str]:
    """The names that a line of the user's assigns; a line that returns has `return`."""
    try:
        statements = ast.parse(line.strip()).body
    except SyntaxError:
        return []
    found: list[str] = []
    for statement in statements:
        if isinstance(statement, ast.Return):
            found.append("return")
        nodes = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
        found += [node.id for node in nodes if isinstance(node.ctx, ast.Store)]
    return list(dict.fromkeys(found))


def _searched(graph: GraphHistory) -> Iterator[tuple[str, str, str, str, str]]:
    """What a search finds: name, kind, page, anchor and a word about it."""
    page = _graph(graph) + html.ENDING
    yield graph.title, "graph", page, "", ""
    for port in graph.first.inputs:
        yield port.name, "input", page, name_anchor(port.name), port.meaning
    for value in graph.first.values:
        about = value.line.text.strip() if value.line is not None else value.operation
        yield value.name, "value", page, name_anchor(value.name), about
    for kernel in graph.kernels:
        yield kernel.name, "kernel", _kernel(kernel) + html.ENDING, "", ""
    for place, meaning in enumerate(graph.saved):
        yield meaning, "saved value", _saved(graph, place) + html.ENDING, "", graph.title
