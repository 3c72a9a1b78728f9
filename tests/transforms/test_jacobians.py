"""Jacobians against `torch.func`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from tests.functions import close, vector
from tests.parity import plain

func: Any = torch.func


@pytest.mark.parametrize("name", ["jacrev", "jacfwd", "hessian"])
def test_of_a_vector(name: str) -> None:
    x = plain(3)
    close(getattr(adjoint, name)(vector)(x), getattr(func, name)(vector)(x))


def test_results_in_a_tree() -> None:
    def function(x: Tensor) -> dict[str, Any]:
        return {"a": x.sin(), "b": [x.sum(), x * 2]}

    x = plain(3)
    for name in ("jacrev", "jacfwd"):
        close(getattr(adjoint, name)(function)(x), getattr(func, name)(function)(x))


def test_rows_in_chunks() -> None:
    x = plain(3)
    close(adjoint.jacrev(vector, chunk_size=2)(x), func.jacrev(vector)(x))


@pytest.mark.parametrize("name", ["jacrev", "jacfwd"])
def test_nothing_by_something_and_something_by_nothing(name: str) -> None:
    for rows, columns in [(0, 3), (2, 0)]:
        x, w = plain(columns), plain(rows, columns)
        found = getattr(adjoint, name)(lambda w, x: w @ x, (0, 1))(w, x)
        assert [each.shape for each in found] == [(rows, rows, columns), (rows, columns)]


@pytest.mark.parametrize("name", ["jacrev", "jacfwd"])
def test_blocks_of_zeros_can_be_written_to(name: str) -> None:
    x, y = plain(3), plain(3)
    blocks = getattr(adjoint, name)(lambda x, y: (x.sin(), y * 2), (0, 1))(x, y)
    for row, block in [(0, blocks[0][1]), (1, blocks[1][0])]:
        block.fill_diagonal_(1)
        assert torch.equal(block, torch.eye(3, dtype=torch.float64)), row


@pytest.mark.parametrize(
    "outer",
    ["jacrev", "jacfwd"],
)
@pytest.mark.parametrize("inner", ["jacrev", "jacfwd"])
def test_nested_jacobians(outer: str, inner: str) -> None:
    x = plain(3)

    def nested(namespace: Any) -> Any:
        return getattr(namespace, outer)(getattr(namespace, inner)(vector))(x)

    close(nested(adjoint), nested(func))


def test_the_hessian_of_a_hessian() -> None:
    x = plain(2)

    def function(x: Tensor) -> Tensor:
        return (x**4).prod()

    mine = adjoint.hessian(adjoint.hessian(function))(x)
    close(mine, func.hessian(func.hessian(function))(x))
