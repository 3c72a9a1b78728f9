from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from llvmlite.binding import ffi

from adjoint.runtime.cpu.engine import LLVMError
from adjoint.runtime.gpu.assembly import assemble, checked_ptx
from adjoint.target import CPU, cuda_target
from tests.lowering import HOPPER

EMPTY = 'target triple = "nvptx64-nvidia-cuda"\ndefine ptx_kernel void @k() { ret void }'


@pytest.mark.parametrize("capability", [(7, 0), (8, 0), (9, 0)])
def test_code_is_for_the_device_at_hand(capability: tuple[int, int]) -> None:
    machine = cuda_target(CPU, capability).machine
    assert machine is not None
    code = assemble(EMPTY, machine).decode()
    assert f".target sm_{capability[0]}{capability[1]}" in code
    assert ".entry k" in code


def test_text_that_is_none_is_refused() -> None:
    with pytest.raises(LLVMError):
        assemble("define", HOPPER)


def test_threads_assemble_side_by_side() -> None:
    body = "".join(f"  %x{n + 1} = fmul float %x{n}, %x{n}\n" for n in range(300))
    texts = [
        'target triple = "nvptx64-nvidia-cuda"\n'
        f"define ptx_kernel void @k{n}(float %x0, ptr %p) {{\n{body}"
        "  store float %x300, ptr %p\n  ret void\n}\n"
        for n in range(16)
    ]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: assemble(text, HOPPER), texts))
    assert found == [assemble(text, HOPPER) for text in texts]


@pytest.mark.parametrize(
    "name", ["LLVMPY_RunNewModulePassManager", "LLVMPY_TargetMachineEmitToMemory"]
)
def test_llvmlite_has_what_takes_long_without_its_lock(name: str) -> None:
    assert getattr(ffi.lib, name)._cfn.argtypes


def test_code_that_is_no_ptx_is_refused() -> None:
    with pytest.raises(LLVMError, match="it is no PTX"):
        checked_ptx(b"\x7fELF")
