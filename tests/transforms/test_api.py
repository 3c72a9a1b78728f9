"""The transforms against `torch.func`, finite differences and each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adjoint
from adjoint.errors import DifferentiationError
from tests.differentiation import assert_finite_difference
from tests.functions import close, scalar, vector
from tests.parity import leaf, plain

func: Any = torch.func


# Against torch.func -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["grad", "jacrev", "jacfwd", "hessian"])
def test_of_a_scalar(name: str) -> None:
    x = plain(3)
    close(getattr(adjoint, name)(scalar)(x), getattr(func, name)(scalar)(x))


def test_the_value_comes_first() -> None:
    x = plain(3)
    value, gradient = adjoint.value_and_grad(scalar)(x)
    close(value, scalar(x))
    close(gradient, func.grad(scalar)(x))


@pytest.mark.parametrize("name", ["grad", "jacrev", "jacfwd", "hessian"])
def test_of_a_number(name: str) -> None:
    x = torch.tensor(0.7, dtype=torch.float64)
    close(getattr(adjoint, name)(torch.sin)(x), getattr(func, name)(torch.sin)(x))


def test_aux() -> None:
    def with_aux(x: Tensor) -> tuple[Tensor, dict[str, Any]]:
        y = x.sin()
        return (y * x).sum(), {"y": y, "place": y.argmax()}

    x = plain(3)
    gradient, aux = adjoint.grad(with_aux, has_aux=True)(x)
    wanted, wanted_aux = func.grad(with_aux, has_aux=True)(x)
    close(gradient, wanted)
    close(aux, wanted_aux)
    (value, aux), gradient = adjoint.value_and_grad(with_aux, has_aux=True)(x)
    close(value, with_aux(x)[0])
    close(aux, wanted_aux)
    for name in ("jacrev", "jacfwd"):
        jacobian, aux = getattr(adjoint, name)(with_aux, has_aux=True)(x)
        close(jacobian, wanted)
        close(aux["y"], x.sin())
    value, tangent, aux = adjoint.jvp(with_aux, (x,), (torch.ones_like(x),), has_aux=True)
    close(tangent, wanted.sum())
    close(aux["y"], x.sin())
    value, pull_back, aux = adjoint.vjp(with_aux, x, has_aux=True)
    close(aux["y"], x.sin())
    close(pull_back(torch.ones_like(value)), (wanted,))


def test_jvp() -> None:
    x, v = plain(3), plain(3)
    close(adjoint.jvp(vector, (x,), (v,)), func.jvp(vector, (x,), (v,)))

    def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * y, (x + y).sin()

    given, along = (plain(2), plain(2)), (plain(2), plain(2))
    close(adjoint.jvp(two, given, along), func.jvp(two, given, along))


def test_jvp_of_a_result_that_does_not_depend_on_the_argument() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), torch.ones(2, dtype=torch.float64)

    x, v = plain(3), plain(3)
    _, (one, other) = adjoint.jvp(function, (x,), (v,))
    close(one, x.cos() * v)
    close(other, torch.zeros(2, dtype=torch.float64))


def test_hvp() -> None:
    x, v = plain(3), plain(3)
    value, product = adjoint.hvp(scalar, (x,), (v,))
    close(value, scalar(x))
    close(product, (func.hessian(scalar)(x) @ v,))


CONV = torch.nn.functional


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, w, b: CONV.conv1d(x, w, b), [(2, 5), (3, 2, 3), (3,)]),
        (lambda x, w: CONV.conv_transpose1d(x, w, None, 2, 1, 1), [(1, 2, 4), (2, 3, 3)]),
        (lambda x, w: CONV.instance_norm(x, weight=w, bias=w), [(2, 3, 4), (3,)]),
        (lambda x: x.as_strided((2, 2), (1, 1)) ** 3, [(4,)]),
    ],
    ids=["conv", "transposed-conv", "instance-norm", "overlapping-window"],
)
def test_both_modes_of_an_op(
    function: Callable[..., Tensor], shapes: list[tuple[int, ...]]
) -> None:
    given, along = tuple(plain(*s) for s in shapes), tuple(plain(*s) for s in shapes)
    places = tuple(range(len(given)))

    def loss(*given: Tensor) -> Tensor:
        return function(*given).sin().sum()

    product = func.jvp(func.grad(loss, places), given, along)[1]
    close(adjoint.hvp(loss, given, along)[1], product)
    columns = func.jacfwd(function, places)(*given)
    close(adjoint.jacfwd(function, places)(*given), columns)
    close(adjoint.jacrev(function, places)(*given), columns)


# Finite differences -------------------------------------------------------------------------------


def test_finite_differences() -> None:
    x, v = plain(3), plain(3)
    assert_finite_difference(lambda xs: scalar(xs[0]), [x], [adjoint.grad(scalar)(x)])
    slope = adjoint.grad(scalar)
    _, (product,) = adjoint.hvp(scalar, (x,), (v,))
    assert_finite_difference(lambda xs: slope(xs[0]) @ v, [x], [product])
    rows = adjoint.jacrev(vector)(x)
    assert_finite_difference(lambda xs: vector(xs[0])[2], [x], [rows[2]])


# Nesting ------------------------------------------------------------------------------------------


def nest(grad: Callable[..., Any], function: Any, order: int) -> Any:
    for _ in range(order):
        function = grad(function)
    return function


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "function", [lambda x: x**4, lambda x: torch.tanh(x * 2) * x, lambda x: x.sin() / (1 + x * x)]
)
def test_nested_grads(function: Callable[[Tensor], Tensor], order: int) -> None:
    x = torch.tensor(0.7, dtype=torch.float64)
    close(nest(adjoint.grad, function, order)(x), nest(func.grad, function, order)(x))


def test_a_penalty_on_a_gradient() -> None:
    def penalised(w: Tensor, x: Tensor) -> Tensor:
        energy, force = adjoint.value_and_grad(lambda x: torch.tanh(x @ w).square().sum())(x)
        return energy + force.square().sum()  # type: ignore[no-any-return]

    def expected(w: Tensor, x: Tensor) -> Tensor:
        force = func.grad(lambda x: torch.tanh(x @ w).square().sum())(x)
        return torch.tanh(x @ w).square().sum() + force.square().sum()  # type: ignore[no-any-return]

    w, x = plain(3, 2), plain(4, 3)
    close(adjoint.grad(penalised)(w, x), func.grad(expected)(w, x))


def test_vjp_and_jvp_inside_a_gradient() -> None:
    def through_vjp(x: Tensor) -> Tensor:
        value, pull_back = adjoint.vjp(torch.sin, x)
        (pulled,) = pull_back(value)
        return pulled.square().sum()  # type: ignore[no-any-return]

    def through_jvp(x: Tensor) -> Tensor:
        _, pushed = adjoint.jvp(torch.sin, (x,), (x,))
        return pushed.square().sum()  # type: ignore[no-any-return]

    def closed(x: Tensor) -> Tensor:
        return (x.cos() * x.sin()).square().sum()

    x = plain(3)
    close(adjoint.grad(through_vjp)(x), func.grad(closed)(x))
    close(adjoint.grad(through_jvp)(x), func.grad(lambda x: (x.cos() * x).square().sum())(x))


# Among torch's own -------------------------------------------------------------------------------


def test_torch_func_outside_and_inside() -> None:
    x = plain(3)
    third = func.jacrev(func.hessian(scalar))(x)
    close(func.jacrev(adjoint.hessian(scalar))(x), third)
    close(func.grad(lambda x: adjoint.grad(scalar)(x).sum())(x), func.hessian(scalar)(x).sum(0))
    close(adjoint.grad(lambda x: func.grad(scalar)(x).sum())(x), func.hessian(scalar)(x).sum(0))


def test_under_vmap() -> None:
    xs = plain(5, 3)
    close(func.vmap(adjoint.grad(scalar))(xs), func.vmap(func.grad(scalar))(xs))
    close(func.vmap(adjoint.hessian(scalar))(xs), func.vmap(func.hessian(scalar))(xs))


def test_vmap_inside() -> None:
    xs = plain(5, 3)

    def total(xs: Tensor) -> Tensor:
        return func.vmap(scalar)(xs).sum()  # type: ignore[no-any-return]

    close(adjoint.grad(total)(xs), func.grad(total)(xs))


def layered(weight: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda z: (weight @ z).tanh().square().sum()


def residual(module: Any, name: str, points: Tensor) -> Callable[[Tensor], Tensor]:
    """A loss on derivatives at each of the `points`, which it closes over."""

    def at(weight: Tensor, z: Tensor) -> Any:
        function = layered(weight)
        if name == "jvp":
            return module.jvp(function, (z,), (z,))[1]
        if name == "vjp":
            return module.vjp(function, z)[1](z.sum())[0]
        if name == "hvp":
            if module is adjoint:
                return adjoint.hvp(function, (z,), (z,))[1][0]
            return module.hessian(function)(z) @ z
        return getattr(module, name)(function)(z)

    return lambda weight: func.vmap(lambda z: at(weight, z))(points).square().mean()


EACH = ["grad", "jacrev", "jacfwd", "hessian", "jvp", "vjp", "hvp"]


@pytest.mark.parametrize("name", EACH)
def test_transforms_of_each_point_of_a_batch_inside_another(name: str) -> None:
    points, weight = plain(5, 3), plain(4, 3)
    close(
        adjoint.grad(residual(adjoint, name, points))(weight),
        func.grad(residual(func, name, points))(weight),
    )


# Dynamo does not trace torch's forward mode under `vmap`.
@pytest.mark.parametrize("name", ["grad", "jacrev", "jacfwd", "hessian", "vjp"])
def test_transforms_of_each_point_of_a_batch_in_compiled_code(name: str) -> None:
    torch._dynamo.reset()
    points, weight = plain(5, 3), leaf(4, 3)
    compiled = torch.compile(residual(adjoint, name, points), backend="adjoint", fullgraph=True)
    wanted = func.grad(residual(func, name, points))(weight.detach())
    close(torch.autograd.grad(compiled(weight), weight)[0], wanted)


def test_torch_func_inside_may_close_over_tensors() -> None:
    x, weight = plain(3), plain(4, 3)

    def slope(x: Tensor) -> Any:
        return func.grad(layered(weight))(x)

    close(adjoint.jacrev(slope)(x), func.jacrev(slope)(x))
    close(adjoint.grad(lambda x: slope(x).sum())(x), func.grad(lambda x: slope(x).sum())(x))


def test_autograd_outside() -> None:
    x = leaf(3)
    gradient = adjoint.grad(scalar)(x)
    assert gradient.requires_grad
    close(torch.autograd.grad(gradient.sum(), x)[0], func.hessian(scalar)(x.detach()).sum(0))
    _, (product,) = adjoint.hvp(scalar, (x,), (torch.ones_like(x),))
    (third,) = torch.autograd.grad(product.sum(), x)
    rows = func.jacrev(func.hessian(scalar))(x.detach())
    close(third, rows.sum((0, 1)))


def test_autograd_inside() -> None:
    def function(x: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        return gradient.square().sum()

    x = plain(3)
    close(adjoint.grad(function)(x), 36 * x**3)


def test_parameters_that_a_module_closes_over_get_gradients() -> None:
    module, x = nn.Linear(3, 3).double(), plain(2, 3)

    def energy(x: Tensor) -> Tensor:
        return torch.tanh(module(x)).square().sum()

    force = adjoint.grad(energy)(x)
    mine = torch.autograd.grad(force.square().sum(), list(module.parameters()))
    y = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(energy(y), y, create_graph=True)
    close(mine, torch.autograd.grad(expected.square().sum(), list(module.parameters())))


hessian_outside = adjoint.hessian(scalar)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: adjoint.grad(scalar)(x) * 2,
        lambda x: adjoint.value_and_grad(scalar)(x),
        lambda x: adjoint.jvp(vector, (x,), (x,)),
        lambda x: adjoint.vjp(vector, x)[1](vector(x)),
        lambda x: adjoint.hvp(scalar, (x,), (x,)),
        lambda x: adjoint.jacrev(vector)(x),
        lambda x: adjoint.jacfwd(vector)(x),
        lambda x: hessian_outside(x),
    ],
)
def test_inside_torch_compile(function: Callable[[Tensor], Any]) -> None:
    torch._dynamo.reset()
    x = plain(3)
    close(torch.compile(function, backend="adjoint", fullgraph=True)(x), function(x))


# Random numbers and buffers -----------------------------------------------------------------------


def test_value_and_gradient_have_one_mask() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        dropped = nn.functional.dropout(x, 0.5)
        return (dropped * 3).sum(), dropped

    x = torch.ones(64, dtype=torch.float64)
    both = adjoint.value_and_grad(function, has_aux=True)
    seen = []
    for _ in range(2):
        (value, dropped), gradient = both(x)
        close(gradient, dropped * 3)
        close(value, gradient.sum())
        seen.append(dropped)
    assert not torch.equal(*seen)


def test_a_module_with_buffers() -> None:
    module, other = (nn.BatchNorm1d(3).double() for _ in range(2))
    x = plain(4, 3)
    mine = adjoint.grad(lambda x: module(x).square().sum())(x)
    y = x.clone().requires_grad_()
    (theirs,) = torch.autograd.grad(other(y).square().sum(), y)
    close(mine, theirs)
    close(module.running_var, other.running_var)
    assert module.num_batches_tracked == other.num_batches_tracked == 1


# Errors -------------------------------------------------------------------------------------------


def test_an_op_without_a_derivative() -> None:
    x = plain(3).abs()
    with pytest.raises(DifferentiationError, match=r"igamma.*at order 1"):
        adjoint.grad(lambda a: torch.igamma(a, x).sum())(x)
