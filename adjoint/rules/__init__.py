"""What calculus knows: one rule per op.

Importing this package registers the rules.
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
