"""Workloads with derivatives of higher order, written once for adjoint and for torch.func.

`navier-stokes`  residuals of a flow from its stream function: third derivatives, and the gradient;
`beam`           a beam on an elastic foundation: fourth derivatives, and the gradient;
`maml`           a loss after steps of gradient descent, differentiated through these steps;
`hvp`            the Hessian of a loss times a vector, forward over reverse;
`laplacian`      the local energy of a wave function: a forward derivative for each coordinate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adjoint import transforms
from adjoint.bench.problems import Network, Parameters, Problem, perceptron
from adjoint.bench.zoo.scales import choose

VISCOSITY = 0.01
INNER_STEPS = 3
INNER_RATE = 0.01


TensorFunction = Callable[..., Tensor]


@dataclass(frozen=True)
class Transforms:
    """The transforms that the losses use, of torch.func or of adjoint."""

    grad: Callable[..., TensorFunction]
    gradients: Callable[..., Callable[..., dict[str, Tensor]]]
    """The same, of a function of parameters by name."""
    jvp: Callable[..., tuple[Tensor, ...]]
    vmap: Callable[..., TensorFunction]


IN_TORCH = Transforms(torch.func.grad, torch.func.grad, torch.func.jvp, torch.func.vmap)
IN_ADJOINT = Transforms(transforms.grad, transforms.grad, transforms.jvp, transforms.vmap)

Step = Callable[..., object]
Loss = Callable[[Transforms, nn.Module], Step]


def _inside(loss: Loss, systems: tuple[str, ...]) -> dict[str, Callable[[nn.Module], Step]]:
    def of(system: str) -> Callable[[nn.Module], Step]:
        given = IN_ADJOINT if system == "func_adjoint" else IN_TORCH
        return lambda net: loss(given, net)

    return {system: of(system) for system in systems}


def _both_ways(
    net: nn.Module, batch: tuple[Tensor, ...], outside: Callable[..., Tensor], loss: Loss
) -> Problem:
    """Derivatives by `torch.autograd` around the network, and inside of what is compiled."""
    return Problem(net, batch, outside, _inside(loss, ("func_inductor", "func_adjoint")))


def _inside_only(
    net: nn.Module, batch: tuple[Tensor, ...], loss: Loss, direct: bool = False
) -> Problem:
    """Eager runs torch.func; for `adjoint`, `torch.compile` is given what Inductor is given."""
    systems = ("eager", "func_inductor", "adjoint", "func_adjoint")
    return Problem(net, batch, _no_outside, _inside(loss, systems), direct=direct)


def _no_outside(net: Network, *batch: Tensor) -> Tensor:
    raise AssertionError("the derivatives of this model are written inside")


def _applied(net: nn.Module, parameters: Parameters, *args: Tensor) -> Tensor:
    value: Tensor = torch.func.functional_call(net, dict(parameters), args)
    return value


def _slope(value: Tensor, at: Tensor) -> Tensor:
    """The slope at each point: the gradient of the sum over points."""
    (slope,) = torch.autograd.grad(value.sum(), at, create_graph=True)
    return slope


def _flow_outside(net: Network, points: Tensor) -> Tensor:
    at = points.detach().requires_grad_()
    values = net(at)
    stream, pressure = values.unbind(1)
    first = _slope(stream, at)
    u, v = first[:, 1], -first[:, 0]
    push = _slope(pressure, at)
    u_first, v_first = _slope(u, at), _slope(v, at)
    u_second = _slope(u_first[:, 0], at)[:, 0] + _slope(u_first[:, 1], at)[:, 1]
    v_second = _slope(v_first[:, 0], at)[:, 0] + _slope(v_first[:, 1], at)[:, 1]
    residuals = _flow_loss((u, v), (u_first, v_first), (u_second, v_second), push)
    return residuals + _level(values)


def _level(values: Tensor) -> Tensor:
    """Only derivatives are determined by the equations: the first point fixes the constants."""
    return values[0].square().sum()


def _flow_loss(
    speed: tuple[Tensor, Tensor],
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
    push: Tensor,
) -> Tensor:
    """u_t + u u_x + v u_y + p_x - nu (u_xx + u_yy), and the same for v, squared."""
    u, v = speed
    total = torch.zeros((), dtype=push.dtype, device=push.device)
    for axis, (slope, curvature) in enumerate(zip(first, second, strict=True)):
        carried = u * slope[:, 0] + v * slope[:, 1]
        residual = slope[:, 2] + carried + push[:, axis] - VISCOSITY * curvature
        total = total + residual.square().mean()
    return total


def _flow_inside(given: Transforms, net: nn.Module) -> TensorFunction:
    def loss(parameters: Parameters, points: Tensor) -> Tensor:
        def summed(column: int) -> TensorFunction:
            return lambda at: _applied(net, parameters, at)[:, column].sum()

        stream, pressure = given.grad(summed(0)), given.grad(summed(1))

        def component(sign: float, axis: int) -> TensorFunction:
            return lambda at: sign * stream(at)[:, axis]

        def of(function: TensorFunction, axis: int | None = None) -> TensorFunction:
            """The slope of a function of each point, or one component of it."""
            slope = given.grad(lambda at: function(at).sum())
            return slope if axis is None else lambda at: slope(at)[:, axis]

        u, v = component(1.0, 1), component(-1.0, 0)
        first = (of(u)(points), of(v)(points))
        second = tuple(of(of(part, 0), 0)(points) + of(of(part, 1), 1)(points) for part in (u, v))
        left, right = second
        residuals = _flow_loss((u(points), v(points)), first, (left, right), pressure(points))
        return residuals + _level(_applied(net, parameters, points))

    return loss


def navier_stokes(device: str, small: bool) -> Problem:
    """A flow at random points (x, y, t)."""
    points, width, layers = choose(
        device, small, full=(16384, 128, 4), cpu=(512, 32, 3), tiny=(16, 8, 2)
    )
    torch.manual_seed(0)
    net = perceptron([3, *[width] * layers, 2], nn.Tanh).to(device)
    batch = (torch.rand(points, 3, device=device),)
    return _both_ways(net, batch, _flow_outside, _flow_inside)


def _beam_outside(net: Network, points: Tensor, load: Tensor) -> Tensor:
    at = points.detach().requires_grad_()
    bending = value = net(at)
    for _ in range(4):
        bending = _slope(bending, at)
    return (bending + value - load).square().mean()


def _beam_inside(given: Transforms, net: nn.Module) -> TensorFunction:
    def loss(parameters: Parameters, points: Tensor, load: Tensor) -> Tensor:
        def of(function: TensorFunction) -> TensorFunction:
            return given.grad(lambda at: function(at).sum())

        def value(at: Tensor) -> Tensor:
            return _applied(net, parameters, at)

        bending = of(of(of(of(value))))
        squares: Tensor = (bending(points) + value(points) - load).square()
        return squares.mean()

    return loss


def beam(device: str, small: bool) -> Problem:
    """u'''' + u = q at random points."""
    points, width, layers = choose(
        device, small, full=(16384, 128, 4), cpu=(512, 32, 3), tiny=(16, 8, 2)
    )
    torch.manual_seed(0)
    net = perceptron([1, *[width] * layers, 1], nn.Tanh).to(device)
    batch = (torch.rand(points, 1, device=device), torch.randn(points, 1, device=device))
    return _both_ways(net, batch, _beam_outside, _beam_inside)


def _maml(given: Transforms, net: nn.Module) -> TensorFunction:
    def task_loss(parameters: Parameters, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(_applied(net, parameters, x), y)

    def adapted_loss(
        parameters: dict[str, Tensor], seen: tuple[Tensor, Tensor], unseen: tuple[Tensor, Tensor]
    ) -> Tensor:
        for _ in range(INNER_STEPS):
            slopes = given.gradients(task_loss)(parameters, *seen)
            parameters = {k: p - INNER_RATE * slopes[k] for k, p in parameters.items()}
        return task_loss(parameters, *unseen)

    def loss(
        parameters: dict[str, Tensor], x: Tensor, y: Tensor, new_x: Tensor, new_y: Tensor
    ) -> Tensor:
        each = given.vmap(lambda *task: adapted_loss(parameters, task[:2], task[2:]))
        losses: Tensor = each(x, y, new_x, new_y)
        return losses.mean()

    return loss


def maml(device: str, small: bool) -> Problem:
    """Sines of random phase, learned from some points of each."""
    tasks, points, width = choose(
        device, small, full=(64, 64, 256), cpu=(8, 10, 40), tiny=(2, 4, 8)
    )
    torch.manual_seed(0)
    net = perceptron([1, width, width, 1], nn.Tanh).to(device)
    phase = torch.rand(tasks, 1, 1, device=device) * 3
    x, new_x = (torch.rand(tasks, points, 1, device=device) * 10 - 5 for _ in range(2))
    batch = (x, torch.sin(x + phase), new_x, torch.sin(new_x + phase))
    return _inside_only(net, batch, _maml)


def _hessian_product(given: Transforms, net: nn.Module) -> Step:
    def step(
        parameters: dict[str, Tensor], x: Tensor, labels: Tensor, *direction: Tensor
    ) -> tuple[object, ...]:
        def loss(at: Parameters) -> Tensor:
            return F.cross_entropy(_applied(net, at, x), labels)

        tangents = dict(zip(parameters, direction, strict=True))
        return given.jvp(given.gradients(loss), (parameters,), (tangents,))

    return step


def hessian_product(device: str, small: bool) -> Problem:
    """Of a classifier, in a random direction."""
    count, width = choose(device, small, full=(4096, 1024), cpu=(64, 64), tiny=(8, 8))
    torch.manual_seed(0)
    net = perceptron([width, width, width, width, 10], nn.GELU).to(device)
    direction = [torch.randn_like(p) for p in net.parameters()]
    labels = torch.randint(0, 10, (count,), device=device)
    batch = (torch.randn(count, width, device=device), labels, *direction)
    return _inside_only(net, batch, _hessian_product, direct=True)


def _local_energy(given: Transforms, net: nn.Module) -> TensorFunction:
    """-1/2 (laplacian + |slope|^2) of the logarithm of the wave function, in a harmonic well."""

    def loss(parameters: Parameters, places: Tensor) -> Tensor:
        def slope(at: Tensor) -> Tensor:
            return given.grad(lambda at: _applied(net, parameters, at).sum())(at)

        laplacian = torch.zeros_like(places[:, 0])
        for axis in range(places.shape[1]):
            along = torch.zeros_like(places)
            along[:, axis] = 1
            laplacian = laplacian + given.jvp(slope, (places,), (along,))[1][:, axis]
        kinetic = laplacian + slope(places).square().sum(1)
        energy = 0.5 * (places.square().sum(1) - kinetic)
        return (energy - energy.mean()).square().mean()

    return loss


def laplacian(device: str, small: bool) -> Problem:
    """Electrons in a well; 30 coordinates on a GPU."""
    count, width, axes = choose(
        device, small, full=(2048, 128, 30), cpu=(64, 32, 9), tiny=(4, 8, 3)
    )
    torch.manual_seed(0)
    net = perceptron([axes, width, width, width, 1], nn.Tanh).to(device)
    return _inside_only(net, (torch.randn(count, axes, device=device),), _local_energy)
