"""Puts back what a function changed while it was captured: containers, cells, generators."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from operator import is_
from types import CellType
from typing import Any

import numpy as np


class GeneratorStates:
    """The states of the random number generators of Python and NumPy."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy: Any = np.random.get_state()

    def put_back(self) -> bool:
        """Restore them; returns whether they had changed."""
        now: Any = np.random.get_state()
        same = now[2] == self._numpy[2] and np.array_equal(now[1], self._numpy[1])
        if same and random.getstate() == self._python:
            return False
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        return True


def snapshot(
    cells: Iterable[CellType], containers: Iterable[tuple[object, Sequence[str] | None]]
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


def _part(container: Any, names: Sequence[str] | None) -> object:
    if names is None:
        return container
    return {name: container[name] for name in names if name in container}


def _has_same(container: Any, before: Any) -> bool:
    if isinstance(container, dict):
        return list(container) == list(before) and are_same(
            container.values(), list(before.values())
        )
    return are_same(container, list(before))


def _refill(container: Any, names: Sequence[str] | None, before: Any) -> None:
    if names is not None:
        for name in [name for name in names if name in container and name not in before]:
            del container[name]
    elif isinstance(container, list):
        container[:] = before
        return
    else:
        container.clear()
    if isinstance(container, deque):
        container.extend(before)
    elif not isinstance(container, frozenset):
        container.update(before)


def are_same(objects: Iterable[object], before: Sequence[object]) -> bool:
    """Whether these are the same objects as before, by identity."""
    now = list(objects)
    return len(now) == len(before) and all(map(is_, now, before))
