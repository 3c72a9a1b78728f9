"""Matrix products: each factor receives the cotangent times the conjugate of the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adjoint.rules.pointwise import conjugate
from adjoint.rules.registry import Cotangents, Rule, vjp

aten = torch.ops.aten


def _adjoint(matrix: torch.Tensor) -> torch.Tensor:
    """The conjugate transpose."""
    transposed = matrix.t() if matrix.dim() == 2 else matrix.transpose(-2, -1)
    conjugated: torch.Tensor = conjugate(transposed)
    return conjugated


def _scaled(value: torch.Tensor, factor: float) -> torch.Tensor:
    if isinstance(factor, complex):
        return value * factor.conjugate()
    return value if factor == 1 else value * factor


def _is_column_major(matrix: torch.Tensor) -> bool:
    """Whether columns are contiguous, as in the transpose of a weight."""
    if matrix.dim() != 2:
        return False
    # A symbolic stride is not compared, which would guard on it.
    static = [stride if type(stride) is int else None for stride in matrix.stride()]
    return static[0] == 1 and static[1] != 1


@vjp(aten.mm.default, aten.bmm.default)
def matrix_product(cotangent: Tensor, out: Tensor, x: Tensor, y: Tensor) -> Cotangents:
    """dx = g y^H, dy = x^H g, each with the strides of the matrix that it is the gradient of.

    Autograd copies a gradient whose strides differ from its parameter's before storing it.
    """
    product = torch.mm if x.dim() == 2 else torch.bmm

    def of_x() -> torch.Tensor:
        if _is_column_major(x):
            return torch.mm(conjugate(y), cotangent.t()).t()
        return product(cotangent, _adjoint(y))

    def of_y() -> torch.Tensor:
        if _is_column_major(y):
            return torch.mm(cotangent.t(), conjugate(x)).t()
        return product(_adjoint(x), cotangent)

    return of_x, of_y


@vjp(aten.mv.default)
def matrix_vector_product(cotangent: Tensor, out: Tensor, x: Tensor, y: Tensor) -> Cotangents:
    """dx = g y^H, dy = x^H g."""
    return (
        lambda: cotangent.unsqueeze(1) * conjugate(y),
        lambda: torch.mv(_adjoint(x), cotangent),
    )


def _with_bias(product: Rule) -> Rule:
    """The rule of beta bias + alpha x y, given that of x y."""

    def rule(
        cotangent: Tensor,
        out: Tensor,
        bias: Tensor,
        x: Tensor,
        y: Tensor,
        *,
        beta: float = 1,
        alpha: float = 1,
    ) -> Cotangents:
        of_x, of_y = product(cotangent, out, x, y)
        return (
            lambda: _scaled(cotangent, beta),
            lambda: _scaled(of_x(), alpha),
            lambda: _scaled(of_y(), alpha),
        )

    return rule


vjp(aten.addmm.default, aten.baddbmm.default)(_with_bias(matrix_product))
vjp(aten.addmv.default)(_with_bias(matrix_vector_product))


@vjp(aten.dot.default)
def dot(cotangent: Tensor, out: Tensor, x: Tensor, y: Tensor) -> Cotangents:
    """dx = g y^*, dy = g x^*."""
    return (lambda: cotangent * conjugate(y), lambda: cotangent * conjugate(x))


@vjp(aten.convolution_backward.default)
def convolution_backward(
    cotangents: Sequence[Tensor | None],
    outs: Sequence[Tensor],
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Cotangents:
    """Of the gradients of y = x * w + b, which are bilinear in g and x, and in g and w.

    With cotangents hx, hw, hb of the three gradients,

        <hx, g w^T> + <hw, x^T g> + <hb, sum g> = <hx * w + x * hw + hb, g>,

    so the cotangent of g is a sum of convolutions, and those of x and w are the gradients of y with
    hw in place of w and hx in place of x.
    """
    of_x, of_weight, of_bias = cotangents
    settings = (stride, padding, dilation, transposed, output_padding, groups)

    def of_g() -> torch.Tensor:
        terms: list[torch.Tensor] = []
        if of_x is not None:
            terms.append(aten.convolution(of_x, weight, of_bias, *settings))
        elif of_bias is not None:
            terms.append(of_bias.reshape(-1, *[1] * (g.dim() - 2)).expand(g.shape))
        if of_weight is not None:
            terms.append(aten.convolution(x, of_weight, None, *settings))
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]

    def at_weight() -> torch.Tensor:
        mask = [True, False, False]
        gradients = aten.convolution_backward(g, x, of_weight, None, *settings, mask)
        return gradients[0]  # type: ignore[no-any-return]

    def at_x() -> torch.Tensor:
        mask = [False, True, False]
        gradients = aten.convolution_backward(g, of_x, weight, None, *settings, mask)
        return gradients[1]  # type: ignore[no-any-return]

    return (
        of_g,
        None if of_weight is None else at_weight,
        None if of_x is None else at_x,
    )
