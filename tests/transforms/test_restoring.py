from __future__ import annotations

import random
from collections import OrderedDict, deque
from types import CellType
from typing import Any

import numpy as np
import pytest

from adjoint.transforms.restoring import GeneratorStates, are_same, snapshot


@pytest.mark.parametrize(
    ("container", "change"),
    [
        ([1, 2], lambda held: held.append(3)),
        ([1, 2], lambda held: held.clear()),
        ({"a": 1}, lambda held: held.update(a=2, b=3)),
        (OrderedDict(a=1, b=2), lambda held: held.move_to_end("a")),
        ({1, 2}, lambda held: held.discard(1)),
        (deque([1, 2]), lambda held: held.popleft()),
    ],
)
def test_containers_are_restored_in_place(container: Any, change: Any) -> None:
    before = list(container.items() if isinstance(container, dict) else container)
    put_back = snapshot([], [(container, None)])
    change(container)
    put_back()
    assert list(container.items() if isinstance(container, dict) else container) == before


def test_of_globals_only_the_names_are_restored() -> None:
    scope: dict[str, object] = {"used": 1, "other": 2}
    put_back = snapshot([], [(scope, ["used", "new"])])
    scope.update(used=3, other=4, new=5)
    put_back()
    assert scope == {"used": 1, "other": 4}


def test_cells_are_restored() -> None:
    cell = CellType(1)
    put_back = snapshot([cell], [])
    cell.cell_contents = 2
    put_back()
    assert cell.cell_contents == 1


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_generators_are_restored_and_the_draw_is_told(draw: Any) -> None:
    states = GeneratorStates()
    assert not states.put_back()
    first = draw()
    assert states.put_back()
    assert draw() == first


def test_equal_objects_are_not_the_same() -> None:
    one, other = [1], [1]
    assert are_same([one, other], [one, other])
    assert not are_same([one], [other])
    assert not are_same([one], [one, one])
