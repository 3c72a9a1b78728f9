from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from tests.differentiation import bridged, check


def matrices(*shape: int, dtype: torch.dtype = torch.complex128) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(shape, dtype=dtype, generator=generator).requires_grad_()


def hermitian(a: Tensor) -> Tensor:
    return a + a.mH


CALLS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Tensor], Tensor]]] = {
    "eig": (torch.linalg.eig, lambda a: a),
    "eigh": (torch.linalg.eigh, hermitian),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("name", CALLS)
def test_eigenvalues_and_vectors(name: str, dtype: torch.dtype) -> None:
    op, prepared = CALLS[name]

    def values(a: Tensor) -> Tensor:
        return op(prepared(a))[0].abs()  # type: ignore[no-any-return]

    def vectors(a: Tensor) -> Tensor:
        return op(prepared(a))[1].abs()  # type: ignore[no-any-return]

    def both(a: Tensor) -> Tensor:
        found, along = op(prepared(a))
        return (along.abs() * found.abs().unsqueeze(-2)).sin()  # type: ignore[no-any-return]

    for function in (values, vectors, both):
        check(function, [matrices(2, 3, 3, dtype=dtype)], 2)


def from_singular_values(*values: float) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    shape = (2, len(values), len(values))
    left, right = torch.linalg.qr(torch.randn(shape, dtype=torch.float64, generator=generator))[0]
    matrix: Tensor = left @ torch.tensor(values, dtype=torch.float64).diag() @ right
    return matrix


@pytest.mark.parametrize(
    "matrix",
    [
        matrices(3, 3, dtype=torch.float64),
        matrices(2, 3, 3),
        matrices(1, 1, dtype=torch.float64),
        matrices(2, 0, 0, dtype=torch.float64),
        2 * torch.eye(3, dtype=torch.float64),
        from_singular_values(3, 2, 0),
        from_singular_values(3, 0, 0),
        torch.stack([from_singular_values(3, 2, 0), from_singular_values(2, 2, 1)]),
    ],
    ids=["any", "stack", "number", "empty", "equal", "singular", "rank-one", "mixed"],
)
def test_determinants(matrix: Tensor) -> None:
    """To the second derivative, also where singular values are equal or zero."""
    check(lambda a: torch.linalg.det(a).abs() ** 2, [matrix.detach().requires_grad_()], 2)


@pytest.mark.parametrize("name", ["eig", "eigh", "svd"])
def test_a_loss_that_depends_on_phases_is_refused_as_in_eager(name: str) -> None:
    def loss(a: Tensor) -> Tensor:
        if name == "svd":
            return torch.linalg.svd(a)[0].real.sum()  # type: ignore[no-any-return]
        op, prepared = CALLS[name]
        return op(prepared(a))[1].real.sum()  # type: ignore[no-any-return]

    a = matrices(3, 3)
    with pytest.raises(RuntimeError) as eager:
        torch.autograd.grad(loss(a), a)
    assert "up to multiplication by" in str(eager.value)
    with pytest.raises(RuntimeError) as bridge:
        torch.autograd.grad(bridged(loss, a)(a), a)
    with pytest.raises(RuntimeError) as transform:
        adjoint.grad(loss)(a.detach())
    told = str(eager.value).splitlines()[0]
    assert str(bridge.value).splitlines()[0] == str(transform.value).splitlines()[0] == told


def test_the_condition_is_that_of_every_row_of_a_jacobian() -> None:
    def sizes(a: Tensor) -> Tensor:
        return torch.linalg.eig(a)[1].abs()  # type: ignore[no-any-return]

    a = matrices(3, 3, dtype=torch.float64).detach()
    rows = torch.func.jacrev(sizes)(a)
    torch.testing.assert_close(adjoint.jacrev(sizes)(a), rows)
