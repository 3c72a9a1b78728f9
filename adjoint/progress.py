"""A compilation that takes long says so on a terminal: what is compiled, how far, for how long.

It is one line, which is written again and again and goes when the compilation ends.  Compilations
that follow one another closely, as the graphs and derivatives of one call do, are told as one.
Where nobody waits - in a file, a notebook, a test - nothing is written, and no thread is started.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeAlias, TypeVar

from adjoint.errors import SourceLine
from adjoint.observing import Sighting

Value = TypeVar("Value")

# Seconds: from here on a compilation takes long; the line is written so often; and compilations
# with no more than so much between them are one.
SLOW = 2.0
REFRESH = 0.2
PAUSE = 0.5

_CLEAR = "\r\x1b[K"


# Where what is compiled stands in the user's program.
Place: TypeAlias = Callable[[], SourceLine | None]


@dataclass
class _Work:
    """Compilations that are told as one."""

    began: float
    ended: float
    kernels: int = 0
    compiled: int = 0


class Progress:
    """What is told on the terminal of a process.  It is an observer of what goes on.

    One thread compiles at a time.
    """

    def __init__(self, stream: Callable[[], TextIO] = lambda: sys.stderr) -> None:
        self._stream = stream
        self._work = _Work(-PAUSE, -PAUSE)
        self._doing: list[tuple[str, Place]] = []
        """What is being done and, before it, what that is a part of."""

    def __call__(self, sighting: Sighting) -> None:
        """See what a stage has made."""
        if not self._doing:
            return
        if sighting.stage == "lower":
            self._work.kernels += len(sighting.value.launches)
            self._doing[-1] = ("compiling kernels", self._doing[-1][1])
        elif sighting.stage == "emit":
            self._work.compiled += len(sighting.value)

    @contextlib.contextmanager
    def during(self, doing: str, place: Place) -> Iterator[None]:
        """A context in which this is done to the program at `place`."""
        stream = self._stream()
        if not self._doing and not _is_terminal(stream):
            yield
            return
        self._doing.append((doing, place))
        try:
            if len(self._doing) > 1:
                yield
            else:
                with self._told(stream):
                    yield
        finally:
            self._doing.pop()

    @contextlib.contextmanager
    def _told(self, stream: TextIO) -> Iterator[None]:
        now = time.monotonic()
        if now - self._work.ended >= PAUSE:
            self._work = _Work(now, now)
        done = threading.Event()
        teller = threading.Thread(target=self._tell, args=(stream, done), daemon=True)
        teller.start()
        try:
            yield
        finally:
            done.set()
            teller.join()
            self._work.ended = time.monotonic()

    def _tell(self, stream: TextIO, done: threading.Event) -> None:
        if done.wait(max(0.0, self._work.began + SLOW - time.monotonic())):
            return
        with contextlib.suppress(OSError, ValueError):  # The terminal has gone.
            while True:
                stream.write(_CLEAR + self._line()[: _columns(stream) - 1])
                stream.flush()
                if done.wait(REFRESH):
                    break
            stream.write(_CLEAR)
            stream.flush()

    def _line(self) -> str:
        """The time comes first: what does not fit in the line is left out."""
        seconds = time.monotonic() - self._work.began
        doing, _ = self._doing[-1]
        lines = (place() for _, place in reversed(self._doing))
        line = next((each for each in lines if each is not None), None)
        where = "" if line is None else f" {line.function} ({Path(line.file).name}:{line.line}),"
        kernels = f", {self._work.compiled} of {self._work.kernels}" if self._work.kernels else ""
        return f"adjoint: compiling for {seconds:.0f} s:{where} {doing}{kernels}"


PROGRESS = Progress()


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # There is none, or it is closed.
        return False


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
