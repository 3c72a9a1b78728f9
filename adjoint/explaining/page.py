"""An explanation or a report as one page: no network, no other file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path

from adjoint.atlas.html import ASSETS as ATLAS_ASSETS
from adjoint.errors import SourceLine
from adjoint.memory.picture import Span, svg
from adjoint.open_types import FromText

ASSETS = Path(__file__).parent / "assets"

# The most lines that the page shows of the difference between a graph before and after a pass.
MAX_CHANGES = 4000

_TABS = {
    "overview": "Overview",
    "links": "Source, graphs, kernels",
    "passes": "Passes",
    "memory": "Memory",
    "roofline": "Time",
    "compilations": "Compilations",
}

_TEMPLATE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<header>
<span class="tree">adjoint</span>
<nav class="tabs">{tabs}</nav>
<div class="search"><input id="search" type="search" placeholder="Search  ( / )" \
autocomplete="off" spellcheck="false" aria-label="Search"><ol id="found" hidden></ol></div>
<button id="theme" type="button" aria-label="Light or dark">◐</button>
</header>
<main>
{sections}
</main>
<div id="details"></div>
<script type="application/json" id="data">{data}</script>
<script>
{script}
</script>
</body>
</html>
"""


def page(data: Mapping[str, FromText]) -> str:
    """The page of what `Explanation.data` returns."""
    shown = {**data, "graphs": [_graph(each) for each in data["graphs"]]}
    memory = data["memory"]
    tabs = [name for name in _TABS if name != "memory" or memory is not None]
    parts = {"memory": "" if memory is None else _memory(memory, data["lines"])}
    return _TEMPLATE.format(
        title=escape(f"{data['function']} · adjoint"),
        style=_asset(ATLAS_ASSETS / "atlas.css") + _asset(ASSETS / "report.css"),
        tabs="".join(
            f'<button type="button" data-tab="{name}">{_TABS[name]}</button>' for name in tabs
        ),
        sections="\n".join(
            f'<section class="tab" id="{name}">{parts.get(name, "")}</section>' for name in tabs
        ),
        # A text must not end the element that it is in.
        data=json.dumps(shown, separators=(",", ":")).replace("</", "<\\/"),
        script=_asset(ASSETS / "report.js"),
    )


def _graph(graph: Mapping[str, FromText]) -> dict[str, object]:
    """A graph without its text: the page shows its values."""
    made = {name: each for name, each in graph.items() if name != "text"}
    made["passes"] = [
        {**each, "changes": each["changes"][:MAX_CHANGES]} for each in graph["passes"]
    ]
    return made


def _memory(memory: Mapping[str, FromText], lines: list[object]) -> str:
    spans = [
        Span(
            each["kind"],
            each["name"],
            None if each["line"] is None else SourceLine(**lines[each["line"]]),
            each["bytes"],
            each["first"],
            each["last"],
        )
        for each in memory["spans"]
    ]
    if not spans:
        return "<h1>Memory</h1><p>Not predicted: one of the programs runs op by op.</p>"
    return (
        "<h1>Memory over time</h1>"
        f'<div class="drawing">{svg(spans, memory["forward_steps"])}</div>'
        "<p>Saved values have a colour for each line; temporaries are grey, results blue, "
        "gradients green.</p>"
    )


def _asset(path: Path) -> str:
    return path.read_text(encoding="utf-8")
