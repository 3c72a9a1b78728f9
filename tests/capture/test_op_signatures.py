"""Custom ops of the signatures that `torch.library` allows: derivatives are eager's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from adjoint.errors import FallbackWarning
from adjoint.graph.operations import apply_function
from tests.parity import ROUTES, Route, Row, Table, leaf

TABLE = Table()
LIBRARY = torch.library.Library("adjoint_test_signatures", "FRAGMENT")
OPS: Any = torch.ops.adjoint_test_signatures


def custom(
    fake: Callable[..., Any], backward: Any = None, setup: Any = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The op, with a fake and a derivative; its name is that of the function."""

    def define(function: Callable[..., Any]) -> Callable[..., Any]:
        name = f"adjoint_test_signatures::{function.__name__}"
        op = torch.library.custom_op(name, function, mutates_args=())
        op.register_fake(fake)
        if backward is not None:
            op.register_autograd(backward, setup_context=setup)
        return op

    return define


def like(*tensors: Tensor) -> list[Tensor]:
    return [torch.empty_like(each) for each in tensors]


def save_lists(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.count = len(inputs[0])
    ctx.save_for_backward(*inputs[0], *inputs[1])


def products_backward(ctx: Any, cotangents: list[Tensor], _: Any = None) -> Any:
    saved = ctx.saved_tensors
    xs, ys = saved[: ctx.count], saved[ctx.count :]
    return (
        [c * x.cos() * y for c, x, y in zip(cotangents, xs, ys, strict=True)],
        [c * x.sin() for c, x in zip(cotangents, xs, strict=True)],
    )


@custom(lambda xs, ys: like(*xs), products_backward, save_lists)
def products(xs: list[Tensor], ys: list[Tensor]) -> list[Tensor]:
    return [x.sin() * y for x, y in zip(xs, ys, strict=True)]


def save_nested(ctx: Any, inputs: Any, output: Any) -> None:
    x, ys = inputs
    ctx.save_for_backward(x, *ys)
    ctx.mark_non_differentiable(output[2])


def nested_backward(ctx: Any, parts: list[Tensor], whole: Tensor, _: Any) -> Any:
    x, *ys = ctx.saved_tensors
    to_x = [c * y for c, y in zip(parts, ys, strict=True)]
    return sum(to_x) + whole * x.exp(), [c * x for c in parts]


@custom(
    lambda x, ys: (like(*ys), torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)),
    nested_backward,
    save_nested,
)
def nested(x: Tensor, ys: list[Tensor]) -> tuple[list[Tensor], Tensor, Tensor]:
    return [x * y for y in ys], x.exp(), (x > 0).long()


