"""adjoint: an ahead-of-time differentiating compiler for PyTorch."""

from adjoint.backend import compile
from adjoint.compiler import capture, run
from adjoint.errors import CaptureError, DifferentiationError, FallbackWarning
from adjoint.options import Options
from adjoint.passes import Pass, graph_pass
from adjoint.rules.registry import vjp_rule
from adjoint.transforms import (
    grad,
    hessian,
    hvp,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    value_and_grad,
    vjp,
    vmap,
)

__all__ = [
    "CaptureError",
    "DifferentiationError",
    "FallbackWarning",
    "Options",
    "Pass",
    "capture",
    "compile",
    "grad",
    "graph_pass",
    "hessian",
    "hvp",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "run",
    "value_and_grad",
    "vjp",
    "vjp_rule",
    "vmap",
]
