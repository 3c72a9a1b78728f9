from __future__ import annotations

from adjoint.observing import Observer, Sighting, unobserved


def test_one_may_look_away() -> None:
    observer: Observer = unobserved
    observer(Sighting("capture", 0, object(), 0.0))
