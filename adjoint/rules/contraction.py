"""Products of matrices and vectors: each factor receives the cotangent times the other,
conjugated.
"""

from __future__ import annotations

from typing import Any

import torch

from adjoint.rules.registry import composition, vjp

aten = torch.ops.aten


def _adjoint(matrix: torch.Tensor) -> torch.Tensor:
    """The conjugate transpose."""
    turned = matrix.t() if matrix.dim() == 2 else matrix.transpose(-2, -1)
    return turned.conj() if matrix.is_complex() else turned


def _conjugate(value: torch.Tensor) -> torch.Tensor:
    return value.conj() if value.is_complex() else value


def _scaled(value: torch.Tensor, factor: Any) -> torch.Tensor:
    if isinstance(factor, complex):
        return value * factor.conjugate()
    return value if factor == 1 else value * factor


@vjp(aten.mm.default, aten.bmm.default)
def matrix_product(cotangent: Any, out: Any, x: Any, y: Any) -> Any:
    """dx = g y^H, dy = x^H g."""
    product = torch.mm if x.dim() == 2 else torch.bmm
    return (
        lambda: product(cotangent, _adjoint(y)),
        lambda: product(_adjoint(x), cotangent),
    )


@vjp(aten.addmm.default, aten.baddbmm.default)
def added_matrix_product(
    cotangent: Any, out: Any, bias: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    """Of beta bias + alpha x y."""
    of_x, of_y = matrix_product(cotangent, out, x, y)
    return (
        lambda: _scaled(cotangent, beta),
        lambda: _scaled(of_x(), alpha),
        lambda: _scaled(of_y(), alpha),
    )


@vjp(aten.mv.default)
def matrix_vector_product(cotangent: Any, out: Any, x: Any, y: Any) -> Any:
    """dx = g y^H, dy = x^H g."""
    return (
        lambda: cotangent.unsqueeze(1) * _conjugate(y),
        lambda: torch.mv(_adjoint(x), cotangent),
    )


@vjp(aten.addmv.default)
def added_matrix_vector_product(
    cotangent: Any, out: Any, bias: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    """Of beta bias + alpha x y."""
    of_x, of_y = matrix_vector_product(cotangent, out, x, y)
    return (
        lambda: _scaled(cotangent, beta),
        lambda: _scaled(of_x(), alpha),
        lambda: _scaled(of_y(), alpha),
    )


@vjp(aten.dot.default)
def dot(cotangent: Any, out: Any, x: Any, y: Any) -> Any:
    """dx = g y^*, dy = g x^*."""
    return (lambda: cotangent * _conjugate(y), lambda: cotangent * _conjugate(x))


@composition(aten.convolution.default)
def convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    """Without an output padding that means nothing.

    torch's second derivative of a transposed convolution is a convolution with such a padding,
    which it runs but refuses to differentiate.
    """
    output_padding = output_padding if transposed else [0] * len(output_padding)
    return aten.convolution.default(
        x, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    )
