from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.lower.compositions.samples import Row, cases, check, random
from tests.parity import Route
from tests.parity import check as check_parity

aten = torch.ops.aten

IMAGES, WEIGHT, BIAS = random(3, 4, 5, 2), random(4, seed=1), random(4, seed=2)
MEAN, VARIANCE = random(4, seed=3), random(4, seed=4)


def norm(
    x: Tensor, w: Tensor, b: Tensor, mean: Tensor, variance: Tensor, training: bool = True
) -> Any:
    op = aten._native_batch_norm_legit_functional
    return op(x, w, b, mean, variance.abs(), training, 0.1, 1e-5)


def backward(train: bool) -> Callable[..., Any]:
    def call(g: Tensor, x: Tensor, w: Tensor, mean: Tensor, variance: Tensor) -> Any:
        rstd = (variance.abs() + 1e-5).rsqrt()
        given = (mean, variance.abs(), mean, rstd)
        return aten.native_batch_norm_backward(g, x, w, *given, train, 1e-5, [True] * 3)

    return call


ROWS: list[Row] = [
    (
        aten._native_batch_norm_legit_functional.default,
        norm,
        [IMAGES, WEIGHT, BIAS, MEAN, VARIANCE],
    ),
    (
        aten._native_batch_norm_legit_functional.default,
        norm,
        [random(7, 4), WEIGHT, BIAS, MEAN, VARIANCE],
    ),
    (
        aten._native_batch_norm_legit_functional.default,
        lambda x, *given: norm(x.to(memory_format=torch.channels_last), *given),
        [IMAGES, WEIGHT, BIAS, MEAN, VARIANCE],
    ),
    (
        aten.native_batch_norm.default,
        lambda x, w, b: aten.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5),
        [IMAGES, WEIGHT, BIAS],
    ),
    (
        aten.native_batch_norm.default,
        lambda x, w, b, m, v: aten.native_batch_norm(x, w, b, m, v.abs(), False, 0.1, 1e-5),
        [IMAGES, WEIGHT, BIAS, MEAN, VARIANCE],
    ),
    (
        aten._native_batch_norm_legit.no_stats,
        lambda x, w, b: aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5),
        [IMAGES, WEIGHT, BIAS],
    ),
    (
        aten._native_batch_norm_legit_no_training.default,
        lambda x, w, b, m, v: aten._native_batch_norm_legit_no_training(
            x, w, b, m, v.abs(), 0.1, 1e-5
        ),
        [IMAGES, WEIGHT, BIAS, MEAN, VARIANCE],
    ),
    (
        aten.native_batch_norm_backward.default,
        backward(True),
        [random(3, 4, 5, 2, seed=5), IMAGES, WEIGHT, MEAN, VARIANCE],
    ),
    (
        aten.native_batch_norm_backward.default,
        backward(False),
        [random(3, 4, 5, 2, seed=5), IMAGES, WEIGHT, MEAN, VARIANCE],
    ),
]


@cases(ROWS)
def test_it_computes_what_eager_does(row: Row, dtype: torch.dtype) -> None:
    check(row, dtype)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "images": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
    ),
    "rows": lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.SiLU()),
    "no affine": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)),
    "no statistics": lambda: nn.BatchNorm2d(3, track_running_stats=False),
    "instances": lambda: nn.InstanceNorm2d(3, affine=True),
    "given": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval(),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_modules_train_as_in_eager(name: str, layout: torch.memory_format) -> None:
    def inputs() -> tuple[nn.Module, Tensor]:
        torch.manual_seed(0)
        x = torch.randn((5, 6) if name == "rows" else (5, 3, 8, 7), dtype=torch.float64)
        if name != "rows":
            x = x.to(memory_format=layout)
        return MODULES[name]().double(), x.requires_grad_()

    module, _ = inputs()
    check_parity(module, lambda: inputs()[1], Route.DYNAMO, order=2)


def test_batches_of_any_size_have_one_program() -> None:
    """Counts are symbolic: they are arguments of kernels."""

    def trained(compiled: bool) -> list[Tensor]:
        torch.manual_seed(0)
        net = MODULES["images"]().double()
        run = torch.compile(net, backend="adjoint", dynamic=True) if compiled else net
        for count in (4, 3, 7):
            run(torch.randn(count, 3, 8, 7, dtype=torch.float64)).square().sum().backward()
        gradients = [p.grad for p in net.parameters() if p.grad is not None]
        return [*gradients, *net.buffers()]

    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        ours = trained(True)
    for mine, other in zip(ours, trained(False), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10)
