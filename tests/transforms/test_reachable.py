from __future__ import annotations

import functools
import gc
from collections import OrderedDict
from typing import Any

import pytest
from torch import Tensor

from adjoint.transforms import introspection, reachable
from adjoint.transforms.fingerprint import Fingerprint, fingerprint
from adjoint.transforms.reachable import Reachable, Same


def test_what_refers_to_itself() -> None:
    held: list[Any] = []
    held.append(held)

    def function(x: Tensor) -> Tensor:
        return x if held else function(x)

    assert fingerprint(function) == fingerprint(function)


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_a_dictionary_holds_as_long_as_it_holds_the_same(kind: type[dict[str, Any]]) -> None:
    held = kind(one=object(), two=[2.0])
    function = functools.partial(lambda held, x: held, held)
    look = Fingerprint(function)
    for name, value in list(held.items()):
        # Written to, and what it was again: then it is as before.
        held[name] = 3
        assert not look.holds(function)
        held[name] = value
        assert look.holds(function)
        assert look.holds(function)
    held["two"] = [2.0]
    assert not look.holds(function)


def test_the_order_of_a_dictionary_counts() -> None:
    held = OrderedDict(one=1.0, two=2.0)
    function = functools.partial(lambda held, x: held, held)
    look = Fingerprint(function)
    held.move_to_end("one")
    assert not look.holds(function)


def test_what_was_empty_must_stay_so() -> None:
    held: dict[str, Any] = {}
    function = functools.partial(lambda held, x: held, held)
    look = Fingerprint(function)
    held["one"] = 1
    assert not look.holds(function)


def test_objects_beyond_the_bound_are_compared_by_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    def marks(value: Any) -> tuple[Any, Any]:
        return Reachable().mark([[value]]), Reachable().mark([[value.copy()]])

    one, other = marks([2.0])
    assert one == other
    monkeypatch.setattr(reachable, "MAX_OBJECTS", 1)
    one, other = marks([2.0])
    assert one != other


class Thing:
    pass


def test_an_object_is_the_same_while_it_lives() -> None:
    value, other = Thing(), Thing()
    assert Same(value) == Same(value)
    assert Same(value) != Same(other)
    kept = Same(other)
    assert kept == Same(other)
    del other
    gc.collect()
    assert kept._object() is None
    assert kept != Same(value)
    assert Same([]) != Same([]), "what cannot be referred to weakly is kept alive"


def test_attributes_that_a_class_does_not_have_are_not_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A function may close over thousands of objects, and name thousands of attributes."""
    looked_up: list[str] = []

    def attribute_in(scopes: Any, name: str) -> list[Any]:
        looked_up.append(name)
        return introspection.attribute_in(scopes, name)

    monkeypatch.setattr(reachable, "attribute_in", attribute_in)
    kinds = [type(f"Kind{i}", (), {f"own_{i}": i}) for i in range(30)]
    held = [kind() for kind in kinds]
    names = ", ".join(f"held[0].own_{i}" for i in range(30))
    function = eval(f"lambda x: ({names})", {"held": held})
    before = fingerprint(function)
    # Each once for the mark, and once to be compared later.
    assert len([name for name in looked_up if name.startswith("own_")]) == 60
    kinds[7].own_7 = 8  # type: ignore[attr-defined]
    assert fingerprint(function) != before
