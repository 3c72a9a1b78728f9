from __future__ import annotations

from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import adjoint
from adjoint.graph.operations import apply_function
from tests.parity import ROUTES, Route, Row, Table, leaf, plain, refused

Pair: TypeAlias = tuple[Tensor, Tensor]

TABLE = Table()
DIRECT = Table()
"""What Dynamo does not trace."""
OUTSIDE = torch.arange(1, 4, dtype=torch.float64)


def apply(function: Any, *args: Any) -> Any:
    return function.apply(*args)


def leaves() -> Pair:
    return leaf(3), leaf(3)


class Wrong(Function):
    """Its derivative is not that of its value."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return cotangent * 100


@TABLE(leaves, order=2)
def a_wrong_derivative_is_kept(x: Tensor, y: Tensor) -> Any:
    return apply(Wrong, x * y) * y


@TABLE(lambda: (plain(3), plain(3)))
def without_gradients(x: Tensor, y: Tensor) -> Any:
    return apply(Wrong, x) * y


@TABLE(leaves)
def under_no_grad(x: Tensor, y: Tensor) -> Any:
    with torch.no_grad():
        z = apply(Wrong, x)
    return z * y


class Cube(Function):
    """Saves an input, an intermediate, a number and its result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Any:
        squared = x * x
        result = squared * x * scale
        ctx.save_for_backward(x, squared, result)
        ctx.scale = scale
        return result

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        x, squared, result = ctx.saved_tensors
        return cotangent * (3 * squared * ctx.scale + 0 * result + 0 * x), None


@TABLE(leaves)
def saves_inputs_intermediates_and_results(x: Tensor, y: Tensor) -> Any:
    return apply(Cube, x + y, 2.0)


class Twice(Function):
    """Differentiable twice: its backward is made of what it saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        ctx.save_for_backward(x, y)
        return x * x * y

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Pair:
        x, y = ctx.saved_tensors
        return cotangent * 2 * x * y, cotangent * x * x


@TABLE(leaves, order=3)
def differentiated_three_times(x: Tensor, y: Tensor) -> Any:
    return apply(Twice, x.sin(), y)


@DIRECT(leaves)
def the_same_operand_twice(x: Tensor, y: Tensor) -> Any:
    z = x * y
    return apply(Twice, z, z)


@TABLE(leaves, order=2)
def applied_to_its_own_result(x: Tensor, y: Tensor) -> Any:
    return apply(Twice, apply(Twice, x, y), y)


@TABLE(lambda: (leaf(3), plain(3)))
def one_operand_without_gradient(x: Tensor, y: Tensor) -> Any:
    return apply(Twice, x, y) + apply(Twice, y, x)


class Sine(Function):
    """Its backward applies another function, and the backward of that one this."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return cotangent * apply(Cosine, x)


