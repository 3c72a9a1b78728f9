"""Levels of x86-64 processors, and which of them this machine has; found without LLVM."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

# The features that each level adds to the one before, as LLVM names them.
FEATURES: dict[str, tuple[str, ...]] = {
    "x86-64": ("sse2",),
    "x86-64-v2": ("cx16", "sahf", "popcnt", "sse3", "ssse3", "sse4.1", "sse4.2"),
    "x86-64-v3": ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}

LEVELS = tuple(FEATURES)

# What Linux calls them, where that is something else.
_LINUX = {
    "sahf": "lahf_lm",
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "bmi": "bmi1",
    "lzcnt": "abm",
}


@functools.cache
def _flags() -> frozenset[str]:
    """The features of this machine, as Linux names them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    found = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(found.partition(":")[2].split())


def features_of(level: str) -> list[str]:
    """All features of a level."""
    return [name for each in LEVELS[: LEVELS.index(level) + 1] for name in FEATURES[each]]


def lacking(level: str) -> list[str]:
    """The features of a level that this machine does not have."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return [f"x86-64 instructions: it is {platform.machine()}"]
    return [name for name in features_of(level) if _LINUX.get(name, name) not in _flags()]
