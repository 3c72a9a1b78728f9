"""Derivatives through branches and loops are those of the same program in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint.compiler import Compiler
from adjoint.graph.operations import has_bodies
from adjoint.options import Options
from adjoint.runtime.bridge import DifferentiableGraph
from tests.control_flow import cond, map_slices, scan, while_loop
from tests.differentiation import (
    NATIVELY,
    OP_BY_OP,
    Through,
    bridged,
    check,
    compare,
    derivatives,
)
from tests.parity import leaf

Program = Callable[[Tensor, Tensor], Any]

PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


@program
def branch(x: Tensor, y: Tensor) -> Any:
    return cond(x.sum() > 0, lambda a, b: (a**3) * b, lambda a, b: a.sin() * a + b, (x[0], y))


@program
def branch_of_one_side(x: Tensor, y: Tensor) -> Any:
    """Only one branch depends on x by differentiable steps."""
    return cond(x.sum() > 0, lambda a: a**2, lambda a: (a * 0).detach(), (x[0],)) * y


@program
def branch_with_closures(x: Tensor, y: Tensor) -> Any:
    w, v = x[1] * 2, y.exp()
    return cond(x[0, 0] > 0, lambda a: (a * w).sin(), lambda a: a.cos() * v, (x[0],))


@program
def branch_that_draws(x: Tensor, y: Tensor) -> Any:
    def true(a: Tensor, b: Tensor) -> Tensor:
        return a.sin() * torch.rand(3, dtype=a.dtype) * b

    def false(a: Tensor, b: Tensor) -> Tensor:
        return torch.nn.functional.dropout(a.exp(), 0.5) * b * torch.rand_like(b)

    return cond(x.sum() > 0, true, false, (x[0], y))


@program
def branch_in_branch_that_draws(x: Tensor, y: Tensor) -> Any:
    def inner(a: Tensor) -> Any:
        drawn = torch.rand_like(a) * y
        return cond(a[1] > 0, lambda b: (b * drawn).sin(), lambda b: b * torch.rand_like(b), (a,))

    return cond(x.sum() > 0, inner, lambda a: a.exp(), (x[0],)) * y


@program
def branch_of_several_results(x: Tensor, y: Tensor) -> Any:
    def true(a: Tensor, b: Tensor) -> Any:
        return a * b, b.sin(), (a > 0).long()

    def false(a: Tensor, b: Tensor) -> Any:
        return a.exp(), b * a, (b > 0).long()

    first, second, third = cond(x.sum() > 0, true, false, (x[0], y))
    return first * third, second


@program
def branch_that_returns_what_it_is_given(x: Tensor, y: Tensor) -> Any:
    a, b = cond(x.sum() > 0, lambda a, b: (a, b), lambda a, b: (b, a), (x[0] * 2, y.sin()))
    return a * b.exp(), b


@program
def scanned(x: Tensor, y: Tensor) -> Any:
    return scan(lambda c, a: (c * a + a.sin(), c.sin() * a), y.clone(), x)


@program
def scanned_with_closures(x: Tensor, y: Tensor) -> Any:
    w = torch.outer(y, y).cos()
    carry, steps = scan(lambda c, a: ((w @ c).tanh() + a, a * c), y * 2, x)
    return carry, steps.sum(0)


@program
def scanned_that_draws(x: Tensor, y: Tensor) -> Any:
    def combine(carry: Tensor, a: Tensor) -> Any:
        return (carry * torch.rand_like(a) + a).sin(), carry * a

    return scan(combine, y.clone(), x)


@program
def scanned_where_one_carry_is_fixed(x: Tensor, y: Tensor) -> Any:
    def combine(carry: Any, a: Tensor) -> Any:
        count, value = carry
        return (count + 1, value * a.cos() + count), value * count

    (_, value), steps = scan(combine, (torch.zeros((), dtype=torch.int64), y.clone()), x)
    return value, steps


@program
def scanned_where_a_carry_becomes_active(x: Tensor, y: Tensor) -> Any:
    def combine(carry: Any, a: Tensor) -> Any:
        first, second, third = carry
        return (first * a.sin(), first * 2, second.exp() * third), first + third

    init = (torch.ones(3, dtype=x.dtype), torch.zeros(3, dtype=x.dtype), y.clone())
    carry, steps = scan(combine, init, x)
    return carry[2], steps


class Twice(torch.autograd.Function):
    """The sine, with twice its derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return 2 * cotangent * ctx.saved_tensors[0].cos()


