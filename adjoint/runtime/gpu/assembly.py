"""LLVM text becomes PTX, NVIDIA's assembly, by the LLVM that llvmlite brings."""

from __future__ import annotations

import functools
import threading

import llvmlite.binding as llvm

from adjoint.runtime.cpu.engine import LLVMError

_LOCK = threading.Lock()


@functools.cache
def _prepare() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def assemble(text: str, capability: tuple[int, int]) -> bytes:
    """PTX for a device of that compute capability."""
    with _LOCK:
        _prepare()
        try:
            module = llvm.parse_assembly(text)
            module.verify()
        except RuntimeError as error:
            raise LLVMError(str(error)) from error
        target = llvm.Target.from_triple(module.triple)
        machine = target.create_target_machine(
            cpu=f"sm_{capability[0]}{capability[1]}",
            # The first version in which several neighbours are added to memory at a time.
            features="+ptx81" if capability == (9, 0) else "",
            opt=3,
        )
        module.data_layout = str(machine.target_data)
        tuning = llvm.create_pipeline_tuning_options(speed_level=2)
        tuning.loop_vectorization = False
        tuning.slp_vectorization = False
        tuning.loop_unrolling = False
        builder = llvm.create_pass_builder(machine, tuning)
        builder.getModulePassManager().run(module, builder)
        code: str = machine.emit_assembly(module)
        return code.encode()
