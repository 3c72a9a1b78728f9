import copy

import pytest
import torch
from torch import Tensor, nn

from demo import training
from demo.training import SYSTEMS, Lesson, Network, Pupil, gradient_error, train


def slope_loss(network: Network, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(network(x).sum(), x, create_graph=True)
    return (slope - 1).square().mean()


@pytest.fixture
def lesson() -> Lesson:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    batches = torch.randn(5, 8, 2)
    return Lesson("slopes", model, slope_loss, lambda step: (batches[step],), 5, rate=1e-2)


def test_systems_take_turns_and_learn_the_same(
    lesson: Lesson, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "BLOCK", 2)
    before = copy.deepcopy(lesson.model.state_dict())
    order: list[str] = []

    def saw(pupils: list[Pupil], one: Pupil) -> None:
        order.append(one.system)

    eager, adjoint = train(lesson, saw)
    turn = ["eager"] * 2 + ["adjoint"] * 2
    assert order == [*turn, *turn, "eager", "adjoint"]
    assert len(eager.losses) == len(eager.seconds) == 5
    assert eager.losses == pytest.approx(adjoint.losses, rel=1e-4)
    assert eager.losses[0] != eager.losses[-1]
    assert adjoint.cold > max(adjoint.seconds[1:])  # It was compiled.
    for name, value in lesson.model.state_dict().items():
        assert torch.equal(value, before[name])


def test_gradients_of_adjoint_are_eagers(lesson: Lesson) -> None:
    assert gradient_error(lesson, lesson.model, SYSTEMS["adjoint"]) < 1e-12


def test_a_wrong_gradient_is_seen(lesson: Lesson) -> None:
    def inexact(model: nn.Module) -> Network:
        return lambda x: model(x) * (1 + 1e-6)

    assert gradient_error(lesson, lesson.model, inexact) > 1e-7
