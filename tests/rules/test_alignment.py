from typing import Any

import pytest
import torch
from torch.nn.functional import ctc_loss

from tests.differentiation import check
from tests.rules.rows import is_right, real

PADDED = torch.tensor([[1, 2, 2], [1, 3, 2]])
IN_A_ROW = torch.tensor([1, 2, 2, 1, 3])


@pytest.mark.parametrize(
    ("targets", "inputs", "lengths", "options"),
    [
        (PADDED, (4, 3), (3, 2), {}),
        (PADDED, torch.tensor([4, 3]), torch.tensor([3, 2]), {"reduction": "none"}),
        (IN_A_ROW, (4, 3), (3, 2), {"reduction": "sum"}),
        (IN_A_ROW, torch.tensor([4, 3]), torch.tensor([3, 2]), {"reduction": "sum"}),
        (IN_A_ROW, (3, 3), (3, 2), {"zero_infinity": True}),
        (torch.tensor([[1, 0, 0], [1, 3, 2]]), (4, 3), (3, 0), {"blank": 2}),
    ],
    ids=["padded", "tensors", "in-a-row", "in-a-row-tensors", "impossible", "empty"],
)
def test_the_loss_has_a_second_derivative(
    targets: torch.Tensor, inputs: Any, lengths: Any, options: Any
) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return ctc_loss(x.log_softmax(-1), targets, inputs, lengths, **options)

    check(function, [real(4, 2, 4)], 1)
    is_right(function, real(4, 2, 4), first=False)


def test_one_sequence_needs_no_batch() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        lengths = torch.tensor(5), torch.tensor(2)
        return ctc_loss(x.log_softmax(-1), torch.tensor([1, 2]), *lengths)

    is_right(function, real(5, 4), first=False)


def test_an_impossible_target_is_as_in_eager() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        inputs: Any = (3, 3)
        lengths: Any = (3, 2)
        return ctc_loss(x.log_softmax(-1), IN_A_ROW, inputs, lengths, reduction="none")

    check(function, [real(4, 2, 4)], 1)
