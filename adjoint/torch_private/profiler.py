"""When torch's profiler starts and stops."""

from __future__ import annotations

import functools
from collections.abc import Callable

from torch.autograd import profiler


def on_profiling(started: Callable[[], None], stopped: Callable[[], None]) -> None:
    """Call `started` whenever a profiler starts, and `stopped` whenever it stops."""
    module: object = profiler
    for name, call in (("_run_on_profiler_start", started), ("_run_on_profiler_stop", stopped)):
        original = getattr(module, name, None)
        if original is not None:
            setattr(module, name, _followed_by(original, call))


def _followed_by(original: Callable[[], None], then: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(original)
    def both() -> None:
        original()
        then()

    return both


def is_profiling() -> bool:
    """Whether a profiler is running."""
    return bool(profiler._is_profiler_enabled)
