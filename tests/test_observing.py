from __future__ import annotations

from adjoint.observing import Observer, unobserved


def test_what_is_seen_is_returned() -> None:
    observer: Observer = unobserved
    value = object()
    assert observer("capture", value) is value
