"""Scalar math functions as branch-free LLVM text, which LLVM itself inlines and vectorises.

Within 2 ulp (f32) and 4 ulp (f64) of the true value everywhere, with C99's special values.
`near_sin` and `near_cos` promise that up to NEAR only, and are several times faster than `sin` and
`cos`, which pay for reducing huge arguments always: without branches there is no other way.
"""

from adjoint.emit.math.library import FUNCTIONS, definitions, symbol
from adjoint.emit.math.trigonometric import NEAR

__all__ = ["FUNCTIONS", "NEAR", "definitions", "symbol"]
