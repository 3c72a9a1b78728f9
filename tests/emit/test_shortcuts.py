from __future__ import annotations

import ctypes
import math

import llvmlite.binding as llvm
import pytest
import torch

from adjoint.emit.shortcuts import SHORTCUTS, shortcuts
from adjoint.runtime.cpu.engine import load
from adjoint.runtime.cpu.externals import add_external
from adjoint.runtime.cpu.support import c_function


@pytest.mark.parametrize("name", SHORTCUTS)
def test_each_is_defined_with_all_that_it_calls(name: str) -> None:
    module = llvm.parse_assembly(shortcuts({name}))
    module.verify()
    missing = [f.name for f in module.functions if f.is_declaration]
    assert all(each.startswith("llvm.") for each in missing)
    assert f"short.{name}" in {f.name for f in module.functions}


STAND_IN = """
define internal float @rcp(float %x) alwaysinline {
  %r = fdiv float 1.0, %x
  ret float %r
}
define void @each(ptr %args, i64 %count) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %at = getelementptr float, ptr %args, i64 %i
  %x = load float, ptr %at
  %y = call float @short.NAME(float %x)
  store float %y, ptr %at
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %loop, label %end
end:
  ret void
}
"""


@pytest.mark.parametrize("name", SHORTCUTS)
def test_values_are_right(name: str) -> None:
    """With the processor's 2**x and 1 / x, rounded once, in the place of the GPU's."""
    text = shortcuts({name}).replace("@llvm.nvvm.ex2.approx.f", "@llvm.exp2.f32")
    text = text.replace("declare float @llvm.nvvm.rcp.approx.ftz.f(float)\n", "")
    text = text.replace("@llvm.nvvm.rcp.approx.ftz.f", "@rcp")
    exp2f = c_function("exp2f")
    assert exp2f is not None
    add_external("exp2f", exp2f)
    (function,) = load(text + STAND_IN.replace("NAME", name), ["each"])
    inf, nan = math.inf, math.nan
    special = torch.tensor([0.0, -0.0, inf, -inf, nan, 88.7, -88.7, -104.0, 0.549, 0.551])
    x = torch.cat([special, torch.linspace(-88, 88, 20001), torch.linspace(-1, 1, 20001)])
    ours = x.clone()
    ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(function.address)(
        ours.data_ptr(), len(x)
    )
    exact = getattr(torch, name)(x.double())
    torch.testing.assert_close(
        ours, exact.float(), rtol=4 * 2.0**-23, atol=2.0**-149, equal_nan=True
    )
    assert torch.equal(ours.signbit()[:2], exact.signbit()[:2])


def test_nothing_is_written_for_nothing() -> None:
    assert shortcuts(set()) == ""
