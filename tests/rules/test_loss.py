from typing import Any

import pytest
import torch
from torch.nn.functional import multi_margin_loss, multilabel_margin_loss

import adjoint
from adjoint.rules.loss import linear_cross_entropy
from adjoint.torch_private.operators import chunked_cross_entropy
from tests.rules.rows import is_right, real

CLASSES = torch.tensor([0, 2, 1, 3])
LABELS = torch.tensor([[1, 2, -1, 3, 0], [0, -1, 2, 2, 2], [4, 3, 2, 1, 0], [-1, 0, 0, 0, 0]])
WEIGHT = torch.tensor([1.0, 2.0, 3.0, 0.5, 1.0], dtype=torch.float64)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin_loss_has_a_second_derivative(p: int, reduction: str) -> None:
    is_right(lambda x: multi_margin_loss(x, CLASSES, p, reduction=reduction), real(4, 5))


def test_multi_margin_loss_has_weights_and_takes_one_row() -> None:
    is_right(lambda x: multi_margin_loss(x, CLASSES, 2, 0.5, WEIGHT), real(4, 5))
    is_right(lambda x: multi_margin_loss(x, torch.tensor(1), 2), real(5))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_multilabel_margin_loss_has_a_second_derivative(reduction: str) -> None:
    is_right(lambda x: multilabel_margin_loss(x, LABELS, reduction=reduction), real(4, 5))
    is_right(lambda x: multilabel_margin_loss(x, LABELS[0], reduction=reduction), real(5))


@pytest.mark.skipif(chunked_cross_entropy() is None, reason="torch has no such op yet")
@pytest.mark.parametrize("ignored", [-100, 2])
def test_linear_cross_entropy_in_chunks_has_a_second_derivative(ignored: int) -> None:
    from torch.nn import functional
    from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions

    options: Any = LinearCrossEntropyOptions(batch_chunk_size=2)

    def loss(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.linear_cross_entropy(
            x,
            matrix,
            CLASSES,
            linear_bias=bias,
            weight=WEIGHT,
            ignore_index=ignored,
            reduction="none",
            options=options,
        )

    given = real(4, 3), real(5, 3), real(5)
    assert chunked_cross_entropy() in {
        node.target for node in adjoint.capture(loss, *given).graph_module.graph.nodes
    }
    meant = linear_cross_entropy(given[0], given[1], CLASSES, given[2], WEIGHT, ignored)
    torch.testing.assert_close(loss(*given), meant)
    is_right(loss, *given)
