"""LLVM IR text becomes PTX, by the LLVM in llvmlite.

Several threads may compile at the same time: each has an LLVM context of its own.
"""

from __future__ import annotations

import functools
import threading

import llvmlite.binding as llvm

from adjoint.runtime.cpu.engine import (
    LLVMError,
    emitted,
    facts_of,
    parsed_module,
    pass_builder,
    pass_manager,
    run_passes,
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
            run_passes(passes, module, builder)
        return emitted(target, module, is_object=False)
