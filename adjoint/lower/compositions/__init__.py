"""Compositions: operators of several loops as torch programs of simpler operators.

Half types are computed in float32 and rounded at the end, as in eager's kernels.  One module for
each family.
"""

from adjoint.lower.compositions import (
    activations,
    batch_normalization,
    foreach,
    losses,
    normalization,
    pieces,
    products,
    softmax,
    statistics,
)
from adjoint.lower.compositions.registry import (
    COMPOSITIONS,
    Composition,
    NoComposition,
    composition_of,
    registering,
)

__all__ = [
    "COMPOSITIONS",
    "Composition",
    "NoComposition",
    "activations",
    "batch_normalization",
    "composition_of",
    "foreach",
    "losses",
    "normalization",
    "pieces",
    "products",
    "registering",
    "softmax",
    "statistics",
]
