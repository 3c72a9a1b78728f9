"""Sparse and complex tensors."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor

from tests.parity import ROUTES, Route, Row, Table, leaf, plain

Pair: TypeAlias = tuple[Tensor, Tensor]

TABLE = Table()
SPARSE = Table()
"""Dynamo does not trace sparse tensors."""


def coo() -> Pair:
    return torch.tensor([[1.0, 0], [0, 2]]).double().to_sparse(), leaf(2, 2)


def coo_leaf() -> Pair:
    return torch.tensor([[1.0, 0], [0, 2]]).double().to_sparse().requires_grad_(), leaf(2, 2)


def csr() -> Pair:
    return torch.tensor([[1.0, 0], [0, 2]]).double().to_sparse_csr(), leaf(2, 2)


def dense() -> Pair:
    return leaf(2, 2), leaf(2, 2)


@SPARSE(coo)
def multiplies(s: Tensor, y: Tensor) -> Any:
    return s @ y


@SPARSE(coo_leaf)
def multiplies_with_gradient(s: Tensor, y: Tensor) -> Any:
    return torch.sparse.mm(s, y).sin()


@SPARSE(coo)
def returns_sparse(s: Tensor, y: Tensor) -> Any:
    return s * 2, s + s, s.to_dense() * y


@SPARSE(coo)
def takes_apart(s: Tensor, y: Tensor) -> Any:
    s = s.coalesce()
    return s.indices() + 1, s.values() * 2


@SPARSE(dense)
def makes_sparse(x: Tensor, y: Tensor) -> Any:
    return torch.sparse.mm(x.to_sparse(), y)


@SPARSE(csr)
def multiplies_rows(s: Tensor, y: Tensor) -> Any:
    return s @ y, s.to_dense() + y


def complexes() -> Pair:
    return leaf(3, dtype=torch.complex128), leaf(3, dtype=torch.complex128)


def plain_complexes() -> Pair:
    return plain(3, dtype=torch.complex128), plain(3, dtype=torch.complex128)


def reals() -> Pair:
    return leaf(3), leaf(3)


@TABLE(complexes, order=2)
def complex_arithmetic(x: Tensor, y: Tensor) -> Any:
    return x * y.conj() + 2j, (x / y).abs(), x.real * y.imag, torch.view_as_real(x * y)


@TABLE(reals)
def complex_inside(x: Tensor, y: Tensor) -> Any:
    z = torch.complex(x, y)
    z.real.mul_(2)
    return (z * z.conj()).real.sum(), z.angle(), torch.fft.fft(x).abs()


@TABLE(complexes)
def lazily_conjugated_results(x: Tensor, y: Tensor) -> Any:
    return x.conj(), (x * y).conj(), torch.view_as_real((x * y).conj().resolve_conj())


@TABLE(plain_complexes)
def writes_to_parts(x: Tensor, y: Tensor) -> Any:
    x.real.add_(1)
    x.imag[1:].mul_(2)
    torch.view_as_real(y)[0, 1] = 7.0
    return x * y


@TABLE(plain_complexes)
def writes_through_a_conjugate(x: Tensor, y: Tensor) -> Any:
    x.conj().mul_(2j)
    return x + y


@TABLE(lambda: (plain(3, dtype=torch.complex128).conj(), plain(3, dtype=torch.complex128)))
def a_conjugated_input(x: Tensor, y: Tensor) -> Any:
    x.mul_(2j)
    return x * y, x.real


@SPARSE(coo)
def add_to_sparse(s: Tensor, y: Tensor) -> Any:
    s.mul_(2)
    return s @ y


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("row", TABLE, ids=str)
def test_layouts_are_eagers(row: Row, route: Route) -> None:
    row.check(route)


@pytest.mark.parametrize("row", SPARSE, ids=str)
def test_sparse_tensors_are_eagers(row: Row) -> None:
    row.check(Route.DIRECT)