def save_first_only(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.mark_non_differentiable(output[1])


@custom(lambda xs: like(*xs), lambda ctx, given: ([given[0] * 2, None],), save_first_only)
def first_only(xs: list[Tensor]) -> list[Tensor]:
    return [xs[0] * 2, xs[1] * 3]


def save_missing(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[0])


def told_backward(ctx: Any, total: Any, others: list[Any]) -> Any:
    a, b = ctx.saved_tensors
    total, product, double = (
        torch.zeros_like(a) if each is None else each for each in (total, *others)
    )
    return [total + product * b, total + product * a + 2 * double]


@custom(lambda xs: (torch.empty_like(xs[0]), like(*xs)), told_backward, save_missing)
def told(xs: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    return xs[0] + xs[1], [xs[0] * xs[1], xs[1] * 2]


def copies_backward(ctx: Any, cotangents: list[Tensor]) -> Any:
    return sum(c * (place + 1) for place, c in enumerate(cotangents)), None


@custom(lambda x, count: like(*[x] * count), copies_backward)
def copies(x: Tensor, count: int) -> list[Tensor]:
    return [x * place for place in range(1, count + 1)]


def save_power(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    x, weight = inputs
    ctx.power = keyword_only_inputs["power"]
    ctx.save_for_backward(x, weight)


def power_backward(ctx: Any, cotangent: Tensor) -> Any:
    (x, weight), power = ctx.saved_tensors, ctx.power
    slope = cotangent * power * x ** (power - 1)
    return (slope, None) if weight is None else (slope * weight, cotangent * x**power)


@custom(lambda x, weight=None, *, power=2: torch.empty_like(x), power_backward, save_power)
def weighted(x: Tensor, weight: Tensor | None = None, *, power: int = 2) -> Tensor:
    return x**power if weight is None else x**power * weight


def save_mask(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward((output > 0).to(output.dtype))


def of_mask(ctx: Any, cotangent: Tensor) -> Any:
    (mask,) = ctx.saved_tensors
    return cotangent * mask


@custom(torch.empty_like, of_mask, save_mask)
def rectified(x: Tensor) -> Tensor:
    return x.relu()


def save_results(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*output)


def of_results(ctx: Any, cotangents: list[Tensor]) -> Any:
    return ([c * each for c, each in zip(cotangents, ctx.saved_tensors, strict=True)],)


@custom(lambda xs: like(*xs), of_results, save_results)
def exponentials(xs: list[Tensor]) -> list[Tensor]:
    return [x.exp() for x in xs]


def slopes_backward(ctx: Any, directions: list[Tensor]) -> Any:
    saved = ctx.saved_tensors
    cotangents, xs = saved[: ctx.count], saved[ctx.count :]
    return (
        [d * 3 * x**2 for d, x in zip(directions, xs, strict=True)],
        [d * c * 6 * x for d, c, x in zip(directions, cotangents, xs, strict=True)],
    )


@custom(lambda cotangents, xs: like(*xs), slopes_backward, save_lists)
def slopes(cotangents: list[Tensor], xs: list[Tensor]) -> list[Tensor]:
    return [c * 3 * x**2 for c, x in zip(cotangents, xs, strict=True)]


def save_all(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[0])


@custom(
    lambda xs: like(*xs), lambda ctx, given: (slopes(given, list(ctx.saved_tensors)),), save_all
)
def cubes(xs: list[Tensor]) -> list[Tensor]:
    return [x**3 for x in xs]


@custom(
    lambda x, power, flag, name, sizes, shift, dtype: tuple(like(x, x)),
    lambda ctx, one, other: (one * 3 - other * ctx.saved_tensors[0].sin(), *(None,) * 6),
    lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)
def described(
    x: Tensor,
    factor: int,
    flag: bool,
    name: str,
    sizes: Sequence[int],
    shift: float | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    return x * factor, x.cos()


def composite(xs: list[Tensor], factor: float = 2.0) -> list[Tensor]:
    return [x.sin() * factor for x in xs]


LIBRARY.define("composite(Tensor[] xs, float factor=2.) -> Tensor[]")
LIBRARY.impl("composite", composite, "CompositeImplicitAutograd")


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *ys: Tensor) -> Any:
        ctx.save_for_backward(x, *ys)
        with torch._C._AutoDispatchBelowAutograd():
            return OPS.by_a_function(x, list(ys))

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        (c,), (x, one, other) = cotangents, ctx.saved_tensors
        return c * one * other, c * x * other, c * x * one


LIBRARY.define("by_a_function(Tensor x, Tensor[] ys) -> Tensor")
LIBRARY.impl("by_a_function", lambda x, ys: x * ys[0] * ys[1], "CPU")
LIBRARY.impl("by_a_function", lambda x, ys: torch.empty_like(x), "Meta")
LIBRARY.impl("by_a_function", lambda x, ys: Product.apply(x, *ys), "Autograd")  # type: ignore[no-untyped-call]


def leaves() -> tuple[Tensor, Tensor]:
    return leaf(3), leaf(3)


@TABLE(leaves, order=2)
def lists_in_and_out(x: Tensor, y: Tensor) -> Any:
    return products([x.sin(), y], [y, x])


@TABLE(leaves, order=2)
def one_tensor_several_times(x: Tensor, y: Tensor) -> Any:
    return products([x, x], [x, y])[1]


@TABLE(leaves, order=2)
def some_of_a_list_require_grad(x: Tensor, y: Tensor) -> Any:
    return products([x, y.detach()], [y.detach(), x])[0] * 2


@TABLE(leaves, order=2)
def under_no_grad(x: Tensor, y: Tensor) -> Any:
    with torch.no_grad():
        z = products([x], [y])[0]
    return z * x


@TABLE(leaves, order=2)
def a_list_among_results(x: Tensor, y: Tensor) -> Any:
    (one, other), whole, sign = nested(x, [y, x * 2])
    return one * other, whole, sign


@TABLE(leaves, order=2)
def a_part_of_a_list_among_results(x: Tensor, y: Tensor) -> Any:
    return nested(x, [y, x * 2])[0][1].sin()


@TABLE(leaves, order=2)
def only_what_is_beside_the_list(x: Tensor, y: Tensor) -> Any:
    return nested(x, [y, x * 2])[1].sin() * y


@TABLE(leaves, order=2)
def an_element_without_derivative(x: Tensor, y: Tensor) -> Any:
    one, other = first_only([x, y])
    return one * other, other


@TABLE(leaves, order=2)
def one_that_is_told_what_is_missing(x: Tensor, y: Tensor) -> Any:
    return told([x, y])[0] * y, told([x * y, y])[1][1], told([x, x])[1][0]


@TABLE(leaves, order=2)
def lists_of_several_lengths(x: Tensor, y: Tensor) -> Any:
    return copies(x, 2)[1] * copies(y, 3)[2] + copies(x, 1)[0]


@TABLE(leaves, order=2)
def optional_and_keyword_only(x: Tensor, y: Tensor) -> Any:
    return weighted(x), weighted(x, y), weighted(x, y, power=3), weighted(x * y, power=4)


@TABLE(leaves, order=2)
def saved_results(x: Tensor, y: Tensor) -> Any:
    return exponentials([x, y * x])


@TABLE(leaves, order=2)
def a_mask_of_the_result_is_saved(x: Tensor, y: Tensor) -> Any:
    return rectified(x.sin() - y) * y


@TABLE(leaves, order=2)
def a_backward_by_a_custom_op(x: Tensor, y: Tensor) -> Any:
    return cubes([x, y * x])


@TABLE(leaves, order=2)
def arguments_of_every_kind(x: Tensor, y: Tensor) -> Any:
    return described(x * y, 3, True, "name", [1, 2], None, torch.float32)[1] + y


@TABLE(leaves, order=2)
def by_composition(x: Tensor, y: Tensor) -> Any:
    return OPS.composite([x, y]), OPS.composite([x * y], 3.0)


@TABLE(leaves, order=2)
def by_an_autograd_function(x: Tensor, y: Tensor) -> Any:
    return OPS.by_a_function(x, [y, x.sin()])


@TABLE(leaves, order=2)
def lists_of_torchs_own(x: Tensor, y: Tensor) -> Any:
    return torch._foreach_mul([x, y.detach()], 2.0), torch._foreach_addcmul([x, y], [x, x], [y, y])


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("row", TABLE, ids=str)
def test_derivatives_are_eagers(row: Row, route: Route) -> None:
    row.check(route)


def test_an_op_with_a_function_of_its_own_is_a_custom_function() -> None:
    import adjoint

    graph = adjoint.capture(by_an_autograd_function, *leaves()).graph_module.graph
    assert graph.find_nodes(op="call_function", target=apply_function)


LIBRARY.define("by_its_kernel(Tensor x) -> Tensor")
LIBRARY.impl("by_its_kernel", lambda x: x.cos(), "CompositeExplicitAutograd")
LIBRARY.define("by_nothing(Tensor x) -> Tensor")
LIBRARY.impl("by_nothing", lambda x: torch.from_numpy(x.detach().numpy() * 2), "CPU")
LIBRARY.impl("by_nothing", torch.empty_like, "Meta")


@pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered")
@pytest.mark.parametrize("op", [OPS.by_its_kernel, OPS.by_nothing], ids=str)
def test_without_a_registered_derivative_eager_makes_it_of_the_kernel(op: Any) -> None:
    def program(x: Tensor) -> Tensor:
        doubled: Tensor = op(x * 2)
        return doubled * x

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="adjoint")
    x = leaf(3)
    with pytest.warns(FallbackWarning, match="no derivative is registered"):
        result = compiled(x)
    for _ in range(2):
        expected = program(x)
        torch.testing.assert_close(result, expected)
        (slope,), (wanted,) = (
            torch.autograd.grad(each.sum(), x, create_graph=True) for each in (result, expected)
        )
        torch.testing.assert_close(slope, wanted)
        result = compiled(x)


def test_without_a_registered_derivative_and_without_need_for_one() -> None:
    def program(x: Tensor) -> Tensor:
        doubled: Tensor = OPS.by_nothing(x.detach() * 2)
        return doubled * x

    torch._dynamo.reset()
    x = leaf(3)
    expected = torch.autograd.grad(program(x).sum(), x)
    compiled = torch.compile(program, backend="adjoint")
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x), expected)
