from __future__ import annotations

import pytest
import torch

from adjoint.strides import offset_of_last, repeats_elements, span_of


@pytest.mark.parametrize(
    ("shape", "strides", "span"),
    [((2, 3), (3, 1), 6), ((2, 3), (8, 2), 13), ((2, 0), (1, 1), 0), ((), (), 1), ((4,), (0,), 1)],
)
def test_a_span_reaches_from_the_first_element_to_the_last(
    shape: tuple[int, ...], strides: tuple[int, ...], span: int
) -> None:
    assert span_of(shape, strides) == span
    assert 0 in shape or offset_of_last(shape, strides) == span - 1


def test_an_expanded_axis_repeats_its_element() -> None:
    expanded = torch.ones(3, 1).expand(3, 4)
    assert repeats_elements(expanded.shape, expanded.stride())
    assert not repeats_elements((3, 1), (1, 0))
    assert not repeats_elements((3, 4), (4, 1))
