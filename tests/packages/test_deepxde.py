"""DeepXDE: every network, and a problem of each kind, trained by the package's own trainer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import config

from tests.packages.steps import (
    MARKS,
    TOLERANCE,
    Compilations,
    assert_trained_alike,
    package,
)

pytestmark = MARKS

STEPS = 3


@pytest.fixture(autouse=True)
def backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDE_BACKEND", "pytorch")


def deepxde() -> Any:
    dde = package("deepxde")
    dde.config.set_default_float("float64")
    dde.config.set_random_seed(0)
    # It would choose a GPU if there is one.
    torch.set_default_device("cpu")
    return dde


def network(name: str, *arguments: Any, **options: Any) -> Any:
    made = getattr(deepxde().nn, name)(*arguments, "tanh", "Glorot normal", **options)
    if name.startswith("POD"):
        # It is neither a parameter nor a buffer, and in single precision whatever is given.
        made.pod_basis = made.pod_basis.double()
    return made.double()


def basis() -> Any:
    return np.linspace(-1, 1, 15).reshape(5, 3)


# Networks.
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "FNN": lambda: network("FNN", [2, 6, 6, 1]),
    "PFNN": lambda: network("PFNN", [2, [4, 4], [4, 4], 2]),
    "DeepONet": lambda: network("DeepONet", [4, 6, 3], [2, 6, 3]),
    "DeepONet, two outputs": lambda: network(
        "DeepONet", [4, 6, 4], [2, 6, 4], num_outputs=2, multi_output_strategy="split_both"
    ),
    "DeepONetCartesianProd": lambda: network("DeepONetCartesianProd", [4, 6, 3], [2, 6, 3]),
    "MIONetCartesianProd": lambda: network("MIONetCartesianProd", [4, 6, 3], [4, 6, 3], [2, 6, 3]),
    # These are no functions of where they are evaluated: they have values there once and for all.
    "PODDeepONet": lambda: network("PODDeepONet", basis(), [4, 6, 3]),
    "PODMIONet": lambda: network("PODMIONet", basis(), [4, 6, 3], [4, 6, 3]),
}

LEFT_OUT = {"NN": "what networks are derived from"}


def predict(program: Any, count: int) -> dict[str, Tensor]:
    """The outputs and, along a direction, their derivative by where they are evaluated."""
    name = type(getattr(program, "_orig_mod", program)).__name__
    generator = torch.Generator().manual_seed(count)
    where = torch.rand(count, 2, generator=generator, dtype=torch.float64).requires_grad_()
    functions = torch.rand(
        count if name == "DeepONet" else 3, 4, generator=generator, dtype=torch.float64
    )
    branches = {"FNN": 0, "PFNN": 0, "MIONetCartesianProd": 2, "PODMIONet": 2}.get(name, 1)
    found = program((*branches * [functions], where) if branches else where)
    if name.startswith("POD"):
        return {"outputs": found}
    (slopes,) = torch.autograd.grad(found.square().sum(), where, create_graph=True)
    return {"outputs": found, "slopes": slopes}


def laplacian(where: Any, values: Any) -> Any:
    hessian = package("deepxde").grad.hessian
    return hessian(values, where, i=0, j=0) + hessian(values, where, i=1, j=1)


def poisson(dde: Any) -> tuple[Any, nn.Module, dict[str, Any]]:
    """With conditions of every kind on the border."""
    geometry = dde.geometry.Rectangle([0, 0], [1, 1])
    on = [
        lambda x, border, axis=axis, at=at: border and np.isclose(x[axis], at)
        for axis in (0, 1)
        for at in (0, 1)
    ]
    conditions = [
        dde.icbc.DirichletBC(geometry, lambda x: np.sin(x[:, 1:]), on[0]),
        dde.icbc.NeumannBC(geometry, lambda x: 0, on[1]),
        dde.icbc.RobinBC(geometry, lambda x, y: y - 1, on[2]),
        dde.icbc.PeriodicBC(geometry, 0, on[0]),
        dde.icbc.OperatorBC(geometry, lambda x, y, _: dde.grad.jacobian(y, x, 0, 1) ** 2, on[3]),
        dde.icbc.PointSetBC(np.array([[0.5, 0.5]]), np.array([[0.25]])),
    ]
    problem = dde.data.PDE(
        geometry, lambda x, y: -laplacian(x, y) - 1, conditions, num_domain=12, num_boundary=10
    )
    return problem, network("FNN", [2, 6, 6, 1]), {}


def burgers(dde: Any) -> tuple[Any, nn.Module, dict[str, Any]]:
    """In time; the network is changed so that conditions hold, and is regularized."""
    line = dde.geometry.TimeDomain(0, 1)
    geometry = dde.geometry.GeometryXTime(dde.geometry.Interval(-1, 1), line)

    def equation(x: Tensor, y: Tensor) -> Any:
        slope = dde.grad.jacobian(y, x, i=0, j=0)
        return dde.grad.jacobian(y, x, 0, 1) + y * slope - 0.01 * dde.grad.hessian(y, x, i=0, j=0)

    start = dde.icbc.IC(geometry, lambda x: -np.sin(np.pi * x[:, :1]), lambda _, on: on)
    problem = dde.data.TimePDE(geometry, equation, [start], num_domain=12, num_initial=6)
    net = network("FNN", [2, 6, 6, 1], regularization=["l2", 1e-3])
    net.apply_feature_transform(lambda x: torch.cat([x[:, :1], torch.cos(x[:, 1:])], 1))
    net.apply_output_transform(lambda x, y: y * (1 - x[:, :1] ** 2))
    return problem, net, {"loss_weights": [1, 2]}


def beam(dde: Any) -> tuple[Any, nn.Module, dict[str, Any]]:
    """A fourth derivative."""
    geometry = dde.geometry.Interval(0, 1)

    def second(x: Any, y: Any) -> Any:
        return dde.grad.hessian(y, x)

    ends = [lambda x, on, at=at: on and np.isclose(x[0], at) for at in (0, 1)]
    conditions = [
        dde.icbc.DirichletBC(geometry, lambda x: 0, ends[0]),
        dde.icbc.NeumannBC(geometry, lambda x: 0, ends[0]),
        dde.icbc.OperatorBC(geometry, lambda x, y, _: second(x, y), ends[1]),
        dde.icbc.OperatorBC(geometry, lambda x, y, _: dde.grad.jacobian(second(x, y), x), ends[1]),
    ]
    problem = dde.data.PDE(
        geometry, lambda x, y: second(x, second(x, y)) + 1, conditions, num_domain=8, num_boundary=2
    )
    return problem, network("FNN", [1, 5, 5, 1]), {}


def lorenz(dde: Any) -> tuple[Any, nn.Module, dict[str, Any]]:
    """Constants of a system of equations, found from its solution."""
    rates = [dde.Variable(1.0, dtype=torch.float64) for _ in range(3)]

    def equations(t: Any, y: Any) -> list[Any]:
        slopes = [dde.grad.jacobian(y, t, i=each) for each in range(3)]
        a, b, c = y[:, :1], y[:, 1:2], y[:, 2:]
        return [
            slopes[0] - rates[0] * (b - a),
            slopes[1] - a * (rates[1] - c) + b,
            slopes[2] - a * b + rates[2] * c,
        ]

    geometry = dde.geometry.TimeDomain(0, 1)
    seen = np.linspace(0, 1, 5)[:, None]
    conditions = [dde.icbc.PointSetBC(seen, np.sin(seen + each), each) for each in range(3)]
    problem = dde.data.PDE(geometry, equations, conditions, num_domain=8, anchors=seen)
    return (
        problem,
        network("PFNN", [1, [4, 4, 4], 3]),
        {"external_trainable_variables": rates},
    )


def fractional(dde: Any) -> tuple[Any, nn.Module, dict[str, Any]]:
    geometry = dde.geometry.Interval(0, 1)

    def equation(x: Any, y: Any, matrix: Any) -> Any:
        summed = torch.as_tensor(matrix) @ y
        return summed - x[: len(summed)]

    start = dde.icbc.DirichletBC(geometry, lambda x: 0, lambda _, on: on)
    problem = dde.data.FPDE(geometry, equation, 1.5, [start], [9], meshtype="static")
    net = network("FNN", [1, 6, 1])
    net.apply_output_transform(lambda x, y: x * (1 - x) * y)
    return problem, net, {}


def integral(dde: Any) -> tuple[Any, nn.Module, dict[str, Any]]:
    geometry = dde.geometry.TimeDomain(0, 2)

    def equation(x: Any, y: Any, matrix: Any) -> Any:
        summed = torch.as_tensor(matrix) @ y
        slope = dde.grad.jacobian(y, x)
        return (slope + y)[: len(summed)] - summed

    start = dde.icbc.IC(geometry, lambda x: np.exp(-x), lambda _, on: on)
    problem = dde.data.IDE(
        geometry,
        equation,
        start,
        4,
        kernel=lambda x, s: np.exp(s - x),
        num_domain=5,
        num_boundary=2,
    )
    return problem, network("FNN", [1, 6, 1]), {}


def operator(dde: Any, product: bool) -> tuple[Any, nn.Module, dict[str, Any]]:
    """The solution as a function of the right-hand side."""
    geometry = dde.geometry.Interval(0, 1)
    border = dde.icbc.DirichletBC(geometry, lambda x: 0, lambda _, on: on)

    def equation(x: Any, y: Any, force: Any) -> Any:
        return -dde.grad.hessian(y, x) - force

    pde = dde.data.PDE(geometry, equation, border, num_domain=6, num_boundary=2)
    kind = dde.data.PDEOperatorCartesianProd if product else dde.data.PDEOperator
    space = dde.data.PowerSeries(N=3)
    problem = kind(pde, space, np.linspace(0, 1, 4)[:, None], 3)
    net = "DeepONetCartesianProd" if product else "DeepONet"
    return problem, network(net, [4, 5, 3], [1, 5, 3]), {}


Problem = Callable[[Any], tuple[Any, nn.Module, dict[str, Any]]]
PROBLEMS: dict[str, Problem] = {
    "poisson": poisson,
    "burgers": burgers,
    "beam": beam,
    "lorenz": lorenz,
    "fractional": fractional,
    "integral": integral,
    "operator": lambda dde: operator(dde, product=False),
    "operator, product": lambda dde: operator(dde, product=True),
}


# The network is compiled or, where Dynamo traces them, the losses with the equation in them.  Those
# of the other problems call NumPy, and Dynamo fails there, with every backend.
LOSSES = ("lorenz", "operator", "operator, product")
PARTS = [(name, "network") for name in PROBLEMS] + [(name, "losses") for name in LOSSES]


def trained(problem: Problem, part: str | None, optimizer: str = "adam") -> dict[str, Any]:
    """The network and its losses after some steps, with this part compiled."""
    dde = deepxde()
    problem_data, net, options = problem(dde)
    start = copy.deepcopy(net.state_dict())
    model = dde.Model(problem_data, net)
    if part == "network":
        net.forward = torch.compile(net.forward, backend="adjoint")
    model.compile(optimizer, lr=1e-2 if optimizer == "adam" else None, **options)
    if part == "losses":
        model.outputs_losses_train = torch.compile(model.outputs_losses_train, backend="adjoint")
        model.outputs_losses_test = torch.compile(model.outputs_losses_test, backend="adjoint")
    history, _ = model.train(iterations=STEPS, display_every=1, verbose=0)
    state = net.state_dict()
    assert any(not torch.equal(state[name], start[name]) for name in start)
    return {
        "state": {name: each.clone() for name, each in state.items()},
        "losses": torch.tensor(np.array(history.loss_train)),
        "variables": [each.detach() for each in options.get("external_trainable_variables", [])],
    }


def test_all_networks_are_here() -> None:
    exported = {*package("deepxde.nn.pytorch").__all__}
    assert exported == {*NETWORKS, *LEFT_OUT} - {"DeepONet, two outputs"}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str, compiled: Compilations) -> None:
    make = NETWORKS[name]
    deepxde()
    counts = [5, 5] if name.startswith("POD") else [5, 7]
    assert_trained_alike(make(), predict, counts, compiled)


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_problems(name: str, part: str, compiled: Compilations) -> None:
    expected = trained(PROBLEMS[name], None)
    with config.patch(trace_autograd_ops=True):
        actual = trained(PROBLEMS[name], part)
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)
    compiled.assert_differentiated()


@pytest.mark.parametrize("optimizer", ["L-BFGS", "NNCG"])
def test_optimizers(
    optimizer: str, compiled: Compilations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take derivatives of the loss by themselves, NNCG also second ones."""
    settings = package("deepxde.optimizers.config")
    for name in ("maxiter", "iter_per_step"):
        monkeypatch.setitem(settings.LBFGS_options, name, STEPS)
    # Less damped, NNCG makes 1e-8 of 1e-15 in eager, too.
    for name, value in {"rank": 4, "cgmaxiter": 3, "mu": 10}.items():
        monkeypatch.setitem(settings.NNCG_options, name, value)
    expected = trained(integral, None, optimizer)
    actual = trained(integral, "network", optimizer)
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)
    compiled.assert_differentiated()