@program
def scanned_where_a_custom_function_becomes_active(x: Tensor, y: Tensor) -> Any:
    twice: Any = Twice
    return scan(lambda c, a: (twice.apply(c) * a, c * y), torch.ones(3, dtype=x.dtype), x)


@program
def looped_where_a_custom_function_becomes_active(x: Tensor, y: Tensor) -> Any:
    def step(count: Tensor, a: Tensor) -> Any:
        twice: Any = Twice
        return count + 1, twice.apply(a) * y + x[0]

    init = (torch.tensor(0), torch.ones(3, dtype=x.dtype))
    return while_loop(lambda i, a: i < 3, step, init)[1]


@program
def scanned_where_only_steps_matter(x: Tensor, y: Tensor) -> Any:
    return scan(lambda c, a: (c.clone(), a * a * y), torch.zeros((), dtype=x.dtype), x)[1]


@program
def scan_in_scan(x: Tensor, y: Tensor) -> Any:
    def outer(carry: Tensor, row: Tensor) -> Any:
        inner, products = scan(lambda c, a: (c.sin() + a * y[0], c * a), carry.sum(), row)
        return carry * inner, products

    return scan(outer, y.clone(), x)


@program
def branch_in_scan(x: Tensor, y: Tensor) -> Any:
    def combine(carry: Tensor, a: Tensor) -> Any:
        new = cond(a.sum() > 0, lambda c, b: c * b.sin(), lambda c, b: c + b * y, (carry, a))
        return new, carry * 2

    return scan(combine, y.clone(), x)


@program
def mapped(x: Tensor, y: Tensor) -> Any:
    return map_slices(lambda a: (a.sin() * y, a.sum()), x)


@program
def mapped_that_draws(x: Tensor, y: Tensor) -> Any:
    return map_slices(lambda a: torch.nn.functional.dropout(a.sin() * y, 0.5) * a, x)


@program
def branch_in_map(x: Tensor, y: Tensor) -> Any:
    def each(a: Tensor) -> Any:
        return cond(a.sum() > 0, lambda b: b * b * y, lambda b: b.sin(), (a,))

    return map_slices(each, x)


@program
def looped(x: Tensor, y: Tensor) -> Any:
    def step(count: Tensor, a: Tensor) -> Any:
        return count + 1, a.sin() * y + a

    return while_loop(lambda i, a: i < 3, step, (torch.tensor(0), x[0] * 1))[1]


@program
def looped_with_a_number(x: Tensor, y: Tensor) -> Any:
    def step(count: Any, a: Tensor) -> Any:
        return count + 1, (a * y).sin() * (count + 1)

    return while_loop(lambda i, a: i < 3, step, (0, x[0] * 1))[1]


@program
def looped_until_a_value(x: Tensor, y: Tensor) -> Any:
    (result,) = while_loop(lambda a: a.abs().sum() > 0.2, lambda a: (a * a.sin() / 2,), (x[0] * 1,))
    return result * y


@program
def looped_by_a_constant_factor(x: Tensor, y: Tensor) -> Any:
    """What is carried is not needed to go back."""
    (result,) = while_loop(lambda a: a.abs().sum() > 0.2, lambda a: (a / 2,), (x[0] * y,))
    return result.sin()


@program
def looped_never(x: Tensor, y: Tensor) -> Any:
    (result,) = while_loop(lambda a: a.sum() > 1e9, lambda a: (a * y,), (x[0] * 2,))
    return result.sin() * y


@program
def loop_that_draws(x: Tensor, y: Tensor) -> Any:
    def step(count: Tensor, a: Tensor) -> Any:
        return count + 1, a.sin() * torch.rand_like(y)

    return while_loop(lambda i, a: i < 3, step, (torch.tensor(0), x[0] * y))[1]


