"""LLVM IR text becomes PTX, by the LLVM in llvmlite.

Several threads may compile at the same time: each has an LLVM context of its own.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from adjoint.runtime.cpu.engine import (
    LLVMError,
    facts_of,
    parsed_module,
    pass_builder,
    pass_manager,
)
from adjoint.store.keeping import kept_or_made
from adjoint.target import Machine

_LOCK = threading.Lock()


@functools.cache
def _prepare() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def assemble(text: str, machine: Machine) -> bytes:
    """PTX for a GPU; what the store of the compilation has is not compiled again."""
    return kept_or_made(
        "ptx",
        facts_of(text, machine),
        lambda: _compiled(text, machine),
        checked_ptx,
        LLVMError,
        "a kernel",
    )


def checked_ptx(code: bytes) -> bytes:
    """The code; raises `LLVMError` if it is no PTX."""
    if b".version" not in code or b".entry" not in code:
        raise LLVMError("it is no PTX")
    return code


def _compiled(text: str, machine: Machine) -> bytes:
    with _LOCK:
        _prepare()
    with parsed_module(text) as module:
        target = llvm.Target.from_triple(machine.triple).create_target_machine(
            cpu=machine.cpu, features=machine.features, opt=3
        )
        module.data_layout = str(target.target_data)
        builder = pass_builder(target, vectorize_loops=False)
        with pass_manager(builder) as passes:
            _unlocked("LLVMPY_RunNewModulePassManager")(passes, module, builder)
        return _emit_ptx(target, module)


def _emit_ptx(target: llvm.TargetMachine, module: llvm.ModuleRef) -> bytes:
    with ffi.OutputString() as error:
        buffer = _unlocked("LLVMPY_TargetMachineEmitToMemory")(target, module, 0, error)
        if not buffer:
            raise LLVMError(str(error))
    try:
        start, size = ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer)
        return ctypes.string_at(start, size)
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _unlocked(name: str) -> Callable[..., int]:
    """A function of LLVM, without the global lock that llvmlite holds during every call.

    The lock protects contexts that are shared; here each compilation has its own.  With the lock,
    threads would compile one after another.
    """
    function = getattr(ffi.lib, name)
    unlocked: Callable[..., int] = getattr(function, "_cfn", function)
    return unlocked
