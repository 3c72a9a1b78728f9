"""Derivatives of functions, and `vmap`, as `torch.func` has them.

A transform of a function is a function again.  Called inside a capture, it captures its own
function as a graph, differentiates that, and adds the nodes of the derivative to the program being
captured.  So transforms nested to any depth become one graph before anything is optimised.  Called
outside, it is compiled on the first call for arguments of a kind, and torch.autograd can
differentiate what it returns.
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
