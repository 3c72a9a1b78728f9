"""Eigendecompositions and determinants, whose formulas in torch look at values.

Traced, that of eigendecompositions would lose the check of eigenvector phases, and that of
determinants would be the one for singular matrices, which has no derivative where singular values
are equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adjoint.graph.operations import provided
from adjoint.rules.registry import Cotangents, vjp

aten = torch.ops.aten


@vjp(aten.linalg_eig.default)
def eig(cotangent: Sequence[Tensor | None], out: Sequence[Tensor], matrix: Tensor) -> Cotangents:
    """V^-H (diag(gL) + (V^H gV - V^H V diag(re diag(V^H gV))) / E) V^H, E = conj(L_j - L_i)"""
    values, vectors = out
    adjoint = vectors.mH
    inner = None
    if cotangent[1] is not None:
        inner = adjoint @ cotangent[1]
        # Eigenvectors have norm one: the component of the cotangent along them has no effect.
        inner = inner - adjoint @ (vectors * _diagonal(inner).real.unsqueeze(-2))
    inner = _over_gaps(inner, values.conj(), cotangent[0])
    gradient = torch.linalg.solve(adjoint, inner @ adjoint)
    return (_without_phase(gradient, cotangent[1], vectors, "eig"),)


@vjp(aten._linalg_eigh.default)
def eigh(
    cotangent: Sequence[Tensor | None], out: Sequence[Tensor], matrix: Tensor, *_: object
) -> Cotangents:
    """V (diag(gL) + skew(V^H gV) / E) V^H, E = L_j - L_i"""
    values, vectors = out
    inner = None
    if cotangent[1] is not None:
        inner = vectors.mH @ cotangent[1]
        # Eigenvectors stay orthonormal: their derivative is V times a skew-Hermitian matrix.
        inner = (inner - inner.mH) / 2
    inner = _over_gaps(inner, values, cotangent[0])
    gradient = vectors @ inner.to(vectors.dtype) @ vectors.mH
    return (_without_phase(gradient, cotangent[1], vectors, "eigh"),)


@vjp(aten._linalg_det.default)
def det(cotangent: Sequence[Tensor | None], out: Sequence[Tensor], matrix: Tensor) -> Cotangents:
    """g adj(A)^H: g conj(det A) A^-H, or by the singular values of A where it is singular.

    Each formula is computed of a matrix at which it has derivatives where the other one is used.
    """
    value, gradient = out[0], cotangent[0]
    if gradient is None:
        return (None,)
    size = matrix.shape[-1]
    identity = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    is_singular = (value.abs() < 100 * torch.finfo(matrix.dtype).eps)[..., None, None]
    scaled = (gradient * value.conj())[..., None, None] * identity
    inverse = torch.linalg.solve(torch.where(is_singular, identity, matrix).mH, scaled)
    distinct = torch.arange(1, size + 1, device=matrix.device).to(matrix.dtype).diag_embed()
    left, values, right = torch.linalg.svd(torch.where(is_singular, matrix, distinct))
    others = torch.where(identity != 0, 1, values.unsqueeze(-2)).prod(-1)
    phase = (torch.linalg.det(left) * torch.linalg.det(right)).conj() * gradient
    adjugate = (left * (phase[..., None] * others).unsqueeze(-2)) @ right
    return (torch.where(is_singular, adjugate, inverse),)


def _over_gaps(
    inner: torch.Tensor | None, values: torch.Tensor, diagonal: torch.Tensor | None
) -> torch.Tensor:
    """Off the diagonal, `inner` divided by the gaps between eigenvalues; `diagonal` on it."""
    if inner is None:
        assert diagonal is not None, "one of the results has a cotangent"
        return torch.diag_embed(diagonal)
    gaps = values.unsqueeze(-2) - values.unsqueeze(-1)
    gaps = gaps + torch.diag_embed(torch.ones_like(values))
    on_diagonal = _diagonal(inner) if diagonal is None else _diagonal(inner) - diagonal
    return inner / gaps - torch.diag_embed(on_diagonal)


def _without_phase(
    gradient: torch.Tensor, of_vectors: torch.Tensor | None, vectors: torch.Tensor, op: str
) -> torch.Tensor:
    """The gradient; an error in the run if the loss depends on the phases of the eigenvectors."""
    if of_vectors is None or not vectors.is_complex():
        return gradient
    along_phases = _diagonal(vectors.mH @ of_vectors).imag
    zeros = torch.zeros_like(along_phases)
    small = torch.isclose(along_phases, zeros, rtol=1e-2, atol=1e-2).all()
    message = (
        f"linalg_{op}_backward: The eigenvectors in the complex case are specified up to "
        "multiplication by e^{i phi}. The specified loss function depends on this quantity, "
        "so it is ill-defined."
    )
    checked: torch.Tensor = provided(gradient, small, message)
    return checked


def _diagonal(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.diagonal(0, -2, -1)
