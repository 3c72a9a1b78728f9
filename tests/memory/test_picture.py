from __future__ import annotations

from adjoint.errors import SourceLine
from adjoint.memory.picture import HEIGHT, MARGIN, MAX_SHAPES, Span, page, svg

LINE = SourceLine("model.py", 3, "forward", "y = x <b> 2")


def test_spans_are_stacked() -> None:
    lower = Span("saved", "aten.mul", LINE, 100, 0, 3)
    upper = Span("temporary", "a & b", None, 100, 1, 2)
    picture = svg([upper, lower], 2)
    first, second = picture.split("<polygon")[1:]
    assert "saved: aten.mul, 100 bytes" in first
    assert "y = x &lt;b&gt; 2" in first
    assert "a &amp; b" in second
    # The lower one begins at the bottom, the upper one reaches the top.
    assert f",{HEIGHT - MARGIN:.1f}" in first
    assert f",{MARGIN:.1f}" in second
    assert f",{HEIGHT - MARGIN:.1f}" not in second


def test_many_small_values_are_drawn_together() -> None:
    spans = [Span("temporary", f"t{n}", None, 1 + n, n, n + 1) for n in range(2 * MAX_SHAPES)]
    picture = svg(spans, 10)
    assert f"{MAX_SHAPES} small values" in picture


def test_nothing_to_draw() -> None:
    assert "<svg" in page("<nothing>", [], 0)
    assert "&lt;nothing&gt;" in page("<nothing>", [], 0)
