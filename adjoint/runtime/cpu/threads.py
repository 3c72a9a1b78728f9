"""The entry points of the OpenMP library that torch has loaded.

Kernels enter parallel regions of that library, so that they share torch's thread pool, and
`torch.set_num_threads` applies to both.  Without an OpenMP library, kernels run on one thread.
`program.py` decides how many threads share a kernel.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch

_ENTRIES = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")

_LIBRARIES = ("libgomp", "libiomp", "libomp")


def _loaded_libraries() -> list[str]:
    """Loaded files whose name is that of an OpenMP library."""
    maps = Path("/proc/self/maps")
    if maps.exists():
        files = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines()}
    else:
        folder = Path(torch.__file__).parent / "lib"
        files = {str(path) for path in folder.glob("lib*omp*")}
    return sorted(f for f in files if Path(f).name.startswith(_LIBRARIES))


@functools.cache
def openmp() -> dict[str, int]:
    """The address of each OpenMP function that kernels call."""
    for path in _loaded_libraries():
        library = ctypes.CDLL(path)
        if all(hasattr(library, name) for name in _ENTRIES):
            pointers = [ctypes.cast(getattr(library, name), ctypes.c_void_p) for name in _ENTRIES]
            return {n: int(p.value or 0) for n, p in zip(_ENTRIES, pointers, strict=True)}
    return _single_threaded()


# Callbacks of ctypes are freed with their Python objects; native code keeps only addresses.
_KEPT: list[object] = []


@functools.cache
def _single_threaded() -> dict[str, int]:
    """A team of one thread, in place of an OpenMP library."""

    def call(function: int, data: int, threads: int, flags: int) -> None:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(data)

    pointer, number = ctypes.c_void_p, ctypes.c_int
    parallel = ctypes.CFUNCTYPE(None, pointer, pointer, number, number)(call)
    zero = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
    one = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1)
    _KEPT.extend((parallel, zero, one))
    entries = zip(_ENTRIES, (parallel, zero, one), strict=True)
    return {name: int(ctypes.cast(f, ctypes.c_void_p).value or 0) for name, f in entries}
