from __future__ import annotations

from adjoint.atlas.shortening import shortened


def test_text_is_one_line_of_a_certain_length() -> None:
    assert shortened("a\n  b", 10) == "a b"
    assert shortened("a" * 20, 10) == "a" * 9 + "…"
