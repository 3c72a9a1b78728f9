"""Which arguments a transform is with respect to, against `torch.func`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from tests.functions import close, of_tree, tree
from tests.parity import plain

func: Any = torch.func


@pytest.mark.parametrize("argnums", [0, 1, -1, (0, 1), (1, 0), (1,)])
@pytest.mark.parametrize("name", ["grad", "jacrev", "jacfwd", "hessian"])
def test_argnums(name: str, argnums: Any) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x.sin() * y**2).sum() * x.prod()

    x, y = plain(2), plain(2)
    mine = getattr(adjoint, name)(function, argnums)(x, y)
    # `torch.func.jacfwd` gives zeros for argument -1.
    place = 1 if argnums == -1 else argnums
    close(mine, getattr(func, name)(function, place)(x, y))


@pytest.mark.parametrize("name", ["grad", "jacrev", "jacfwd", "hessian"])
def test_trees(name: str) -> None:
    given = tree()
    close(getattr(adjoint, name)(of_tree)(given), getattr(func, name)(of_tree)(given))


def test_other_arguments_and_keywords() -> None:
    given = tree()
    close(adjoint.grad(of_tree)(given, 2.0), func.grad(of_tree)(given, 2.0))
    close(adjoint.grad(of_tree)(given, scale=3.0), func.grad(of_tree)(given, scale=3.0))
    close(adjoint.grad(of_tree)(given, scale=4.0), func.grad(of_tree)(given, scale=4.0))
