import pytest
import torch

from tests.rules.rows import is_right, real

REDUCTIONS = ["sum", "mean", "max", "min", "prod"]


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_segments_have_a_second_derivative(reduce: str) -> None:
    initial = 1.0 if reduce == "prod" else 0.0
    lengths, offsets = torch.tensor([2, 0, 3]), torch.tensor([[0, 2, 5], [0, 3, 5]])

    def by_length(x: torch.Tensor) -> torch.Tensor:
        return torch.segment_reduce(x, reduce, lengths=lengths, axis=0, initial=initial)

    def by_offset(x: torch.Tensor) -> torch.Tensor:
        return torch.segment_reduce(x, reduce, offsets=offsets, axis=1, initial=initial)

    is_right(by_length, real(5, 3))
    is_right(by_offset, real(2, 5, 3))


def test_one_zero_in_a_product_has_a_second_derivative() -> None:
    x = torch.tensor([2.0, 0.0, 3.0, 4.0], dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([3, 1])
    is_right(lambda x: torch.segment_reduce(x, "prod", lengths=lengths, initial=1.0), x)
