"""Scalar math functions as branch-free LLVM IR, which LLVM inlines and vectorizes.

They are within 2 ulp (f32) and 4 ulp (f64) of the true value everywhere, with C99's special values.
`near_sin` and `near_cos` are so up to NEAR only.  They are several times faster than `sin` and
`cos`, which reduce every argument as if it were huge, since they have no branches.
"""

from adjoint.emit.math.library import FUNCTIONS, definitions, symbol
from adjoint.emit.math.trigonometric import NEAR

__all__ = ["FUNCTIONS", "NEAR", "definitions", "symbol"]
