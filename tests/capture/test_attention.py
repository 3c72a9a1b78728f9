"""Attention is captured as a fused kernel, whatever the layout of its mask."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import adjoint
from adjoint.capture.attention import with_dense_rows
from tests.parity import Route, check

BATCH, HEADS, LENGTH, WIDTH = 2, 3, 5, 4


@pytest.mark.parametrize(
    ("mask", "strides"),
    [
        (torch.ones(2, 1, 5, 1).expand(2, 1, 5, 5), (5 * 5, 5 * 5, 5, 1)),
        (torch.ones(1, 1, 5, 1).expand(2, 1, 5, 5), (0, 5 * 5, 5, 1)),
        (torch.ones(5, 5).t(), (5, 1)),
        (torch.ones(5, 5).expand(2, 3, 5, 5), (0, 0, 5, 1)),
        (torch.ones(2, 1, 1, 5).expand(2, 1, 5, 5), (5, 5, 0, 1)),
    ],
)
def test_the_last_axis_of_a_mask_is_dense(mask: Tensor, strides: tuple[int, ...]) -> None:
    dense = with_dense_rows(mask)
    assert dense.shape == mask.shape
    assert [s for n, s in zip(dense.shape, dense.stride(), strict=True) if n > 1] == [
        s for n, s in zip(mask.shape, strides, strict=True) if n > 1
    ]


@pytest.mark.parametrize("boolean", [True, False])
@pytest.mark.parametrize("by_name", [True, False])
def test_masks_that_are_repeated_along_keys(boolean: bool, by_name: bool) -> None:
    """As a program that compares positions of queries alone makes them."""

    def function(query: Tensor, row: Tensor) -> Tensor:
        mask = (row > 0 if boolean else row)[:, None].expand(BATCH, HEADS, LENGTH, LENGTH)
        if by_name:
            return F.scaled_dot_product_attention(query, query, query, attn_mask=mask)
        return F.scaled_dot_product_attention(query, query, query, mask)

    def inputs() -> tuple[Tensor, Tensor]:
        query = torch.randn(BATCH, HEADS, LENGTH, WIDTH, dtype=torch.float64, requires_grad=True)
        return query, torch.rand(LENGTH, dtype=torch.float64) + 0.1

    check(function, inputs, Route.DYNAMO)
    assert "flash_attention" in adjoint.capture(function, *inputs()).show()
