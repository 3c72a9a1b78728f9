"""LLVM IR text becomes PTX, by the LLVM in llvmlite, and PTX machine code, if ptxas is installed.

Several threads may compile at the same time: each has an LLVM context of its own.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from dataclasses import dataclass

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
from adjoint.runtime.gpu.ptxas import AssemblerError, assembler_for, checked_machine_code
from adjoint.store.entries import Facts
from adjoint.store.keeping import kept_or_made
from adjoint.target import Machine

# The kinds of cache entries that the driver loads.
PTX = "ptx"
MACHINE_CODE = "cubin"

# LLVM's code generation level. Level 3 adds global value numbering, which takes a fifth of the time
# of code generation and finds nothing that the passes before it have left.
_CODE_GENERATION_LEVEL = 2

_LOCK = threading.Lock()


@dataclass(frozen=True)
class GpuCode:
    """What the driver loads, and the cache entry that it is."""

    kind: str
    facts: Facts
    code: bytes


@functools.cache
def _prepare() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def code_for(text: str, machine: Machine) -> GpuCode:
    """Machine code for a GPU; PTX, which the driver assembles, if there is no other assembler."""
    facts = facts_of(text, machine)
    assembler = assembler_for(machine.cpu)
    if assembler is not None:
        of_assembler = {**facts, "assembler": assembler.version}
        # What this assembler rejects may be code for a GPU that it does not know.
        with contextlib.suppress(AssemblerError):
            code = kept_or_made(
                MACHINE_CODE,
                of_assembler,
                lambda: assembler.assemble(_compiled(text, machine), machine.cpu),
                checked_machine_code,
                AssemblerError,
                "a kernel",
            )
            return GpuCode(MACHINE_CODE, of_assembler, code)
    return GpuCode(PTX, facts, assemble(text, machine))


def checked(kind: str, code: bytes) -> bytes:
    """The code of a cache entry; raises `RuntimeError` if it is not what the driver loads."""
    return (checked_machine_code if kind == MACHINE_CODE else checked_ptx)(code)


def assemble(text: str, machine: Machine) -> bytes:
    """PTX for a GPU; what the store of the compilation has is not compiled again."""
    return kept_or_made(
        PTX,
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
            cpu=machine.cpu, features=machine.features, opt=_CODE_GENERATION_LEVEL
        )
        module.data_layout = str(target.target_data)
        builder = pass_builder(target, vectorize_loops=False)
        with pass_manager(builder) as passes:
            run_passes(passes, module, builder)
        return emitted(target, module, is_object=False)
