"""Every solver of torchdiffeq around a compiled right-hand side, and compiled as a whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.packages.steps import MARKS, Compilations, assert_trained_alike, package

pytestmark = MARKS

ADAPTIVE = ("dopri8", "dopri5", "bosh3", "fehlberg2", "adaptive_heun")
FIXED = (
    "euler",
    "midpoint",
    "heun2",
    "heun3",
    "rk4",
    "explicit_adams",
    "implicit_adams",
    "fixed_adams",
)
LEFT_OUT = {"scipy_solver": "computes in NumPy"}
METHODS = (*ADAPTIVE, *FIXED)


class Field(nn.Module):
    """The right-hand side of a neural differential equation."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))

    def forward(self, time: Tensor, state: Tensor) -> Tensor:
        return self.net(torch.cat([state, time.expand(len(state), 1)], 1))  # type: ignore[no-any-return]


class Flow(nn.Module):
    """A continuous normalizing flow: also the trace of a derivative is integrated."""

    def __init__(self) -> None:
        super().__init__()
        self.field = Field()

    def forward(self, time: Tensor, states: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        state, _ = states
        with torch.enable_grad():
            where = state.clone() if state.requires_grad else state.detach().requires_grad_()
            slope = self.field(time, where)
            trace = torch.stack(
                [
                    torch.autograd.grad(slope[:, each].sum(), where, create_graph=True)[0][:, each]
                    for each in range(2)
                ]
            ).sum(0)
        return slope, -trace[:, None]


class Solved(nn.Module):
    """The solution as a model, so that the whole solver is compiled."""

    def __init__(self, field: nn.Module, **options: Any) -> None:
        super().__init__()
        self.field = field
        self.options = options

    def forward(self, start: Any, times: Tensor) -> Any:
        return package("torchdiffeq").odeint(self.field, start, times, **self.options)


def start(count: int) -> Tensor:
    return torch.linspace(-1, 1, 2 * count).reshape(count, 2).requires_grad_()


def times() -> Tensor:
    return torch.tensor([0.0, 0.3, 0.5], requires_grad=True)


def tolerances(method: str) -> dict[str, Any]:
    if method in FIXED:
        return {"method": method, "options": {"step_size": 0.25}}
    return {"method": method, "rtol": 1e-3, "atol": 1e-3}


def predict_with(solver: str, **options: Any) -> Any:
    def predict(program: Any, count: int) -> dict[str, Tensor]:
        first, at = start(count), times()
        solve = getattr(package("torchdiffeq"), solver)
        found = solve(program, first, at, **options)
        (slope,) = torch.autograd.grad(found.square().sum(), first, create_graph=True)
        return {"solution": found, "slope": slope}

    return predict


def test_all_methods_are_here() -> None:
    solvers = package("torchdiffeq._impl.odeint").SOLVERS
    assert {*solvers} == {*METHODS, *LEFT_OUT}


@pytest.mark.parametrize("method", METHODS)
def test_the_right_hand_side(method: str, compiled: Compilations) -> None:
    torch.manual_seed(0)
    predict = predict_with("odeint", **tolerances(method))
    assert_trained_alike(Field(), predict, [3, 4], compiled)


@pytest.mark.parametrize("method", ["dopri5", "rk4", "implicit_adams"])
def test_the_adjoint_method(method: str, compiled: Compilations) -> None:
    def predict(program: Any, count: int) -> dict[str, Tensor]:
        solve = package("torchdiffeq").odeint_adjoint
        # The adjoint method integrates backwards by the parameters of the module itself.
        parameters = tuple(program.parameters())
        found = solve(
            program, start(count), times(), adjoint_params=parameters, **tolerances(method)
        )
        return {"solution": found}

    torch.manual_seed(0)
    assert_trained_alike(Field(), predict, [3, 4], compiled)


@pytest.mark.parametrize("solver", ["odeint", "odeint_adjoint"])
def test_a_flow(solver: str, derived: bool | None, compiled: Compilations) -> None:
    def predict(program: Any, count: int) -> dict[str, Tensor]:
        torchdiffeq = package("torchdiffeq")
        first = (start(count), torch.zeros(count, 1))
        found, density = getattr(torchdiffeq, solver)(program, first, times(), rtol=1e-4, atol=1e-4)
        return {"solution": found, "density": density}

    torch.manual_seed(0)
    assert_trained_alike(Flow(), predict, [3, 4], compiled, derived)


@pytest.mark.parametrize("solver", ["odeint_event", "odeint_event_adjoint"])
def test_events(solver: str, compiled: Compilations) -> None:
    """The time at which the solution crosses a line is differentiated."""

    class Falling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pull = nn.Parameter(torch.tensor([-2.0]))

        def forward(self, time: Tensor, state: Tensor) -> Tensor:
            return torch.cat([state[1:], self.pull * (1 + state[1:] ** 2 / 10)])

    def predict(program: Any, height: float) -> dict[str, Tensor]:
        torchdiffeq = package("torchdiffeq")
        first = torch.tensor([height, 0.0], requires_grad=True)
        inner = torchdiffeq.odeint_adjoint if solver.endswith("adjoint") else torchdiffeq.odeint
        options = (
            {"adjoint_params": tuple(program.parameters())} if inner.__name__ != "odeint" else {}
        )
        moment, states = torchdiffeq.odeint_event(
            program,
            first,
            torch.tensor(0.0),
            event_fn=lambda _, state: state[0] - 0.1,
            atol=1e-8,
            rtol=1e-8,
            odeint_interface=inner,
            **options,
        )
        return {"moment": moment, "states": states}

    assert_trained_alike(Falling(), predict, [1.0, 2.0], compiled)


@pytest.mark.parametrize("method", ["rk4", "dopri5", "heun3"])
def test_the_whole_solver(method: str, compiled: Compilations) -> None:
    def predict(program: Any, count: int) -> dict[str, Tensor]:
        first = start(count)
        found = program(first, times())
        (slope,) = torch.autograd.grad(found.square().sum(), first, create_graph=True)
        return {"solution": found, "slope": slope}

    torch.manual_seed(0)
    model = Solved(Field(), **tolerances(method))
    assert_trained_alike(model, predict, [3, 4], compiled, dynamic=None)


def test_dense_output(compiled: Compilations) -> None:
    def predict(program: Any, count: int) -> dict[str, Tensor]:
        solve = package("torchdiffeq").odeint_dense
        found = solve(program, start(count), torch.tensor(0.0), torch.tensor(0.5))
        return {"solution": torch.stack([found(torch.tensor(at)) for at in (0.1, 0.4)])}

    torch.manual_seed(0)
    assert_trained_alike(Field(), predict, [3, 4], compiled)
