"""Derivatives of functions, and `vmap`, as `torch.func` has them.

A transform of a function is a function again.  Called while a program is being captured, it
captures its own function as a graph, differentiates that, and runs the result where it stands:
nested to any depth, everything becomes one graph before anything is optimised.  Called otherwise,
it is compiled for the arguments at hand and run, and torch.autograd can differentiate what it
returns.
"""

from adjoint.transforms.api import grad, hvp, jvp, linearize, value_and_grad, vjp, vmap
from adjoint.transforms.jacobians import hessian, jacfwd, jacrev

__all__ = [
    "grad",
    "hessian",
    "hvp",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "value_and_grad",
    "vjp",
    "vmap",
]
