"""Observers: they are shown the result of each stage.  No stage prints or times itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Sighting:
    """One run of one stage or pass."""

    stage: str
    """The stage, as the sentence of the compiler names it, or the name of the pass."""
    order: int
    """How often the user's program was differentiated to give what the stage made."""
    value: Any
    """What it made: a captured program, a graph, a plan, the kernels of a plan, a program."""
    seconds: float
    """Its duration, without the stages nested in it."""
    nodes: tuple[int, int] | None = None
    """Of a pass: the number of nodes before and after it."""
    matches: Mapping[str, int] = field(default_factory=dict)
    """Of a pass made of rules: how often each rule was applied."""


# An observer may also have a method `given(stage, order, graph_module)`.  It is called with what a
# pass is given, before the pass runs and perhaps changes it in place.
Observer: TypeAlias = Callable[[Sighting], None]


def unobserved(sighting: Sighting) -> None:
    """The observer that does nothing."""
