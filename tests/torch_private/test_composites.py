from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from adjoint.torch_private.composites import composites_as_in_eager
from adjoint.torch_private.fake import make_fake, new_fake_mode

aten = torch.ops.aten


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ x.mT,
        lambda x: x @ x[0].mT,
        lambda x: F.dropout(x, 0.5, training=False),
        lambda x: F.dropout(x, 0.0),
    ],
)
def test_the_same_views_as_in_eager(function: Callable[..., Any], dynamic: bool) -> None:
    real = torch.randn(2, 4, 3)
    mode = new_fake_mode()
    fake = make_fake(mode, real, dynamic, "x")
    with mode, composites_as_in_eager():
        result: Tensor = function(fake)
    expected: Tensor = function(real)
    assert (result is fake) == (expected is real)
    assert result._is_view() == expected._is_view()


def test_composites_under_torch_func() -> None:
    mode = new_fake_mode()
    fake = make_fake(mode, torch.randn(4, 4), False, "x")
    with mode, composites_as_in_eager():
        slope = torch.func.grad(lambda x: F.linear(x @ x, x).sum())(fake)
    assert slope.shape == (4, 4)


def test_kernels_are_put_back() -> None:
    before = dict(aten.matmul.default.py_kernels)
    with composites_as_in_eager():
        assert dict(aten.matmul.default.py_kernels) != before
    assert dict(aten.matmul.default.py_kernels) == before
