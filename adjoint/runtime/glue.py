"""All native functions between kernels (`cpu/residents.py`) that programs may call."""

from __future__ import annotations

from adjoint.runtime.cpu.callables import MISFITS, MISFITS_TEXT, RUN, RUNNER, called, takes_tensors
from adjoint.runtime.cpu.products import GEMM_OF, gemm_function, has_blas
from adjoint.runtime.cpu.reached import REACHED, REACHED_TEXT, asks_natively
from adjoint.runtime.cpu.tiles import TEXT, TILES
from adjoint.runtime.gpu.program import LAUNCH, LAUNCHER
from adjoint.runtime.plans import interpreter


def functions(on_gpu: bool = False) -> list[tuple[str, str]]:
    """For each function, the LLVM text that defines it, and its name.

    `on_gpu`: those of programs on a GPU.
    """
    found = [called(interpreter.text(), interpreter.COMPUTE)]
    if takes_tensors():
        found.append((MISFITS_TEXT, MISFITS))
    if asks_natively():
        found.append((REACHED_TEXT, REACHED))
    if on_gpu:
        return [*found, called(LAUNCHER, LAUNCH)]
    found += [called(RUNNER, RUN), (TEXT, TILES)]
    if has_blas():
        found += [gemm_function(dtype, flushes) for dtype in GEMM_OF for flushes in (False, True)]
    return found
