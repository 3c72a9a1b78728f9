import torch

from tests.differentiation import check
from tests.rules.rows import is_right, real

aten = torch.ops.aten


def test_what_is_written_over_has_no_derivative() -> None:
    is_right(lambda x, y: aten.copy(x, y).sin(), real(4, 3), real(3, seed=1))
    is_right(lambda x, y: aten.fill(x, y).sin(), real(4, 3), real(seed=1))
    check(lambda x: aten.fill.Scalar(x, 2.0) + x, [real(4, 3)], 1)
    check(lambda x: aten.zero(x) + x, [real(4, 3)], 1)
    check(lambda x: x.clone().zero_() * x, [real(4, 3).to(torch.complex128).detach()], 1)


def test_a_copy_has_the_same_derivative() -> None:
    is_right(lambda x: aten.lift_fresh_copy(x).sin(), real(4, 3))
    is_right(lambda x, y: aten.select_scatter(x, y, 0, 1).sin(), real(4, 3), real(3))


def test_the_history_is_the_derivative() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        with torch.no_grad():
            y.mul_(3)
        return y.sin()

    check(function, [real(3)], 2)
