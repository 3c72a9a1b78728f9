"""Derivative rules: one vector-Jacobian product per op, by family.

Importing this package registers them.
"""

from adjoint.rules import (
    activation,
    alignment,
    attention,
    collective,
    constant,
    contraction,
    distance,
    embedding,
    functional,
    indexing,
    linalg,
    loss,
    normalization,
    pointwise,
    prims,
    quantization,
    recurrent,
    reduction,
    sampling,
    scan,
    segment,
    view,
)

__all__ = [
    "activation",
    "alignment",
    "attention",
    "collective",
    "constant",
    "contraction",
    "distance",
    "embedding",
    "functional",
    "indexing",
    "linalg",
    "loss",
    "normalization",
    "pointwise",
    "prims",
    "quantization",
    "recurrent",
    "reduction",
    "sampling",
    "scan",
    "segment",
    "view",
]
