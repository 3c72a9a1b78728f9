"""Observers: they are shown the result of each stage.  No stage prints or times itself.

An observer belongs to one compilation; a watcher (`watching`) sees those of the whole process, and
also fallbacks and recompilations, with their reasons.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from typing_extensions import assert_never

from adjoint.errors import SourceLine


@dataclass(frozen=True)
class Sighting:
    """One run of one stage or pass."""

    stage: str
    """The stage, as the sentence of the compiler names it, or the name of the pass."""
    order: int
    """How often the user's program was differentiated to give what the stage made."""
    value: object
    """What it made: a captured program, a graph, a plan, the kernels of a plan, a program."""
    seconds: float
    """Its duration, without the stages nested in it."""
    nodes: tuple[int, int] | None = None
    """Of a pass: the number of nodes before and after it."""
    matches: Mapping[str, int] = field(default_factory=dict)
    """Of a pass made of rules: how often each rule was applied."""
    function: str = ""
    """The function that is compiled."""


@dataclass(frozen=True)
class Fallback:
    """Something runs in eager torch, and the user is warned."""

    message: str
    source: SourceLine | None


@dataclass(frozen=True)
class Compilation:
    """One compilation of a function, or of a part of it."""

    function: str
    what: str
    """`torch.compile`, a transform, or the part of a function that was compiled again."""
    source: SourceLine | None
    reason: str = ""
    """Why it was compiled again; empty: it was not compiled before."""
    seconds: float = 0.0
    """Until the compiled code was ready; derivatives that are compiled later do not count."""


# An observer may also have these methods:
#   given(stage, order, graph_module): called with what a pass is given, before the pass runs and
#     perhaps changes it in place.
#   running(program, order): returns what runs in the place of a loaded program.
Observer: TypeAlias = Callable[[Sighting], None]

Event: TypeAlias = Sighting | Fallback | Compilation
Watcher: TypeAlias = Callable[[Event], None]

_WATCHERS: list[Watcher] = []

# Counters are told of every event, whether or not anything watches.
_COUNTERS: list[Watcher] = []

# The channels of `logging`; the name says what is logged.
STAGES = logging.getLogger("adjoint.stages")
FALLBACKS = logging.getLogger("adjoint.fallbacks")
COMPILATIONS = logging.getLogger("adjoint.compilations")
RECOMPILATIONS = logging.getLogger("adjoint.recompilations")


def unobserved(sighting: Sighting) -> None:
    """The observer that does nothing."""


@contextlib.contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """A context in which `watcher` is told of every event of the process."""
    _WATCHERS.append(watcher)
    try:
        yield
    finally:
        _WATCHERS.remove(watcher)


def count_with(counter: Watcher) -> None:
    """Tell `counter` of every event from now on."""
    if counter not in _COUNTERS:
        _COUNTERS.append(counter)


def is_watched() -> bool:
    """Whether something is told of every event of the process."""
    return bool(_WATCHERS)


def tell(event: Event) -> None:
    """Log an event, count it, and show it to those who watch the process."""
    _log(event)
    for each in (*_COUNTERS, *_WATCHERS):
        each(event)


@contextlib.contextmanager
def timed_compilation(compilation: Compilation, reasons: Callable[[], str] = str) -> Iterator[None]:
    """A context that compiles something; watchers are told at its end, with the duration.

    `reasons`: gives the reason at the end, if it is not known before.
    """
    begun = time.perf_counter()
    yield
    seconds = time.perf_counter() - begun
    reason = compilation.reason or reasons()
    tell(replace(compilation, reason=reason, seconds=seconds))


def _log(event: Event) -> None:
    match event:
        case Sighting(stage, order, _, seconds, function=function):
            STAGES.debug("%s: %s, order %d, %.1f ms", function, stage, order, 1e3 * seconds)
        case Fallback(message, source):
            FALLBACKS.info("%s%s", message, f" at {source}" if source else "")
        case Compilation(function, what, _, "", seconds):
            COMPILATIONS.info("%s: %s, %.2f s", function, what, seconds)
        case Compilation(function, what, _, reason, seconds):
            RECOMPILATIONS.info("%s: %s again, %.2f s: %s", function, what, seconds, reason)
        case _:
            assert_never(event)