@program
def branch_in_loop(x: Tensor, y: Tensor) -> Any:
    def step(count: Tensor, a: Tensor) -> Any:
        new = cond(a.sum() > 0, lambda b: b.sin() - y, lambda b: b * y.exp() + 2, (a,))
        return count + 1, new

    return while_loop(lambda i, a: i < 4, step, (torch.tensor(0), x[0] * 1))[1]


@program
def loop_in_scan(x: Tensor, y: Tensor) -> Any:
    def combine(carry: Tensor, a: Tensor) -> Any:
        (new,) = while_loop(lambda b: b.abs().sum() > 1, lambda b: (b * a.sin() * 0.7,), (carry,))
        return new + a, new * y

    return scan(combine, y.clone(), x)


def inputs(sign: int = 1) -> list[Tensor]:
    x, y = leaf(4, 3), leaf(3)
    return [(x.detach().abs() * sign).requires_grad_(), y]


# What Dynamo itself refuses: results that are operands, and numbers and integers that are carried
# where gradients flow, or a condition inside another body.  And what it loses: the backward of a
# function of what is carried, if the first that is carried does not require grad.
REFUSED = {
    scanned_where_a_custom_function_becomes_active,
    looped_where_a_custom_function_becomes_active,
    branch_that_returns_what_it_is_given,
    scanned_where_one_carry_is_fixed,
    looped_with_a_number,
    loop_in_scan,
}


