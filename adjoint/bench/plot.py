"""The results as a picture: bars of step time relative to eager, and of cold compile, in SVG."""

from __future__ import annotations

import html
import math
from pathlib import Path

from adjoint.bench.results import Row, Table

_NAME, _PANEL, _GAP, _BAR, _HEAD = 170, 260, 90, 20, 64
_COLOURS = {
    "eager": "#9aa0a6",
    "inductor": "#e8a33d",
    "func_inductor": "#c77d1a",
    "jax": "#6aa67a",
    "adjoint": "#3b6fd4",
    "func_adjoint": "#23479a",
}


def write(table: Table, file: Path) -> None:
    """Write the picture; a `.html` file is a page that holds it."""
    picture = svg(table)
    if file.suffix == ".html":
        title = "<title>adjoint bench</title>"
        picture = f"<!doctype html><meta charset=utf-8>{title}{picture}"
    file.write_text(picture)


def svg(table: Table) -> str:
    """Two panels with a bar for each row: step over eager, and cold on a logarithmic scale."""
    steps = [table.step_over_eager(row) or 0.0 for row in table.rows]
    widest = max([1.0, *steps])
    low, high = _decades([row.cold for row in table.rows if row.cold])
    right = _NAME + _PANEL + _GAP
    height = _HEAD + sum(_BAR * (len(table.of(w)) + 1) for w in table.workloads()) + 10
    size = f'width="{right + _PANEL + _GAP}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        _text(_NAME, 22, "step, relative to eager", weight="bold"),
        _text(right, 22, "first call, seconds (logarithmic)", weight="bold"),
    ]
    one = _NAME + _PANEL / widest
    parts += [_line(one, height), _text(one, 44, "1", anchor="middle")]
    for decade in range(low, high + 1):
        x = right + _PANEL * (decade - low) / (high - low)
        parts += [_line(x, height), _text(x, 44, f"{10.0**decade:g}", anchor="middle")]
    y = _HEAD
    for workload in table.workloads():
        parts.append(_text(10, y + 14, workload, weight="bold"))
        for row in table.of(workload):
            y += _BAR
            parts += _bars(table, row, y, widest, (low, high))
        y += _BAR
    return "\n".join([*parts, "</svg>\n"])


def _bars(table: Table, row: Row, y: int, widest: float, decades: tuple[int, int]) -> list[str]:
    parts = [_text(_NAME - 8, y + 14, row.system, anchor="end")]
    if row.failure is not None or row.step is None or row.cold is None:
        return [*parts, _text(_NAME + 4, y + 14, "failed", fill="#b3261e")]
    colour = _COLOURS.get(row.system, "#777777")
    ratio = table.step_over_eager(row)
    width = _PANEL * (ratio or 0.0) / widest
    label = f"{row.step * 1e3:.3g} ms" + ("" if ratio is None else f" ({ratio:.2f})")
    parts += [_bar(_NAME, y, width, colour), _text(_NAME + width + 4, y + 14, label)]
    low, high = decades
    right = _NAME + _PANEL + _GAP
    width = _PANEL * (math.log10(row.cold) - low) / (high - low)
    return [
        *parts,
        _bar(right, y, width, colour),
        _text(right + width + 4, y + 14, f"{row.cold:.2g}"),
    ]


def _decades(values: list[float]) -> tuple[int, int]:
    """The powers of ten around `values`."""
    if not values:
        return 0, 1
    low = math.floor(math.log10(min(values)))
    return low, max(math.ceil(math.log10(max(values))), low + 1)


def _bar(x: float, y: float, width: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="14" fill="{colour}"/>'


def _line(x: float, height: float) -> str:
    return f'<path d="M{x:.1f} 50V{height - 8}" stroke="#dddddd"/>'


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    weight: str = "normal",
    fill: str = "#222222",
) -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" fill="{fill}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{html.escape(text)}</text>'
