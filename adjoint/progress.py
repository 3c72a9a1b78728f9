"""Progress of long compilations, on a terminal: what is compiled, how far, for how long.

It is one line, rewritten in place and cleared when the compilation ends.  Compilations in quick
succession, such as the graphs and derivatives of one call, are reported as one.  If stderr is not a
terminal (a file, a notebook, a test), nothing is written and no thread is started.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, TypeAlias, TypeVar

from adjoint.errors import SourceLine
from adjoint.observing import Sighting

Value = TypeVar("Value")

# Shorter compilations are not reported; compilations with a shorter pause between them are reported
# as one.
MIN_REPORTED_SECONDS = 2.0
REFRESH_SECONDS = 0.2
MAX_PAUSE_SECONDS = 0.5

_CLEAR = "\r\x1b[K"


# Finds the user's line that is being compiled.
Place: TypeAlias = Callable[[], SourceLine | None]


@dataclass
class _Work:
    """Compilations that are reported as one."""

    began: float
    ended: float
    kernels: int = 0
    compiled: int = 0


class Progress:
    """Writes the progress line of a process; an observer of stages.

    Only one thread compiles at a time.
    """

    def __init__(self, stream: Callable[[], TextIO] = lambda: sys.stderr) -> None:
        self._stream = stream
        self._work = _Work(-MAX_PAUSE_SECONDS, -MAX_PAUSE_SECONDS)
        self._doing: list[tuple[str, Place]] = []
        """A stack of activities, each nested in the one before."""

    def __call__(self, sighting: Sighting) -> None:
        """Count the kernels of a stage's result."""
        if not self._doing:
            return
        value = sighting.value
        if sighting.stage == "lower":
            self._work.kernels += len(getattr(value, "launches", ()))
            self._doing[-1] = ("compiling kernels", self._doing[-1][1])
        elif sighting.stage == "emit" and isinstance(value, Sized):
            self._work.compiled += len(value)

    @contextlib.contextmanager
    def during(self, doing: str, place: Place) -> Iterator[None]:
        """The context around an activity, such as "tracing", on the program at `place`."""
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
        if now - self._work.ended >= MAX_PAUSE_SECONDS:
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
        if done.wait(max(0.0, self._work.began + MIN_REPORTED_SECONDS - time.monotonic())):
            return
        with contextlib.suppress(OSError, ValueError):  # The terminal was closed.
            while True:
                stream.write(_CLEAR + self._line()[: _columns(stream) - 1])
                stream.flush()
                if done.wait(REFRESH_SECONDS):
                    break
            stream.write(_CLEAR)
            stream.flush()

    def _line(self) -> str:
        """The text of the line; the time comes first, because long lines are cut."""
        seconds = time.monotonic() - self._work.began
        doing, _ = self._doing[-1]
        lines = (place() for _, place in reversed(self._doing))
        line = next((each for each in lines if each is not None), None)
        where = "" if line is None else f" {line.function} ({Path(line.file).name}:{line.line}),"
        kernels = f", {self._work.compiled} of {self._work.kernels}" if self._work.kernels else ""
        return f"adjoint: compiling for {seconds:.0f} s:{where} {doing}{kernels}"


PROGRESS = Progress()


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and bool(stream.isatty())
    except (AttributeError, ValueError):  # Not a file of Python's, or closed.
        return False


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
