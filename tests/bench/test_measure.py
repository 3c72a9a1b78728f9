import math

import pytest
import torch

from adjoint.bench.measure import WARM_UP_STEPS, PeakMemory, relative_error, timed, timed_calls
from adjoint.bench.problems import Step


def test_the_first_result_is_kept_as_it_was() -> None:
    x = torch.zeros(1)
    measured = timed(Step(lambda: x.add_(1), lambda returned: {"x": returned}), 5, cuda=False)
    assert measured.first["x"].item() == 1
    assert measured.last["x"].item() == 1 + WARM_UP_STEPS + 5


def test_calls_are_made_in_turn() -> None:
    seen: list[int] = []
    assert timed_calls(seen.append, [(1,), (2,), (3,)], 7) >= 0
    assert seen == [1, 2, 3, 1, 2, 3, 1]


def test_memory_that_was_touched_is_seen() -> None:
    memory = PeakMemory(cuda=False)
    if memory.start is None:
        pytest.skip("the system does not tell")
    torch.ones(64 * 2**20, dtype=torch.uint8)
    grown = memory.grown()
    assert grown is not None
    assert grown > 0


def tensors(*values: float) -> dict[str, torch.Tensor]:
    return {"x": torch.tensor(values, dtype=torch.float64)}


@pytest.mark.parametrize(
    ("actual", "expected", "error"),
    [
        (tensors(1, 2), tensors(1, 2), 0.0),
        (tensors(1, 3), tensors(1, 4), 0.25),
        (tensors(math.nan, 4), tensors(math.nan, 4), 0.0),
        (tensors(math.nan, 4), tensors(1, 4), math.inf),
        (tensors(math.inf), tensors(math.inf), 0.0),
        (tensors(1, 2), tensors(1), math.inf),
        ({}, tensors(1), math.inf),
        (tensors(1e-9), tensors(0), math.inf),
        (tensors(), tensors(), 0.0),
    ],
)
def test_relative_error(
    actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], error: float
) -> None:
    assert relative_error(actual, expected) == error


def test_rounding_of_a_gradient_that_vanishes_is_small() -> None:
    right = {"x": torch.tensor([1.0]), "zero": torch.tensor([1e-17])}
    found = {"x": torch.tensor([1.0]), "zero": torch.tensor([1e-9])}
    assert relative_error(found, right) < 1e-4
