from __future__ import annotations

import itertools

import pytest
import torch

from adjoint.optimize.regrouping import broadcast_to_another, groups_of

RESHAPES = [
    ((2, 3, 4, 5), (2, 3, 4, 5)),
    ((1, 2, 3, 4, 4), (2, 3, 4, 4)),
    ((2, 2, 3, 4, 5), (4, 12, 5)),
    ((6, 4, 5), (2, 3, 4, 5)),
    ((2, 3, 4, 5), (3, 2, 4, 5)),
]


@pytest.mark.parametrize(("shape", "target"), RESHAPES)
def test_it_is_what_reshaping_the_whole_is(shape: list[int], target: list[int]) -> None:
    for kept in itertools.product([False, True], repeat=len(shape)):
        sizes = [size if keep else 1 for size, keep in zip(shape, kept, strict=True)]
        value = torch.randn(sizes)
        made = broadcast_to_another(value, shape, target)
        assert made.dim() == len(target)
        whole = value.expand(shape).reshape(target)
        torch.testing.assert_close(made.expand(target), whole)
        if not any(kept):
            assert made.numel() == 1


def test_axes_that_are_missing_are_the_first() -> None:
    value = torch.randn(5)
    made = broadcast_to_another(value, (2, 3, 4, 5), (6, 4, 5))
    assert made.shape == (1, 1, 5)


def test_shapes_of_other_sizes_have_no_groups() -> None:
    assert groups_of((2, 3), (3, 3)) is None
    assert groups_of((2, 3, 1), (2, 3)) is None