class Cosine(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        return x.cos()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return -cotangent * apply(Sine, x)


@TABLE(leaves, order=3)
def functions_in_a_circle(x: Tensor, y: Tensor) -> Any:
    return apply(Sine, x * y)


class Exponential(Function):
    """Saves its result alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        (result,) = ctx.saved_tensors
        return cotangent * result


@TABLE(leaves, order=3)
def a_saved_result_keeps_its_history(x: Tensor, y: Tensor) -> Any:
    return apply(Exponential, x * y)


class Several(Function):
    """Two results with derivatives, one without, one that is an index."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ctx.save_for_backward(x, y)
        fixed, index = x.floor(), x.argmax()
        ctx.mark_non_differentiable(fixed, index)
        return x * y, x + y, fixed, index

    @staticmethod
    def backward(ctx: Any, product: Tensor, total: Tensor, *_: Tensor) -> Pair:
        x, y = ctx.saved_tensors
        return product * y + total, product * x + total


@TABLE(leaves, order=2)
def several_results(x: Tensor, y: Tensor) -> Any:
    product, total, fixed, index = apply(Several, x, y.sin())
    return product, total * fixed, fixed, index


@TABLE(leaves)
def one_of_several_results(x: Tensor, y: Tensor) -> Any:
    return apply(Several, x, y)[0]


class WithSetup(Function):
    """The newer style, whose forward has no context."""

    @staticmethod
    def forward(x: Tensor, power: int) -> Tensor:
        return x**power

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        x, ctx.power = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return cotangent * ctx.power * x ** (ctx.power - 1) * 10, None


@TABLE(leaves, order=2)
def setup_context(x: Tensor, y: Tensor) -> Any:
    return apply(WithSetup, x * y, 3)


class Attributes(Function):
    """Keeps tensors as attributes of its context."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        ctx.y, ctx.squared = y, x * x
        return x * y

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Pair:
        return cotangent * ctx.y, cotangent * ctx.squared


@TABLE(leaves)
def tensors_as_attributes(x: Tensor, y: Tensor) -> Any:
    return apply(Attributes, x * 2, y)


class AsksWhatIsNeeded(Function):
    """Computes only the gradients that are asked for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        return (
            cotangent * y * 3 if ctx.needs_input_grad[0] else None,
            cotangent * x * 3 if ctx.needs_input_grad[1] else None,
        )


@TABLE(lambda: (leaf(3), plain(3)))
def needs_input_grad(x: Tensor, y: Tensor) -> Any:
    return apply(AsksWhatIsNeeded, x, y), apply(AsksWhatIsNeeded, y, x)


class Outer(Function):
    """A function in the forward, and one in the backward, of another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        return apply(Wrong, x) * 2

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return cotangent * apply(Wrong, x)


@TABLE(leaves)
def functions_in_functions(x: Tensor, y: Tensor) -> Any:
    return apply(Outer, x) * y


@TABLE(leaves, order=2)
def functions_in_functions_twice(x: Tensor, y: Tensor) -> Any:
    return apply(Outer, x) * y


class ClosesOver(Function):
    """Uses a tensor that it is not given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return x * OUTSIDE

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return cotangent * OUTSIDE * 5


@TABLE(leaves)
def closes_over_a_tensor(x: Tensor, y: Tensor) -> Any:
    return apply(ClosesOver, x) * y


class Views(Function):
    """Views and in-place writes of its own tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        copied = x.clone()
        copied[0].add_(1)
        ctx.save_for_backward(copied)
        return copied.view(-1)[1:] * 2

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        (copied,) = ctx.saved_tensors
        gradient = torch.zeros_like(copied)
        gradient[1:] = cotangent * copied[1:]
        return gradient


@TABLE(leaves)
def views_and_writes_inside(x: Tensor, y: Tensor) -> Any:
    return apply(Views, x * y)


class Random(Function):
    """Draws in the forward and saves what it drew."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        mask = (torch.rand(x.shape) > 0.5).to(x.dtype)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        (mask,) = ctx.saved_tensors
        return cotangent * mask


@TABLE(leaves)
def random_numbers(x: Tensor, y: Tensor) -> Any:
    return apply(Random, x) + torch.rand(3)


class Once(Function):
    """Not differentiable twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return cotangent * 2 * x


@TABLE(leaves)
def differentiable_once(x: Tensor, y: Tensor) -> Any:
    return apply(Once, x) * y


class ReturnsItsArgument(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return x

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return cotangent * 2


class ReturnsAView(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return x.view(-1)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return cotangent * 2


@TABLE(leaves)
def returns_its_argument(x: Tensor, y: Tensor) -> Any:
    return apply(ReturnsItsArgument, x) * y


@TABLE(leaves)
def returns_a_view(x: Tensor, y: Tensor) -> Any:
    return apply(ReturnsAView, x * y) * y


@TABLE(leaves)
def writes_to_what_a_view_was_made_of(x: Tensor, y: Tensor) -> Any:
    product = x * y
    result = apply(ReturnsAView, product) * y
    product.detach().mul_(2)
    return result, product.detach() * 1


def reads_a_view_after_a_write(x: Tensor, y: Tensor) -> Any:
    product = x * y
    view = apply(ReturnsAView, product)
    with torch.no_grad():
        product.mul_(2)
        return view.detach() * 1


def returns_a_view_after_a_write(x: Tensor, y: Tensor) -> Any:
    product = x * y
    view = apply(ReturnsItsArgument, product)
    product.detach().mul_(2)
    return view


def writes_to_a_view(x: Tensor, y: Tensor) -> Any:
    apply(ReturnsAView, x).detach().mul_(2)
    return x * y


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "function",
    [reads_a_view_after_a_write, returns_a_view_after_a_write, writes_to_a_view],
    ids=lambda function: function.__name__,
)
def test_writes_beside_a_view_are_refused(function: Any, route: Route) -> None:
    assert refused(function, leaves, route).construct == "a write"


class HalfConstant(Function):
    """A part of its backward is constant to autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            factor = x.cos()
        return cotangent * factor * x


@TABLE(leaves, order=3)
def a_backward_with_a_part_without_grad(x: Tensor, y: Tensor) -> Any:
    return apply(HalfConstant, x * y)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("row", TABLE, ids=str)
def test_custom_functions_are_eagers(row: Row, route: Route) -> None:
    row.check(route)


@pytest.mark.parametrize("row", DIRECT, ids=str)
def test_custom_functions_that_dynamo_refuses(row: Row) -> None:
    row.check(Route.DIRECT)


def test_what_is_differentiable_once_is_not_differentiated_twice() -> None:
    x, y = leaves()
    captured = adjoint.capture(differentiable_once, x, y)
    for result in (differentiable_once(x, y), adjoint.run(captured, x, y)):
        (gradient,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            gradient.sum().backward()


def test_dynamo_keeps_that_a_function_is_differentiable_once() -> None:
    x, y = leaves()
    compiled: Any = torch.compile(differentiable_once, backend="adjoint", fullgraph=True)
    result = compiled(x, y)
    (gradient,) = torch.autograd.grad(result.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_the_halves_are_graphs_of_the_node() -> None:
    captured = adjoint.capture(saves_inputs_intermediates_and_results, *leaves())
    (node,) = captured.graph_module.graph.find_nodes(op="call_function", target=apply_function)
    half, ((given, other),) = node.args[:2]
    assert given is None
    forward, backward = (getattr(captured.graph_module, arg.target) for arg in (half, other))
    assert forward.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)
    assert backward.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)