@pytest.mark.parametrize("function", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_derivatives_are_those_of_the_meaning(function: Program) -> None:
    """Kernels are compiled for what Dynamo takes, to order 2, and here for the rest."""
    check(function, inputs(), 3, options=NATIVELY if function in REFUSED else OP_BY_OP)


@pytest.mark.parametrize(
    "function",
    [each for name, each in PROGRAMS.items() if "branch" in name],
    ids=lambda f: f.__name__,
)
def test_so_are_those_of_the_other_branch(function: Program) -> None:
    check(function, inputs(-1), 3, options=OP_BY_OP)


@pytest.mark.parametrize(
    "function",
    [each for each in PROGRAMS.values() if each not in REFUSED],
    ids=lambda f: f.__name__,
)
def test_dynamo_gives_the_same(function: Program) -> None:
    check(function, inputs(), 2, through=Through.DYNAMO)


def sized(rows: int, columns: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rows * 10 + columns)
    x = torch.rand(rows, columns, dtype=torch.float64, generator=generator)
    y = torch.randn(columns, dtype=torch.float64, generator=generator)
    return [x.requires_grad_(), y.requires_grad_()]


@pytest.mark.filterwarnings("error::adjoint.FallbackWarning")
@pytest.mark.parametrize(
    "function",
    [branch, scanned, scanned_with_closures, scan_in_scan, branch_in_map, looped, loop_that_draws],
    ids=lambda f: f.__name__,
)
def test_one_capture_holds_for_other_sizes(function: Program) -> None:
    compiled = bridged(function, *sized(4, 3), dynamic=True)
    for rows, columns in [(4, 3), (2, 5), (5, 1), (1, 1)]:
        given = sized(rows, columns)
        compare(derivatives(compiled, given, 2), derivatives(function, given, 2))


def test_a_scan_of_no_steps() -> None:
    compiled = bridged(scanned, *sized(4, 3), dynamic=True)
    x, y = sized(0, 3)
    carry, steps = compiled(x, y)
    assert steps.shape == (0, 3)
    first = torch.autograd.grad(carry.sin().sum(), [x, y], create_graph=True)
    torch.testing.assert_close(first[1], y.cos())
    assert first[0].shape == (0, 3)
    torch.testing.assert_close(torch.autograd.grad(first[1].sum(), y)[0], -y.sin())


@pytest.mark.parametrize("function", [branch, scanned, mapped, looped], ids=lambda f: f.__name__)
def test_bodies_are_differentiated_by_us(function: Program) -> None:
    captured = adjoint.capture(function, *inputs())
    graph = Compiler(Options()).differentiable(captured.graph_module)
    assert isinstance(graph, DifferentiableGraph)
    graph(inputs())
    (recording,) = graph.grad_programs()
    backward = recording.derivative.first_backward.graph_module
    # The loop is still one in the backward graph, and not so many steps.
    assert len(list(filter(has_bodies, backward.graph.nodes))) == 1


def test_the_derivative_of_a_loop_does_not_grow_with_it() -> None:
    nodes = []
    for rows in (4, 40):
        module = adjoint.capture(scanned, *sized(rows, 3)).graph_module
        made = Compiler(Options()).derivative(module, (0, 1))
        assert made is not None
        nodes.append(len(made.first_backward.graph_module.graph.nodes))
    assert nodes[0] == nodes[1]


def test_what_a_reverse_branch_does_not_use_may_be_written_to() -> None:
    x, y = leaf(3), leaf(3)
    compiled = bridged(lambda x, y: cond(x.sum() > 0, torch.add, torch.add, (x, y)), x, y)
    result = compiled(x, y)
    with torch.no_grad():
        x.zero_()
    assert torch.equal(torch.autograd.grad(result.sum(), y)[0], torch.ones_like(y))


def seen(run: Any) -> list[Any]:
    """Gradients by all that autograd offers besides `grad`."""
    found: list[Any] = []
    torch.manual_seed(0)
    x, y = inputs()

    def double(gradient: Tensor) -> Tensor:
        found.append(gradient.clone())
        return 2 * gradient

    x.register_hook(double)
    first, second = run(x, y)
    first.register_hook(lambda g: g * 3)
    total = first.sum() + second.sin().sum()
    total.backward(retain_graph=True)
    found.append(x.grad.clone())  # type: ignore[union-attr]
    total.backward()
    found += [x.grad, y.grad]
    other = inputs()
    other[1].requires_grad_(False)
    run(*other)[0].sum().backward(inputs=[other[0]])
    found.append(other[0].grad)
    basis = torch.eye(3, dtype=x.dtype)
    x, y = inputs()
    first, _ = run(x, y)
    found += torch.autograd.grad(first, [x, y], basis, is_grads_batched=True)
    return found


@pytest.mark.parametrize(
    "function",
    [branch_of_several_results, scanned, mapped],
    ids=lambda f: f.__name__,
)
def test_autograd_sees_what_it_sees_in_eager(function: Program) -> None:
    def vector(x: Tensor, y: Tensor) -> Any:
        first, second = function(x, y)
        return first.reshape(-1, 3).sum(0), second

    torch._dynamo.reset()
    ours = seen(torch.compile(vector, backend="adjoint", fullgraph=True))
    for mine, theirs in zip(ours, seen(vector), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(
    "function", [branch, scanned, branch_in_scan, mapped, looped], ids=lambda f: f.__name__
)
def test_transforms_agree_with_the_meaning(function: Program) -> None:
    x, y = (each.detach() for each in inputs())

    def scalar(x: Tensor) -> Tensor:
        results = function(x, y)
        return sum(each.sin().sum() for each in torch.utils._pytree.tree_leaves(results))  # type: ignore[no-any-return]

    def twice(grad: Any) -> Any:
        return grad(lambda x: grad(scalar)(x).sin().sum())

    v = torch.ones_like(x)
    torch.testing.assert_close(adjoint.grad(scalar)(x), torch.func.grad(scalar)(x))
    torch.testing.assert_close(twice(adjoint.grad)(x), twice(torch.func.grad)(x))
    expected = torch.func.jvp(scalar, (x,), (v,))[1]
    torch.testing.assert_close(adjoint.jvp(scalar, (x,), (v,))[1], expected)


@pytest.mark.parametrize("function", [scanned, scan_in_scan, mapped], ids=lambda f: f.__name__)
def test_transforms_that_batch_agree_with_the_meaning(function: Program) -> None:
    x, y = (each.detach() for each in inputs())

    def scalar(y: Tensor) -> Any:
        return function(x, y)[0].sin().sum()

    torch.testing.assert_close(adjoint.hessian(scalar)(y), torch.func.hessian(scalar)(y))
    hessian = adjoint.jacrev(adjoint.grad(scalar))(y)
    torch.testing.assert_close(hessian, torch.func.hessian(scalar)(y))
