"""Puts back what a function changed while it was captured: containers, cells, generators."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from operator import is_
from types import CellType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_never

Dictionary: TypeAlias = "dict[object, object] | dict[str, object]"
# What a function may write to.
Container: TypeAlias = "Dictionary | list[object] | deque[object] | set[object] | frozenset[object]"


class GeneratorStates:
    """The states of the random number generators of Python and NumPy."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = _numpy_state()

    def put_back(self) -> bool:
        """Restore them; returns whether they had changed."""
        now = _numpy_state()
        same = now[2] == self._numpy[2] and np.array_equal(now[1], self._numpy[1])
        if same and random.getstate() == self._python:
            return False
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        return True


def _numpy_state() -> tuple[str, npt.NDArray[np.uint32], int, int, float]:
    state: tuple[str, npt.NDArray[np.uint32], int, int, float]
    state = np.random.get_state(legacy=True)  # type: ignore[assignment]
    return state


def snapshot(
    cells: Iterable[CellType], containers: Iterable[tuple[Container, Sequence[str] | None]]
) -> Callable[[], None]:
    """A function that restores the contents that cells and containers have now.

    Names: the keys of a dictionary that are restored; None for all of a container.
    """
    contents = [(cell, cell.cell_contents) for cell in cells]
    kept = [(each, names, copy(_part(each, names))) for each, names in containers]

    def put_back() -> None:
        for cell, value in contents:
            cell.cell_contents = value
        for container, names, before in kept:
            if not _has_same(_part(container, names), before):
                _refill(container, names, before)

    return put_back


def _part(container: Container, names: Sequence[str] | None) -> Container:
    if names is None:
        return container
    assert isinstance(container, dict), "names are those of globals"
    return {name: container[name] for name in names if name in container}


def _has_same(container: Container, before: Container) -> bool:
    if isinstance(container, dict) and isinstance(before, dict):
        return list(container) == list(before) and are_same(
            container.values(), list(before.values())
        )
    return are_same(container, list(before))


def _refill(container: Container, names: Sequence[str] | None, before: Container) -> None:
    match container:
        case dict():
            assert isinstance(before, dict)
            if names is None:
                container.clear()
            else:
                for name in [each for each in names if each in container and each not in before]:
                    del container[name]
            container.update(before)  # type: ignore[arg-type]
        case list():
            container[:] = before
        case deque():
            container.clear()
            container.extend(before)
        case set():
            container.clear()
            container.update(before)
        case frozenset():
            pass
        case _:
            assert_never(container)


def are_same(objects: Iterable[object], before: Sequence[object]) -> bool:
    """Whether these are the same objects as before, by identity."""
    now = list(objects)
    return len(now) == len(before) and all(map(is_, now, before))
