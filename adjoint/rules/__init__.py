"""Derivative rules: one vector-Jacobian product per op, by family.

Importing this package registers them (`registry.py`).  A pointwise op has a row of partial
derivatives (`pointwise.py`); other ops have a function in the module of their family.  An op
without a rule gets torch's own formula: autograd runs it on fake tensors that require grad, and the
ops that it runs are traced (`derived.py`).  An op that torch cannot differentiate twice, such as a
fused backward, has a *composition* of differentiable ops.  Every op that a rule emits has a
derivative, so the rules serve every order.

What an op costs to recompute is read off the formulas that kernels use (`costs.py`). The docstring
of a rule gives the cotangents that it returns, with g for the cotangent it is given; after "Of" it
gives the function that the op computes.
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
