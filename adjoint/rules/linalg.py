"""Eigenvectors, where torch's formula, traced, leaves out a check that eager makes."""

from __future__ import annotations

from typing import Any

import torch

from adjoint.graph.operations import provided
from adjoint.rules.registry import vjp

aten = torch.ops.aten


@vjp(aten.linalg_eig.default)
def eig(cotangent: Any, out: Any, matrix: Any) -> Any:
    """V^-H (diag(gL) + (V^H gV - V^H V diag(re diag(V^H gV))) / E) V^H, E = conj(L_j - L_i)"""
    values, vectors = out
    adjoint = vectors.mH
    inner = None
    if cotangent[1] is not None:
        inner = adjoint @ cotangent[1]
        # An eigenvector has norm one: its cotangent along itself means nothing.
        inner = inner - adjoint @ (vectors * _diagonal(inner).real.unsqueeze(-2))
    inner = _between(inner, values.conj(), cotangent[0])
    gradient = torch.linalg.solve(adjoint, inner @ adjoint)
    return (_without_phase(gradient, cotangent[1], vectors, "eig"),)


@vjp(aten._linalg_eigh.default)
def eigh(cotangent: Any, out: Any, matrix: Any, *_: Any) -> Any:
    """V (diag(gL) + skew(V^H gV) / E) V^H, E = L_j - L_i"""
    values, vectors = out
    inner = None
    if cotangent[1] is not None:
        inner = vectors.mH @ cotangent[1]
        # Eigenvectors stay orthonormal, so that they move by a skew-Hermitian matrix.
        inner = (inner - inner.mH) / 2
    inner = _between(inner, values, cotangent[0])
    gradient = vectors @ inner.to(vectors.dtype) @ vectors.mH
    return (_without_phase(gradient, cotangent[1], vectors, "eigh"),)


def _between(inner: torch.Tensor | None, values: torch.Tensor, diagonal: Any) -> torch.Tensor:
    """Off the diagonal, `inner` over the distances of the eigenvalues; `diagonal` on it."""
    if inner is None:
        return torch.diag_embed(diagonal)
    distances = values.unsqueeze(-2) - values.unsqueeze(-1)
    distances = distances + torch.diag_embed(torch.ones_like(values))
    on_diagonal = _diagonal(inner) if diagonal is None else _diagonal(inner) - diagonal
    return inner / distances - torch.diag_embed(on_diagonal)


def _without_phase(
    gradient: torch.Tensor, of_vectors: torch.Tensor | None, vectors: torch.Tensor, op: str
) -> torch.Tensor:
    """The gradient, unless it is of a loss that depends on the phases of complex eigenvectors."""
    if of_vectors is None or not vectors.is_complex():
        return gradient
    turned = _diagonal(vectors.mH @ of_vectors).imag
    small = torch.isclose(turned, torch.zeros_like(turned), rtol=1e-2, atol=1e-2).all()
    message = (
        f"linalg_{op}_backward: The eigenvectors in the complex case are specified up to "
        "multiplication by e^{i phi}. The specified loss function depends on this quantity, "
        "so it is ill-defined."
    )
    checked: torch.Tensor = provided(gradient, small, message)
    return checked


def _diagonal(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.diagonal(0, -2, -1)
