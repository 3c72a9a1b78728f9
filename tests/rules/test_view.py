import pytest
import torch

from tests.differentiation import bridged
from tests.rules.rows import Row, agrees, has_rule, is_right, real

X = [(3, 4)]

ROWS = [
    Row("view", lambda x: x.view(2, 6).sin(), X, complex=True),
    Row("unsqueeze", lambda x: x.unsqueeze(1).sin(), X),
    Row("squeeze", lambda x: x.squeeze(1).sin(), [(3, 1)]),
    Row("squeeze-all", lambda x: x.squeeze().sin(), [(3, 1, 1)]),
    Row("squeeze-several", lambda x: x.squeeze((0, 2)).sin(), [(1, 3, 1)]),
    Row("expand", lambda x: x.expand(2, 3, 4).sin(), [(3, 1)]),
    Row("permute", lambda x: x.permute(2, 0, -2).sin(), [(2, 3, 4)]),
    Row("transpose", lambda x: x.transpose(0, -1).sin(), [(2, 3, 4)]),
    Row("t", lambda x: x.t().sin(), X),
    Row("flip", lambda x: x.flip([1]).sin(), X),
    Row("roll", lambda x: x.roll(1, 1).sin(), X),
    Row("roll-all", lambda x: x.roll(2).sin(), X),
    Row("select", lambda x: x.select(1, -1).sin(), X),
    Row("slice", lambda x: x[:, 1:4:2].sin(), X),
    Row("slice-none", lambda x: x[5:].sin(), X),
    Row("diagonal", lambda x: x.diagonal(1).sin(), X),
    Row("cat", lambda x, y: torch.cat([x, y, x], -1).sin(), [(3, 2), (3, 1)]),
    Row("cat-empty", lambda x, y: torch.cat([x, y], 1).sin(), [(3, 2), (0,)]),
    Row("stack", lambda x, y: torch.stack([x, y], -1).sin(), [(3,), (3,)]),
    Row("unbind", lambda x: x.unbind(1)[2].sin(), X),
    Row("split", lambda x: x.split(3, 1)[1].sin(), X),
    Row("split-sizes", lambda x: [p.sin() for p in x.split([1, 3], 1)], X),
    Row("pad", lambda x: torch.nn.functional.pad(x, (1, -1, 0, 2), value=3.0).sin(), X),
    Row("conj", lambda x: x.conj() * x, X, complex=True),
    Row("clone", lambda x: x.clone().sin(), X),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_derivatives_are_eagers(row: Row) -> None:
    assert has_rule(row)
    agrees(row)


def test_what_as_strided_scatter_writes_over_has_no_derivative() -> None:
    """Eager has it the other way round."""

    def function(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return torch.as_strided_scatter(x, source, (2,), (2,), 1).sin()

    is_right(function, real(4), real(2, seed=1))


def test_frames_of_a_part_of_a_tensor_have_its_gradient() -> None:
    def frames(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((4, 7), (1, 1)).sin()

    x = real(20).detach()[10:].requires_grad_()
    cotangent = real(4, 7, seed=1).detach()
    (wanted,) = torch.autograd.grad(frames(x), x, cotangent)
    (found,) = torch.autograd.grad(bridged(frames, x)(x), x, cotangent)
    torch.testing.assert_close(found, wanted)
    is_right(frames, x)
