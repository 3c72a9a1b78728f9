from typing import Any

import pytest
import torch
from torch.nn.functional import batch_norm, group_norm, layer_norm, rms_norm

from adjoint.rules.registry import COMPOSITIONS
from tests.differentiation import bridged, check
from tests.rules.rows import Function, is_right, real

aten = torch.ops.aten

MEAN, VAR = torch.linspace(-1, 1, 4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)

CASES: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "layer": (lambda x, w, b: layer_norm(x, (4,), w, b), [(3, 4), (4,), (4,)]),
    "layer-plain": (lambda x: layer_norm(x, (4,)), [(3, 4)]),
    "group": (lambda x, w, b: group_norm(x, 2, w, b), [(2, 4, 3), (4,), (4,)]),
    "group-plain": (lambda x: group_norm(x, 2), [(2, 4, 3)]),
    "rms": (lambda x, w: rms_norm(x, (4,), w), [(3, 4), (4,)]),
    "rms-fused": (lambda x, w: aten._fused_rms_norm(x, (4,), w, 1e-6)[0], [(3, 4), (4,)]),
    "batch": (lambda x, w, b: batch_norm(x, None, None, w, b, True), [(3, 4), (4,), (4,)]),
    "batch-eval": (lambda x, w, b: batch_norm(x, MEAN, VAR, w, b, False), [(3, 4), (4,), (4,)]),
    "batch-functional": (
        lambda x, w, b: aten._native_batch_norm_legit_functional(
            x, w, b, MEAN, VAR, True, 0.1, 1e-5
        )[0],
        [(3, 4), (4,), (4,)],
    ),
    "batch-no-training": (
        lambda x, w, b: aten._native_batch_norm_legit_no_training(x, w, b, MEAN, VAR, 0.1, 1e-5)[0],
        [(3, 4), (4,), (4,)],
    ),
    "weight": (lambda v, g: torch._weight_norm(v, g, 0), [(3, 4), (3, 1)]),
}


@pytest.mark.parametrize("name", CASES)
def test_normalizations_have_a_second_derivative(name: str) -> None:
    function, shapes = CASES[name]
    is_right(function, *(real(*shape, seed=i) for i, shape in enumerate(shapes)))


@pytest.mark.parametrize("name", ["layer", "layer-plain", "group", "rms-fused", "batch", "weight"])
def test_they_have_a_third(name: str) -> None:
    function, shapes = CASES[name]
    inputs = [real(*shape, seed=i) for i, shape in enumerate(shapes)]
    compiled = bridged(function, *inputs)

    def slope(*inputs: torch.Tensor) -> Any:
        out = compiled(*inputs)
        total = (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum()
        return torch.autograd.grad(total, inputs[0], create_graph=True)[0]

    assert torch.autograd.gradgradcheck(slope, inputs, fast_mode=True)


def test_the_statistics_of_group_norm_have_a_derivative() -> None:
    def function(x: torch.Tensor) -> Any:
        return aten.native_group_norm(x, None, None, 2, 4, 3, 2, 1e-5)

    check(function, [real(2, 4, 3)], 1)
    is_right(lambda x: function(x)[2], real(2, 4, 3))


def test_other_kernels_of_batch_norm_have_the_same_backward() -> None:
    x, g, w = real(3, 4), real(3, 4, seed=1), real(4, seed=2)
    wanted = torch.autograd.grad(batch_norm(x, None, None, w, w, True), [x, w], g)
    mean, every = x.mean(0), [True] * 3
    made = COMPOSITIONS[aten.batch_norm_backward.default](
        g, x, w, None, None, mean, mean, True, 1e-5, every, mean
    )
    torch.testing.assert_close((made[0], made[1] + made[2]), wanted)
    made = COMPOSITIONS[aten.cudnn_batch_norm_backward.default](
        x, g, w, None, None, mean, mean, 1e-5, mean
    )
    torch.testing.assert_close((made[0], made[1] + made[2]), wanted)


def test_a_cotangent_of_weight_norm_may_be_a_transpose() -> None:
    def layer(x: torch.Tensor, direction: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, torch._weight_norm(direction, length, 0))

    inputs = [real(2, 3), real(4, 3, seed=1), real(4, 1, seed=2)]
    check(layer, inputs, 1)
    is_right(layer, *inputs)


def test_a_cotangent_may_lie_in_memory_in_any_way() -> None:
    x = real(2, 4, 3)
    compiled = bridged(lambda x: group_norm(x, 2), x)
    for g in (real(3, 4, 2).detach().permute(2, 1, 0), torch.ones(1).double().expand(2, 4, 3)):
        wanted = torch.autograd.grad(group_norm(x, 2), x, g)
        torch.testing.assert_close(torch.autograd.grad(compiled(x), x, g), wanted)
