from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import adjoint
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


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_what_is_drawn_after_a_dropout_is_as_in_eager(p: float, dynamic: bool) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return F.dropout(x, p), torch.rand(2)

    compiled = adjoint.compile(program, dynamic=dynamic, eager_rng=True)
    found = []
    for function in (compiled, program):
        torch.manual_seed(0)
        x = torch.ones(3, 4, requires_grad=True)
        y, drawn = function(x)
        found.append((y, drawn, *torch.autograd.grad(y.sum(), x)))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("q", [0.3, torch.tensor([0.3, 0.7])])
@pytest.mark.parametrize("function", [torch.quantile, torch.nanquantile])
def test_arguments_without_data_are_not_checked_in_capture(
    function: Callable[..., Tensor], q: float | Tensor, inference: bool
) -> None:
    mode = new_fake_mode()
    given = (torch.randn(4, 3), q)
    fakes = [
        make_fake(mode, each, False, "x") if isinstance(each, Tensor) else each for each in given
    ]
    with torch.inference_mode(inference), mode, composites_as_in_eager():
        result = function(*fakes, dim=0)
    assert result.shape == function(*given, dim=0).shape


def test_a_quantile_out_of_range_is_refused_in_the_run() -> None:
    x, q = torch.randn(4, 3), torch.tensor([1.5])
    captured = adjoint.capture(torch.quantile, x, torch.tensor([0.5]))
    with pytest.raises(RuntimeError, match=r"out of bounds|in the range"):
        adjoint.run(captured, x, q)


def test_windows_with_a_gap_are_refused_in_the_run() -> None:
    spectrum, window = torch.randn(5, 3, dtype=torch.complex64), torch.ones(8)
    captured = adjoint.capture(torch.istft, spectrum, 8, window=window)
    found = adjoint.run(captured, spectrum, 8, window=window)
    torch.testing.assert_close(found, torch.istft(spectrum, 8, window=window))
    with pytest.raises(RuntimeError, match="leave a gap"):
        adjoint.run(captured, spectrum, 8, window=torch.zeros(8))


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
