from __future__ import annotations

import math

import pytest
import torch

from adjoint.emit.spelling import literal


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (True, torch.bool, "true"),
        (-3, torch.int8, "-3"),
        (1.0, torch.float32, "0x3FF0000000000000"),
        (0.1, torch.float32, "0x3FB99999A0000000"),
        (0.1, torch.float64, "0x3FB999999999999A"),
        (-0.0, torch.float64, "0x8000000000000000"),
        (math.inf, torch.float32, "0x7FF0000000000000"),
        (1.0, torch.float16, "0xH3C00"),
        (0.1, torch.bfloat16, "0x3FB9A00000000000"),
    ],
)
def test_a_literal(value: float, dtype: torch.dtype, text: str) -> None:
    assert literal(value, dtype) == text
