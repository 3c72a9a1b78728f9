"""All native functions between kernels (`cpu/residents.py`) that programs on a CPU may call."""

from __future__ import annotations

from adjoint.runtime.cpu.callables import RUN, RUNNER, called
from adjoint.runtime.cpu.products import GEMM_OF, gemm_function, has_blas
from adjoint.runtime.cpu.tiles import TEXT, TILES
from adjoint.runtime.plans import interpreter


def functions() -> list[tuple[str, str]]:
    """For each function, the LLVM text that defines it, and its name."""
    found = [
        called(RUNNER, RUN),
        called(interpreter.text(), interpreter.COMPUTE),
        (TEXT, TILES),
    ]
    if has_blas():
        found += [gemm_function(dtype, flushes) for dtype in GEMM_OF for flushes in (False, True)]
    return found
