"""What calculus knows: one rule per op.

Importing this package registers the rules.
"""

from adjoint.rules import (
    activation,
    alignment,
    attention,
    constant,
    distance,
    embedding,
    functional,
    loss,
    normalization,
    quantization,
    segment,
)

__all__ = [
    "activation",
    "alignment",
    "attention",
    "constant",
    "distance",
    "embedding",
    "functional",
    "loss",
    "normalization",
    "quantization",
    "segment",
]
