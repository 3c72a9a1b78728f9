"""Functions that tests of transforms differentiate."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.parity import plain


def scalar(x: Tensor) -> Tensor:
    return (x.sin() * x.exp()).sum() + (x**4).mean()


def vector(x: Tensor) -> Tensor:
    return torch.stack([x[0] * x[1], x[1].sin(), x[2] ** 3, x.prod()])


def of_tree(tree: dict[str, Any], scale: float = 1.0) -> Tensor:
    return (tree["a"].sin() @ tree["b"][0]).square().sum() * scale + tree["b"][1].sum()  # type: ignore[no-any-return]


def tree() -> dict[str, Any]:
    return {"a": plain(2, 3), "b": (plain(3, 2), plain(4))}


def close(mine: Any, theirs: Any) -> None:
    torch.testing.assert_close(mine, theirs)
