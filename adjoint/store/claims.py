"""Claims: of several processes that need the same entry at once, one makes it and others wait.

A claim is a symbolic link whose target does not exist: the name of the target says which process
made it.  A link is created together with its target or not at all, even on a full disk or if the
process is killed.  A claim is no lock: other processes wait for it for a bounded time, and not at
all if its process has ended, and then make the entry themselves.  At worst it is made twice.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
from collections.abc import Callable
from pathlib import Path

# Seconds between two checks of a claim, and the most that a process waits.
POLL_SECONDS = 0.05
MAX_WAIT_SECONDS = 60.0


class Claim:
    """The claim of this process to make an entry; released once, whether or not it was made."""

    def __init__(self, path: Path | None) -> None:
        """`path` None: a claim that no other process sees."""
        self._path = path
        self.is_passed_on = False
        """Whether the thread that writes the entry releases it."""

    def release(self) -> None:
        """Let others make the entry."""
        path, self._path = self._path, None
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()


def claimed(path: Path, is_there: Callable[[], bool]) -> Claim | None:
    """A claim to what `path` stands for; None: another process has made it meanwhile.

    `is_there`: whether the entry is there now.
    """
    content = f"{platform.node()} {os.getpid()}"
    waited = 0.0
    while True:
        try:
            os.symlink(content, path)
            claim = Claim(path)
            if is_there():
                # It was made after this process had looked for it.
                claim.release()
                return None
            return claim
        except FileExistsError:
            pass
        except (OSError, NotImplementedError):
            return Claim(None)
        if _holder(path) == content:
            # Of this process: the entry waits to be written, or another thread makes it.
            return Claim(None)
        if is_there():
            return None
        if waited >= MAX_WAIT_SECONDS or _has_ended(_holder(path)):
            with contextlib.suppress(OSError):
                path.unlink()
            if waited >= MAX_WAIT_SECONDS:
                return Claim(None)
            continue
        threading.Event().wait(POLL_SECONDS)
        waited += POLL_SECONDS
        if not os.path.lexists(path):
            return None if is_there() else Claim(None)


def _holder(path: Path) -> str:
    """What a claim says of its process; nothing if it is gone."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _has_ended(holder: str) -> bool:
    """Whether the process that a claim names was one of this machine, and is no more."""
    node, _, number = holder.rpartition(" ")
    if node != platform.node() or not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False
