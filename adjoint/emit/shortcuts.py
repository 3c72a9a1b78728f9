"""Math functions in single precision by the GPU's approximate instructions.

The GPU computes 2**x and 1 / x to about one ulp.  Functions built on them, with a correction for
the rounding of their arguments, are within about two ulps, as those of NVIDIA's library are.  They
take a third of the instructions of the portable functions in `emit/math/`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from adjoint.emit.math import coefficients
from adjoint.emit.spelling import literal


def _number(value: float) -> str:
    return literal(value, torch.float32)


LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453

_LOG2_E_HIGH = 1.44269502162933349609375  # LOG2_E rounded to a float
_LOG2_E_LOW = LOG2_E - _LOG2_E_HIGH

# (tanh(x) / x - 1) / x**2 as a polynomial of x**2, for |x| < 0.56: relative error below 2**-29.
_TANH = (
    -0.33333315271397873,
    0.13332498875727822,
    -0.05384227841449621,
    0.021027219668586724,
    -0.006207431307271403,
)

DECLARED = """\
declare float @llvm.nvvm.ex2.approx.f(float)
declare float @llvm.nvvm.rcp.approx.ftz.f(float)
declare float @llvm.fma.f32(float, float, float)
declare float @llvm.fabs.f32(float)
declare float @llvm.copysign.f32(float, float)
"""

# exp(x) = 2**t (1 + e ln 2), where t is x log2(e) rounded and e the rounding error.
EXP = f"""\
define internal float @short.exp(float %x) alwaysinline {{
  %t = fmul float %x, {_number(_LOG2_E_HIGH)}
  %minus = fneg float %t
  %e0 = call float @llvm.fma.f32(float %x, float {_number(_LOG2_E_HIGH)}, float %minus)
  %e1 = call float @llvm.fma.f32(float %x, float {_number(_LOG2_E_LOW)}, float %e0)
  %y = call float @llvm.nvvm.ex2.approx.f(float %t)
  %e = fmul float %e1, {_number(LN_2)}
  %better = call float @llvm.fma.f32(float %y, float %e, float %y)
  %size = call float @llvm.fabs.f32(float %t)
  %far = fcmp oge float %size, {_number(128.0)}
  %r = select i1 %far, float %y, float %better
  ret float %r
}}
"""

SIGMOID = """\
define internal float @short.sigmoid(float %x) alwaysinline {
  %minus = fneg float %x
  %e = call float @short.exp(float %minus)
  %d = fadd float %e, 1.0
  %r = fdiv float 1.0, %d
  ret float %r
}
"""


def _polynomial(name: str, x: str, numbers: Sequence[float]) -> str:
    """Lines that leave the polynomial's value in `name`0, by Horner's scheme."""
    *rest, last = map(_number, numbers)
    lines = [f"  %{name}{len(rest)} = fadd float {last}, 0.0"]
    for n, c in reversed(list(enumerate(rest))):
        fma = f"call float @llvm.fma.f32(float {x}, float %{name}{n + 1}, float {c})"
        lines.append(f"  %{name}{n} = {fma}")
    return "\n".join(lines)


TANH = f"""\
define internal float @short.tanh(float %x) alwaysinline {{
  %a = call float @llvm.fabs.f32(float %x)
  %twice = fadd float %a, %a
  %e = call float @short.exp(float %twice)
  %d = fadd float %e, 1.0
  %i = call float @llvm.nvvm.rcp.approx.ftz.f(float %d)
  %far = call float @llvm.fma.f32(float %i, float -2.0, float 1.0)
  %z = fmul float %x, %x
{_polynomial("p", "%z", _TANH)}
  %zp = fmul float %z, %p0
  %near = call float @llvm.fma.f32(float %zp, float %x, float %x)
  %is.near = fcmp olt float %a, {_number(0.55)}
  %either = select i1 %is.near, float %near, float %far
  %r = call float @llvm.copysign.f32(float %either, float %x)
  ret float %r
}}
"""

# x + x p(x**2) near zero, 1 - 2**q(x) beyond 1.
ERF = f"""\
define internal float @short.erf(float %x) alwaysinline {{
  %size = call float @llvm.fabs.f32(float %x)
  %is.one = fcmp ogt float %size, {_number(4.0)}
  %a = select i1 %is.one, float {_number(4.0)}, float %size
  %z = fmul float %a, %a
{_polynomial("p", "%z", coefficients.ERF["f32"])}
  %near = call float @llvm.fma.f32(float %a, float %p0, float %a)
{_polynomial("q", "%a", [-c * LOG2_E for c in coefficients.ERF_TAIL_F32["f32"]])}
  %e = call float @llvm.nvvm.ex2.approx.f(float %q0)
  %far = fsub float 1.0, %e
  %is.near = fcmp olt float %a, 1.0
  %either = select i1 %is.near, float %near, float %far
  %r = call float @llvm.copysign.f32(float %either, float %x)
  ret float %r
}}
"""

SHORTCUTS = {"erf": ERF, "exp": EXP, "sigmoid": SIGMOID, "tanh": TANH}


def shortcuts(names: set[str]) -> str:
    """Definitions of the functions `names`, and of `exp`, which the others call."""
    if not names:
        return ""
    return DECLARED + EXP + "".join(SHORTCUTS[name] for name in sorted(names - {"exp"}))
