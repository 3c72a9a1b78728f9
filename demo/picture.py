"""The training as a picture: losses of both systems, and the learned wave on the exact one."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from demo.training import Lesson, Pupil

Point = tuple[float, float]

_WIDTH, _HEIGHT, _MARGIN, _HEAD = 330, 230, 60, 44
_GREY, _RED = "#9aa0a6", "#b3261e"
_COLOURS = {"eager": _GREY, "adjoint": "#3b6fd4"}


@dataclass(frozen=True)
class Curve:
    """Points in the order in which they are joined."""

    name: str
    points: Sequence[Point]
    colour: str
    width: float = 1.5
    dashes: str = "none"


@dataclass(frozen=True)
class Panel:
    """Curves over common axes; `ticks` are values of y, with what is written beside them."""

    title: str
    below: str
    curves: Sequence[Curve]
    ticks: Sequence[tuple[float, str]]

    def scale(self) -> tuple[Callable[[float], float], Callable[[float], float]]:
        """From values to positions inside the panel."""
        xs = [x for curve in self.curves for x, _ in curve.points]
        ys = [y for curve in self.curves for _, y in curve.points] + [y for y, _ in self.ticks]
        left, right, low, high = min(xs), max(xs), min(ys), max(ys)
        return (
            lambda x: _WIDTH * (x - left) / ((right - left) or 1),
            lambda y: _HEIGHT * (high - y) / ((high - low) or 1),
        )


def loss_panel(lesson: Lesson, pupils: Iterable[Pupil]) -> Panel:
    """Decimal logarithms of the losses. Eager lies broad below adjoint, so that both are seen."""
    curves = [
        Curve(
            pupil.system,
            [(step, math.log10(max(loss, 1e-12))) for step, loss in enumerate(pupil.losses, 1)],
            _COLOURS[pupil.system],
            5.0 if pupil.system == "eager" else 1.5,
        )
        for pupil in pupils
    ]
    lowest = min(y for curve in curves for _, y in curve.points)
    highest = max(y for curve in curves for _, y in curve.points)
    decades = range(math.floor(lowest), math.ceil(highest) + 1)
    ticks = [(float(decade), f"1e{decade}") for decade in decades]
    return Panel(f"{lesson.name}: loss", f"step 1 to {lesson.steps}", curves, ticks)


def wave_panel(
    times: Iterable[float],
    exact: Callable[[float], Sequence[Point]],
    learned: Callable[[float], Sequence[Point]],
) -> Panel:
    """The wave at some times."""
    curves: list[Curve] = []
    for t in times:
        curves.append(Curve("exact", exact(t), _GREY, 5.0))
        curves.append(Curve("learned by adjoint", learned(t), _RED, 1.5, "5 3"))
    title = f"Burgers: u(x) at t = {', '.join(f'{t:g}' for t in times)}"
    return Panel(title, "x from -1 to 1", curves, [(y, f"{y:g}") for y in (-1.0, 0.0, 1.0)])


def svg(panels: Sequence[Panel]) -> str:
    """The panels side by side."""
    width = len(panels) * (_WIDTH + _MARGIN) + 20
    size = f'width="{width}" height="{_HEAD + _HEIGHT + 40}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for place, panel in enumerate(panels):
        left = _MARGIN + place * (_WIDTH + _MARGIN)
        parts += [f'<g transform="translate({left} {_HEAD})">', *_drawn(panel), "</g>"]
    return "\n".join([*parts, "</svg>\n"])


def _drawn(panel: Panel) -> list[str]:
    across, down = panel.scale()
    parts = [
        _text(0, -24, panel.title, weight="bold"),
        _text(_WIDTH / 2, _HEIGHT + 20, panel.below, anchor="middle"),
    ]
    for value, label in panel.ticks:
        y = down(value)
        parts.append(f'<path d="M0 {y:.1f}H{_WIDTH}" stroke="#dddddd"/>')
        parts.append(_text(-6, y + 4, label, anchor="end"))
    for curve in panel.curves:
        points = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in curve.points)
        style = f'stroke-width="{curve.width}" stroke-dasharray="{curve.dashes}"'
        parts.append(f'<polyline points="{points}" fill="none" stroke="{curve.colour}" {style}/>')
    legend = {curve.name: curve for curve in panel.curves}
    x = 0
    for name, curve in legend.items():
        line = f'stroke="{curve.colour}" stroke-width="{curve.width}"'
        parts.append(f'<path d="M{x} -9h18" {line} stroke-dasharray="{curve.dashes}"/>')
        parts.append(_text(x + 24, -5, name))
        x += 34 + 7 * len(name)
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" fill="#222222"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{html.escape(text)}</text>'
