from __future__ import annotations

import pytest
import torch

from adjoint.lower.compositions.registry import COMPOSITIONS, NoComposition, require_real, widened
from tests.lower.compositions import (
    test_activations,
    test_batch_normalization,
    test_losses,
    test_normalization,
    test_pieces,
    test_products,
    test_softmax,
    test_statistics,
)

FAMILIES = (
    test_activations,
    test_batch_normalization,
    test_losses,
    test_normalization,
    test_pieces,
    test_products,
    test_softmax,
    test_statistics,
)


def test_each_composition_has_a_sample() -> None:
    # Those of lists are made of one table, which `test_foreach.py` goes through.
    single = {op for op in COMPOSITIONS if "_foreach_" not in str(op)}
    assert {op for family in FAMILIES for op, _, _ in family.ROWS} == single


def test_half_types_are_widened() -> None:
    assert widened(torch.ones(2, dtype=torch.bfloat16)).dtype == torch.float32
    assert widened(torch.ones(2, dtype=torch.float64)).dtype == torch.float64


def test_integers_are_declined() -> None:
    require_real(torch.ones(2), None)
    with pytest.raises(NoComposition):
        require_real(torch.ones(2), torch.ones(2, dtype=torch.int64))
