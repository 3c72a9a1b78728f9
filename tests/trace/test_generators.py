from __future__ import annotations

import contextlib
import threading
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


def seeds_before_drawing(x: Tensor) -> Any:
    GENERATOR.manual_seed(3)
    return x + torch.rand(3, generator=GENERATOR)


def seeds_what_it_makes(x: Tensor) -> Any:
    return x + torch.rand(3, generator=torch.Generator().manual_seed(3))


def seeds_as_it_is(x: Tensor) -> Any:
    torch.default_generator.manual_seed(torch.initial_seed())
    return x + torch.rand(3)


def goes_back(x: Tensor) -> Any:
    state = torch.get_rng_state()
    y = torch.rand(3)
    torch.set_rng_state(state)
    return x + torch.rand(3) - y


def draws_for_a_while(x: Tensor) -> Any:
    with torch.random.fork_rng():
        y = torch.rand(3)
    return x + y


def hides_that_it_seeds(x: Tensor) -> Any:
    with contextlib.suppress(RuntimeError):
        torch.manual_seed(3)
    return x * 2


REFUSED = [
    seeds,
    seeds_after_drawing,
    sets_the_state,
    seeds_for_a_while,
    seeds_before_drawing,
    seeds_what_it_makes,
    seeds_as_it_is,
    goes_back,
    draws_for_a_while,
    hides_that_it_seeds,
]


@pytest.mark.parametrize("program", REFUSED)
def test_setting_a_generator_is_refused(program: Callable[..., Any]) -> None:
    states = torch.get_rng_state(), GENERATOR.get_state()
    with pytest.raises(adjoint.CaptureError, match="the seeding of a random generator") as caught:
        adjoint.capture(program, torch.ones(3))
    assert caught.value.source is not None
    assert caught.value.source.function == program.__name__
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(GENERATOR.get_state(), states[1])


def test_a_generator_that_each_call_makes_is_refused() -> None:
    def program(x: Tensor) -> Any:
        return x + torch.rand(3, generator=torch.Generator())

    with pytest.raises(adjoint.CaptureError, match="made in the program"):
        adjoint.capture(program, torch.ones(3))


def test_a_state_may_be_set_where_nothing_is_drawn_from_it() -> None:
    def program(x: Tensor) -> Any:
        early = torch.get_rng_state()
        y = torch.rand(3)
        with torch.random.fork_rng():
            torch.set_rng_state(early)
            y = y + torch.rand(3, generator=GENERATOR)
        return x + y + torch.rand(3)

    def run(call: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        GENERATOR.manual_seed(0)
        return call(torch.ones(3))

    captured = adjoint.capture(program, torch.ones(3))
    assert torch.equal(run(lambda x: adjoint.run(captured, x)), run(program))


def test_other_threads_draw_and_seed_meanwhile() -> None:
    def elsewhere() -> None:
        torch.manual_seed(3)
        drawn.append(torch.rand(3))
        drawn.append(torch.rand(3, generator=GENERATOR))

    def program(x: Tensor) -> Any:
        y = x + torch.rand(3) + torch.rand(3, generator=GENERATOR)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return y + torch.rand(3)

    drawn: list[Tensor] = []
    before = GENERATOR.get_state()
    adjoint.capture(program, torch.ones(3))
    after = torch.get_rng_state(), GENERATOR.get_state()
    torch.manual_seed(3)
    GENERATOR.set_state(before)
    assert torch.equal(drawn[0], torch.rand(3))
    assert torch.equal(drawn[1], torch.rand(3, generator=GENERATOR))
    assert torch.equal(after[0], torch.get_rng_state())
    assert torch.equal(after[1], GENERATOR.get_state())


def test_an_error_of_the_program_leaves_generators_alone() -> None:
    def program(x: Tensor) -> Any:
        torch.rand(3)
        torch.set_rng_state(torch.get_rng_state())
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
