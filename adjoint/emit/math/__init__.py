"""Scalar math functions as branch-free LLVM text, which LLVM itself inlines and vectorises.

Within 2 ulp (f32) and 4 ulp (f64) of the true value everywhere, with C99's special values.
"""

from adjoint.emit.math.library import FUNCTIONS, definitions, symbol

__all__ = ["FUNCTIONS", "definitions", "symbol"]
