from __future__ import annotations

import pytest

from adjoint.runtime.cpu.engine import LLVMError
from adjoint.runtime.gpu.assembly import assemble

EMPTY = 'target triple = "nvptx64-nvidia-cuda"\ndefine ptx_kernel void @k() { ret void }'


@pytest.mark.parametrize("capability", [(7, 0), (8, 0), (9, 0)])
def test_code_is_for_the_device_at_hand(capability: tuple[int, int]) -> None:
    code = assemble(EMPTY, capability).decode()
    assert f".target sm_{capability[0]}{capability[1]}" in code
    assert ".entry k" in code


def test_text_that_is_none_is_refused() -> None:
    with pytest.raises(LLVMError):
        assemble("define", (9, 0))
