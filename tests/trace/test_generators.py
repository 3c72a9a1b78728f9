from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint

GENERATOR = torch.Generator()


def seeds(x: Tensor) -> Any:
    torch.manual_seed(3)
    return x + torch.rand(3)


def seeds_after_drawing(x: Tensor) -> Any:
    y = x + torch.rand(3, generator=GENERATOR)
    GENERATOR.manual_seed(3)
    return y + torch.rand(3, generator=GENERATOR)


def sets_the_state(x: Tensor) -> Any:
    torch.set_rng_state(torch.Generator().manual_seed(4).get_state())
    return x * 2


def seeds_for_a_while(x: Tensor) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        y = torch.rand(3)
    return x + y


@pytest.mark.parametrize("program", [seeds, seeds_after_drawing, sets_the_state, seeds_for_a_while])
def test_setting_a_generator_is_refused(program: Callable[..., Any]) -> None:
    states = torch.get_rng_state(), GENERATOR.get_state()
    with pytest.raises(adjoint.CaptureError, match="the seeding of a random generator"):
        adjoint.capture(program, torch.ones(3))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(GENERATOR.get_state(), states[1])


def test_an_error_of_the_program_puts_generators_back() -> None:
    def program(x: Tensor) -> Any:
        torch.manual_seed(3)
        raise KeyError("the user's own")

    before = torch.get_rng_state()
    with pytest.raises(KeyError, match="the user's own"):
        adjoint.capture(program, torch.ones(3))
    assert torch.equal(torch.get_rng_state(), before)


def test_drawing_is_allowed() -> None:
    state = GENERATOR.get_state()
    captured = adjoint.capture(lambda x: x + torch.rand(3, generator=GENERATOR), torch.ones(3))
    assert torch.equal(GENERATOR.get_state(), state)
    expected = torch.ones(3) + torch.rand(3, generator=GENERATOR)
    GENERATOR.set_state(state)
    assert torch.equal(adjoint.run(captured, torch.ones(3)), expected)
