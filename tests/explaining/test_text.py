from __future__ import annotations

from adjoint.errors import SourceLine
from adjoint.explaining.explanation import Explanation
from adjoint.explaining.text import compilations, fallbacks, written
from adjoint.observing import Compilation, Fallback

LINE = SourceLine("model.py", 3, "forward", "y = x.sort()")


def test_reasons_are_said_in_one_line() -> None:
    found = [
        Compilation("f", "torch.compile", LINE, seconds=0.5),
        Compilation("f", "torch.compile", LINE, "argument x: size 7, was 5", 0.25),
    ]
    assert list(compilations(found)) == [
        "   500.0 ms  f (torch.compile)",
        "   250.0 ms  f (torch.compile) again, because argument x: size 7, was 5",
    ]


def test_a_fallback_has_its_line() -> None:
    assert list(fallbacks([Fallback("sort runs op by op", LINE)])) == [
        "  sort runs op by op\n    at model.py:3 in forward: y = x.sort()"
    ]


def test_what_is_empty_has_no_heading() -> None:
    text = written(Explanation("f", 0, (), (), (), None, (), ()))
    assert text.splitlines()[0] == "f, not differentiated"
    assert "fell back to eager" in text
    assert "---" not in text
