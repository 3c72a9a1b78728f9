from __future__ import annotations

from typing import Any

import pytest
import torch

from adjoint.torch_private import learned_fakes
from adjoint.torch_private.corrected_fakes import fake_call
from adjoint.torch_private.learned_fakes import Facts, layout_of
from tests.torch_private.test_corrected_fakes import described, made, of_fakes, turned

aten = torch.ops.aten


@pytest.fixture
def nothing_learned() -> Any:
    learned_fakes.forget()
    yield
    learned_fakes.forget()


@pytest.mark.usefixtures("nothing_learned")
def test_what_a_run_has_seen_is_known_from_then_on() -> None:
    op, args = aten.relu.default, (made(3, 4),)
    seen = made(4, 3, dtype=torch.float64).t()
    assert learned_fakes.learn(op, args, {}, seen)
    assert not learned_fakes.learn(op, args, {}, seen)
    fake = of_fakes(lambda x: fake_call(op, (x,), {}), (made(5, 6),))
    assert described(fake) == [(torch.float64, torch.device("cpu"), (5, 6), (1, 5))]
    # Of other arguments it says nothing.
    other = of_fakes(lambda x: fake_call(op, (x,), {}), (made(5, 6, dtype=torch.float64),))
    assert other.stride() == (6, 1)


def test_the_order_of_dimensions() -> None:
    assert layout_of(made(2, 3, 4)) == (0, 1, 2)
    assert layout_of(turned(2, 3, 4)) == (2, 1, 0)
    image = made(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert layout_of(image) == (0, 2, 3, 1)
    assert layout_of(made(4)[::2]) is None
    assert layout_of(made(1).expand(3)) is None
    assert Facts(torch.float64, (1, 0)).applied(made(2, 3)).stride() == (1, 2)
