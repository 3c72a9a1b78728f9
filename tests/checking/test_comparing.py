from __future__ import annotations

import pytest
import torch

from adjoint.capture.direct import capture
from adjoint.checking.comparing import TOLERANCE, compare, compare_one, tolerance_of


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rounding_is_no_difference(dtype: torch.dtype) -> None:
    x = torch.randn(100, dtype=torch.float64)
    step = torch.finfo(dtype).eps
    assert compare_one((x * (1 + 4 * step)).to(dtype), x.to(dtype)) is None
    assert compare_one((x * 1.2).to(dtype), x.to(dtype)) is not None


def test_a_difference_has_its_place_and_values() -> None:
    expected = torch.zeros(2, 3)
    expected[1] = 1.0
    found = expected.clone()
    found[1, 2] = 1.5
    mismatch = compare([expected, found], [expected, expected])
    assert mismatch is not None
    assert mismatch.place == 1
    assert mismatch.index == (1, 2)
    assert str(mismatch) == "1.5 instead of 1 at [1, 2]"


def test_small_elements_of_large_tensors_may_cancel() -> None:
    expected = torch.tensor([1e6, 1e-3])
    assert compare_one(torch.tensor([1e6, 2e-3]), expected) is None


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0])),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, float("inf")])),
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        (torch.tensor([True]), torch.tensor([False])),
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2), torch.zeros(2).double()),
        (torch.zeros(2), None),
        (3, 4),
        ([1, torch.ones(1)], [1, torch.zeros(1)]),
    ],
)
def test_what_differs(found: object, expected: object) -> None:
    assert compare_one(found, expected) is not None


def test_what_is_the_same() -> None:
    odd = torch.tensor([float("nan"), float("inf"), -0.0])
    assert compare([odd, None, 3, torch.zeros(0)], [odd.clone(), None, 3, torch.zeros(0)]) is None
    z = torch.randn(3, dtype=torch.complex64)
    assert compare_one(z, z.clone()) is None
    assert compare_one(z, z + 1) is not None


def test_the_coarsest_dtype_inside_of_a_graph_decides() -> None:
    graph_module = capture(lambda x: x.bfloat16().exp().float(), torch.rand(3)).graph_module
    assert tolerance_of(graph_module) == TOLERANCE[torch.bfloat16]
    x = torch.rand(5)
    assert compare([x * 1.01], [x]) is not None
    assert compare([x * 1.01], [x], tolerance_of(graph_module)) is None
    assert compare([torch.tensor([1])], [torch.tensor([2])], 1.0) is not None
