import pytest
import torch

from tests.differentiation import bridged, check
from tests.rules.rows import is_right

aten = torch.ops.aten


def arguments(dtype: torch.dtype, channels: int) -> list[torch.Tensor]:
    x = torch.linspace(-4, 4, 4 * channels, dtype=dtype).reshape(4, channels)
    scale = torch.tensor([0.3, 0.2, 0.5][:channels], dtype=dtype)
    zero = torch.tensor([1.3, 0.0, -2.6][:channels], dtype=dtype)
    return [each.requires_grad_() for each in (x, scale, zero)]


def per_tensor(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = aten._fake_quantize_learnable_per_tensor_affine(x, scale, zero, -8, 7, 0.5)
    return out


def per_channel(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    made = aten._fake_quantize_learnable_per_channel_affine(x, scale, zero, 1, -8, 7, 0.5)
    assert isinstance(made, torch.Tensor)
    return made


def test_the_first_derivative_is_eagers() -> None:
    check(per_tensor, arguments(torch.float32, 1), 1)
    check(per_channel, arguments(torch.float32, 3), 1)


def test_one_scale_has_a_second_derivative() -> None:
    is_right(per_tensor, *arguments(torch.float64, 1), first=False)


@pytest.mark.parametrize(("function", "channels"), [(per_tensor, 1), (per_channel, 3)])
def test_kernels_that_know_float32_only_have_one_too(function: object, channels: int) -> None:
    assert callable(function)
    inputs = arguments(torch.float32, channels)
    compiled = bridged(function, *inputs)
    slopes = torch.autograd.grad(compiled(*inputs).sum(), inputs, create_graph=True)
    seconds = torch.autograd.grad(slopes[1].sum(), inputs, allow_unused=True)
    # The cotangent of the scale has -x / scale in it, wherever x is within the range.
    x, scale, zero = (each.detach() for each in inputs)
    level = (x / scale).round() + zero.add(0.5).clamp(-8, 7).trunc()
    inside = (level >= -8) & (level <= 7)
    torch.testing.assert_close(seconds[0], torch.where(inside, -0.5 / scale, 0.0))
