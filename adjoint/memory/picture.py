"""A picture of memory over time: what is in memory at each step, stacked and named."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from adjoint.errors import SourceLine
from adjoint.loops.footprint import profile

WIDTH, HEIGHT = 960, 420
MARGIN = 8

# What is drawn as one shape of its own; smaller values are summed up.
MAX_SHAPES = 150

_COLOURS = {"temporary": "#c8ccd2", "result": "#8fa8c8", "gradient": "#9ec49b"}
_SAVED = ("#d1495b", "#e08e45", "#edc162", "#7a6fb0", "#4d9aa8", "#a3586d", "#c9783f", "#5f7fb8")


@dataclass(frozen=True)
class Span:
    """Something in memory, from one step to another."""

    kind: str
    """`saved`, `result`, `gradient` or `temporary`."""
    name: str
    source: SourceLine | None
    bytes: int
    first: int
    last: int


def page(text: str, spans: Sequence[Span], forward_steps: int) -> str:
    """A self-contained HTML page: the picture, then the text."""
    style = "body{font-family:sans-serif;margin:2em}pre{font-size:12px;line-height:1.4}"
    return (
        f"<!doctype html><html><head><meta charset='utf-8'><title>memory</title>"
        f"<style>{style}</style></head><body><h1>Memory over time</h1>"
        f"{svg(spans, forward_steps)}<pre>{html.escape(text)}</pre></body></html>\n"
    )


def svg(spans: Sequence[Span], forward_steps: int) -> str:
    """The spans, stacked: time from left to right, forward first; bytes upwards."""
    steps = 1 + max((each.last for each in spans), default=0)
    shapes = _shapes(spans)
    totals = [0] * steps
    bodies: list[str] = []
    lines = list(dict.fromkeys(each.source for each in spans if each.kind == "saved"))
    most = max(profile(steps, _triples(shapes)), default=0) or 1

    def point(step: float, height: float) -> str:
        x = MARGIN + (WIDTH - 2 * MARGIN) * step / steps
        y = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * height / most
        return f"{x:.1f},{y:.1f}"

    for each in shapes:
        first, last = max(each.first, 0), min(each.last, steps - 1)
        over = [(step, totals[step] + each.bytes) for step in range(first, last + 1)]
        under = [(step, totals[step]) for step in range(last, first - 1, -1)]
        corners = [point(step + side, h) for step, h in over for side in (0, 1)]
        corners += [point(step + side, h) for step, h in under for side in (1, 0)]
        for step in range(first, last + 1):
            totals[step] += each.bytes
        colour = _COLOURS.get(each.kind) or _SAVED[lines.index(each.source) % len(_SAVED)]
        title = f"{each.kind}: {each.name}, {each.bytes:,} bytes"
        title += f"\n{each.source}" if each.source is not None else ""
        bodies.append(
            f"<polygon points='{' '.join(corners)}' fill='{colour}' stroke='white' "
            f"stroke-width='0.3'><title>{html.escape(title)}</title></polygon>"
        )
    x, top = point(forward_steps, most).split(",")
    bodies.append(
        f"<line x1='{x}' x2='{x}' y1='{top}' y2='{HEIGHT}' stroke='black' stroke-dasharray='4'/>"
    )
    label = f"{most / 2**20:,.1f} MiB at the peak; the dashed line is the end of the forward"
    bodies.append(f"<text x='{MARGIN}' y='{HEIGHT + 14}' font-size='12'>{label}</text>")
    extent = f"viewBox='0 0 {WIDTH} {HEIGHT + 20}' width='{WIDTH}' height='{HEIGHT + 20}'"
    opening = f"<svg xmlns='http://www.w3.org/2000/svg' {extent}>"
    return f"{opening}{''.join(bodies)}</svg>"


def _shapes(spans: Sequence[Span]) -> list[Span]:
    """The largest spans: what is held longest lies at the bottom."""
    largest = sorted(spans, key=lambda each: -each.bytes * (each.last - each.first + 1))
    kept = sorted(largest[:MAX_SHAPES], key=lambda each: each.first - each.last)
    rest = largest[MAX_SHAPES:]
    if rest:
        steps = 1 + max(each.last for each in rest)
        for step, count in enumerate(profile(steps, _triples(rest))):
            kept.append(Span("temporary", f"{len(rest)} small values", None, count, step, step))
    return kept


def _triples(spans: Sequence[Span]) -> list[tuple[int, int, int]]:
    return [(each.first, each.last, each.bytes) for each in spans]
