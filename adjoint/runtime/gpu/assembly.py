"""LLVM text becomes PTX, NVIDIA's assembly, by the LLVM that llvmlite brings.

Several threads may do this at a time: each has a context of LLVM's to itself.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from adjoint.runtime.cpu.engine import LLVMError, parsed_module, pass_manager
from adjoint.target import Machine

_LOCK = threading.Lock()


@functools.cache
def _prepare() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def assemble(text: str, machine: Machine) -> bytes:
    """PTX for a GPU."""
    with _LOCK:
        _prepare()
    with parsed_module(text) as module:
        target = llvm.Target.from_triple(machine.triple).create_target_machine(
            cpu=machine.cpu, features=machine.features, opt=3
        )
        module.data_layout = str(target.target_data)
        tuning = llvm.create_pipeline_tuning_options(speed_level=2)
        tuning.loop_vectorization = False
        tuning.slp_vectorization = False
        tuning.loop_unrolling = False
        builder = llvm.create_pass_builder(target, tuning)
        with pass_manager(builder) as passes:
            _side_by_side("LLVMPY_RunNewModulePassManager")(passes, module, builder)
        return _emitted(target, module)


def _emitted(target: Any, module: Any) -> bytes:
    with ffi.OutputString() as error:
        buffer = _side_by_side("LLVMPY_TargetMachineEmitToMemory")(target, module, 0, error)
        if not buffer:
            raise LLVMError(str(error))
    try:
        start, size = ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer)
        return ctypes.string_at(start, size)
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _side_by_side(name: str) -> Any:
    """A function of LLVM's, without the one lock that llvmlite holds in every call.

    That lock is for those who share a context.  What compiles for long would wait for it.
    """
    function = getattr(ffi.lib, name)
    return getattr(function, "_cfn", function)
