"""Scalar math functions as branch-free LLVM IR, which LLVM inlines and vectorizes.

They are within 2 ulp (f32) and 4 ulp (f64) of the true value everywhere, with C99's special values.
`near_sin` and `near_cos` have that accuracy only for arguments up to NEAR.  They are several times
faster than `sin` and `cos`, which have no branches and so reduce every argument as if it were huge.
On the CPU, loops call functions that branch between the two (`branching`).
"""

from adjoint.emit.math.branching import (
    BRANCHING,
    bodies_of,
    branching_call,
    branching_definitions,
    condition_symbol,
    conditions,
)
from adjoint.emit.math.library import FUNCTIONS, definitions, symbol
from adjoint.emit.math.trigonometric import NEAR

__all__ = [
    "BRANCHING",
    "FUNCTIONS",
    "NEAR",
    "bodies_of",
    "branching_call",
    "branching_definitions",
    "condition_symbol",
    "conditions",
    "definitions",
    "symbol",
]
