from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor
from torch.compiler import nested_compile_region

import adjoint
from adjoint.graph.subgraphs import subgraphs_of
from tests import control_flow
from tests.control_flow import cond, map_slices, scan, while_loop
from tests.parity import ROUTES, Route, Row, Table, check, leaf, plain, refused

Pair: TypeAlias = tuple[Tensor, Tensor]

TABLE = Table()
OUTSIDE = torch.arange(3, dtype=torch.float64)


def leaves() -> Pair:
    return leaf(3), leaf(3)


def plains() -> Pair:
    return plain(3), plain(3)


def squares() -> Pair:
    return leaf(4, 3), leaf(3)


def is_positive(x: Tensor) -> Tensor:
    return x.sum() > 0


# cond ---------------------------------------------------------------------------------------------


@TABLE(leaves, order=2)
def cond_takes_one_branch(x: Tensor, y: Tensor) -> Any:
    return cond(is_positive(x), lambda a, b: a * b.sin(), lambda a, b: a + b * b, (x, y))


@TABLE(plains)
def cond_without_gradients(x: Tensor, y: Tensor) -> Any:
    return cond(is_positive(x), lambda a: a.sin(), lambda a: a.cos(), (x,))


@TABLE(leaves)
def cond_takes_the_other(x: Tensor, y: Tensor) -> Any:
    return cond(x.sum() > 1e9, lambda a: a.sin(), lambda a: a.cos(), (x,)) * y


@TABLE(leaves, order=2)
def cond_over_trees(x: Tensor, y: Tensor) -> Any:
    def true(tree: Any) -> Any:
        return {
            "sum": tree["pair"][0] + tree["pair"][1],
            "rest": [tree["x"].sin(), (tree["x"] * 2,)],
        }

    def false(tree: Any) -> Any:
        return {"sum": tree["pair"][0] * 2, "rest": [tree["x"].cos(), (tree["x"] * 3,)]}

    result = cond(is_positive(x), true, false, ({"pair": (x, y), "x": x},))
    return result["sum"], result["rest"][0], result["rest"][1][0] * 2


@TABLE(leaves, order=2)
def cond_closes_over_traced_tensors(x: Tensor, y: Tensor) -> Any:
    w, v = x * 2, y.exp()
    return cond(is_positive(x), lambda a: (a * w).sin(), lambda a: a.cos() + v, (x,))


@TABLE(leaves)
def cond_closes_over_a_tensor_from_outside(x: Tensor, y: Tensor) -> Any:
    return cond(is_positive(x), lambda a: a * OUTSIDE, lambda a: a - OUTSIDE, (x,)) + y


@TABLE(leaves)
def cond_without_operands(x: Tensor, y: Tensor) -> Any:
    return cond(is_positive(x), lambda: x * y, lambda: x + y, ())


@TABLE(leaves)
def cond_with_no_grad_in_a_branch(x: Tensor, y: Tensor) -> Any:
    def true(a: Tensor, b: Tensor) -> Tensor:
        with torch.no_grad():
            c = a.exp()
        return b * c

    return cond(is_positive(x), true, true, (x, y))


@TABLE(leaves)
def cond_under_no_grad(x: Tensor, y: Tensor) -> Any:
    with torch.no_grad():
        z = cond(is_positive(x), lambda a: a.sin(), lambda a: a.cos(), (x,))
    return z * y


def cond_on_a_python_bool(x: Tensor, y: Tensor) -> Any:
    return cond(x.dim() == 1, lambda a: a * y, lambda a: a + y, (x,))


@TABLE(leaves)
def cond_returns_a_view(x: Tensor, y: Tensor) -> Any:
    return cond(is_positive(x), lambda a: (a * 2)[1:], lambda a: (a * 3)[1:], (x,)) * y[0]


@TABLE(leaves)
def cond_writes_to_its_own(x: Tensor, y: Tensor) -> Any:
    def true(a: Tensor) -> Tensor:
        b = a * 2
        b[0].add_(1)
        return b

    return cond(is_positive(x), true, lambda a: a.sin(), (x,)) * y


@TABLE(leaves, order=2)
def cond_in_cond(x: Tensor, y: Tensor) -> Any:
    w = y.sin()

    def true(a: Tensor) -> Any:
        return cond(a[0] > 0, lambda b: b * w, lambda b: b + w * y, (a,))

    return cond(is_positive(x), true, true, (x,))


@TABLE(leaves)
def cond_twice(x: Tensor, y: Tensor) -> Any:
    z = cond(is_positive(x), lambda a: a.sin(), lambda a: a.cos(), (x,))
    return cond(is_positive(y), lambda a: a.sin(), lambda a: a.cos(), (z,))


@TABLE(leaves)
def cond_draws_random_numbers(x: Tensor, y: Tensor) -> Any:
    def true(a: Tensor) -> Tensor:
        return a * torch.rand(3, dtype=a.dtype)

    return cond(is_positive(x), true, true, (x,)) + torch.rand(3, dtype=y.dtype)


@TABLE(leaves)
def cond_that_only_draws(x: Tensor, y: Tensor) -> Any:
    def draw(a: Tensor) -> Tensor:
        return a * torch.rand(3, dtype=a.dtype)

    cond(is_positive(x), draw, draw, (x,))
    return y * torch.rand(3, dtype=y.dtype)


# while_loop ---------------------------------------------------------------------------------------


@TABLE(plains)
def while_counts_a_tensor(x: Tensor, y: Tensor) -> Any:
    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * y), (torch.tensor(0), x))


@TABLE(plains)
def while_counts_an_int(x: Tensor, y: Tensor) -> Any:
    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * y), (0, x))


@TABLE(plains)
def while_stops_on_a_value(x: Tensor, y: Tensor) -> Any:
    (result,) = while_loop(lambda a: a.abs().sum() > 0.5, lambda a: (a / 2,), (x,))
    return result * y


@TABLE(plains)
def while_never_runs(x: Tensor, y: Tensor) -> Any:
    (result,) = while_loop(lambda a: a.sum() > 1e9, lambda a: (a * y,), (x,))
    return result + 1


@TABLE(plains)
def while_in_cond(x: Tensor, y: Tensor) -> Any:
    def loop(a: Tensor) -> Any:
        return while_loop(lambda i, b: i < 2, lambda i, b: (i + 1, b * y), (torch.tensor(0), a))[1]

    return cond(is_positive(x), loop, lambda a: a.sin(), (x,))


@TABLE(plains)
def cond_in_while(x: Tensor, y: Tensor) -> Any:
    def step(i: Tensor, a: Tensor) -> Any:
        return i + 1, cond(is_positive(a), lambda b: b - y, lambda b: b + 2, (a,))

    return while_loop(lambda i, a: i < 4, step, (torch.tensor(0), x))


# scan and map -------------------------------------------------------------------------------------


@TABLE(squares, order=2)
def scan_carries_and_stacks(x: Tensor, y: Tensor) -> Any:
    return scan(lambda carry, a: (carry + a * y, carry * a), y.clone(), x)


@TABLE(squares)
def scan_over_trees(x: Tensor, y: Tensor) -> Any:
    def combine(carry: Any, each: Any) -> Any:
        return {"c": carry["c"] * each[0]}, (each[1].sin(), carry["c"] + 1)

    return scan(combine, {"c": y.clone()}, (x, x * 2))


@TABLE(squares)
def scan_backwards(x: Tensor, y: Tensor) -> Any:
    return scan(lambda carry, a: (carry + a, carry * a), y.clone(), x, reverse=True)


@TABLE(lambda: (leaf(3, 4), leaf(3)))
def scan_along_another_axis(x: Tensor, y: Tensor) -> Any:
    carry, steps = scan(lambda carry, a: (carry + a, carry * a), y.clone(), x, dim=1)
    # Which axis the steps are stacked along is torch's to say, and changed after 2.11.
    return carry, steps.sum() * 1


@TABLE(squares)
def scan_in_scan(x: Tensor, y: Tensor) -> Any:
    def outer(carry: Tensor, row: Tensor) -> Any:
        inner, products = scan(lambda c, a: (c + a, c * a), carry.sum(), row)
        return carry + inner, products

    return scan(outer, y.clone(), x)


@TABLE(squares, order=2)
def map_applies_to_each(x: Tensor, y: Tensor) -> Any:
    return map_slices(lambda a: a.sin() * y, x)


@TABLE(squares)
def map_over_trees(x: Tensor, y: Tensor) -> Any:
    return map_slices(lambda t: (t["a"] * t["b"], t["a"].sum()), {"a": x, "b": x + 1})


@TABLE(squares)
def cond_in_map(x: Tensor, y: Tensor) -> Any:
    def each(a: Tensor) -> Any:
        return cond(is_positive(a), lambda b: b * y, lambda b: b.sin(), (a,))

    return map_slices(each, x)


# regions that are compiled once -------------------------------------------------------------------


@nested_compile_region
def region(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sin()


@TABLE(leaves, order=2)
def nested_regions(x: Tensor, y: Tensor) -> Any:
    return region(region(x, y), y) + 1


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("row", TABLE, ids=str)
def test_control_flow_is_eagers(row: Row, route: Route) -> None:
    row.check(route)


@pytest.mark.filterwarnings("ignore:Pred is a Python constant")
@pytest.mark.parametrize("route", ROUTES)
def test_a_python_bool_chooses_once(route: Route) -> None:
    check(cond_on_a_python_bool, leaves, route)


# What capture makes of it -------------------------------------------------------------------------


def test_bodies_stay_graphs() -> None:
    captured = adjoint.capture(cond_closes_over_traced_tensors, *leaves())
    names = [node.target for node in captured.graph_module.graph.nodes]
    assert torch.ops.higher_order.cond in names
    bodies = subgraphs_of(captured.graph_module)
    assert len(bodies) == 2
    inputs = [len(body.graph.find_nodes(op="placeholder")) for body in bodies.values()]
    assert inputs[0] == inputs[1]


def test_both_branches_hold_after_one_capture() -> None:
    x, y = torch.ones(3), torch.ones(3)
    captured = adjoint.capture(cond_closes_over_traced_tensors, x, y)
    for sign in (1, -1):
        expected = cond_closes_over_traced_tensors(sign * x, y)
        assert torch.equal(adjoint.run(captured, sign * x, y), expected)


# Refusals -----------------------------------------------------------------------------------------


def writes_to_its_operand(x: Tensor, y: Tensor) -> Any:
    return cond(is_positive(x), lambda a: a.add_(1), lambda a: a.sin(), (x,))


def writes_to_what_it_closes_over(x: Tensor, y: Tensor) -> Any:
    return cond(is_positive(x), lambda a: y.add_(a), lambda a: a.sin(), (x,))


def writes_in_a_loop(x: Tensor, y: Tensor) -> Any:
    return map_slices(lambda a: y.add_(a.sum()) * a, x)


def branches_differ_in_shape(x: Tensor, y: Tensor) -> Any:
    return cond(is_positive(x), lambda a: a[:2] * 1, lambda a: a.sin(), (x,))


def branches_differ_in_dtype(x: Tensor, y: Tensor) -> Any:
    return cond(is_positive(x), lambda a: a.float(), lambda a: a.sin(), (x,))


def branches_differ_in_structure(x: Tensor, y: Tensor) -> Any:
    return cond(is_positive(x), lambda a: (a * 1,), lambda a: [a.sin()], (x,))


def branches_of_a_batch_differ_in_structure(x: Tensor, y: Tensor) -> Any:
    def either(a: Tensor) -> Any:
        return cond(is_positive(a), lambda a: (a * 1,), lambda a: [a.sin()], (a,))

    return torch.func.vmap(either)(x)


class OwnOperator(torch._ops.HigherOrderOperator):
    """An operator that no one has implemented."""

    def __init__(self) -> None:
        super().__init__("own_operator")  # type: ignore[no-untyped-call]

    def __call__(self, x: Tensor) -> Any:
        return super().__call__(x)  # type: ignore[no-untyped-call]


own_operator = OwnOperator()


def unknown_operator(x: Tensor, y: Tensor) -> Any:
    return own_operator(x)


def below_torch_functions(x: Tensor, y: Tensor) -> Any:
    with torch._C.DisableTorchFunction():
        return cond(is_positive(x), lambda a: a.sin(), lambda a: a.cos(), (x,))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (writes_to_its_operand, "inside cond: it changes a tensor from outside"),
        (writes_to_what_it_closes_over, "an in-place write inside cond"),
        (writes_in_a_loop, "an in-place write inside map"),
        (branches_differ_in_shape, "its branches return f64.2. and f64.3."),
        (branches_differ_in_dtype, "its branches return f32.3. and f64.3."),
        (
            branches_differ_in_structure,
            r"(?s)its branches return .*return the same number of tensors, with the same shapes",
        ),
        (
            branches_of_a_batch_differ_in_structure,
            "its branches return results of different forms",
        ),
        (unknown_operator, "own_operator: capture knows neither its body nor what it computes"),
        (below_torch_functions, "the higher-order operator cond: capture does not know it"),
    ],
)
def test_what_a_body_must_not_do(function: Any, message: str) -> None:
    x, y = torch.randn(3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    before = x.clone(), y.clone()
    with pytest.raises(adjoint.CaptureError, match=message) as raised:
        adjoint.capture(function, x, y)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])
    assert raised.value.source is not None
    assert raised.value.source.file in (control_flow.__file__, __file__)


def test_a_derivative_through_a_body_inside_the_program_is_refused() -> None:
    def program(x: Tensor) -> Any:
        z = cond(is_positive(x), lambda a: a.sin(), lambda a: a.cos(), (x,))
        return torch.autograd.grad(z.sum(), x)

    error = refused(program, lambda: leaf(3))
    assert "a derivative of cond" in str(error)


def branching(x: Tensor) -> Any:
    def either(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x * 2

    def other(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.cos() * x, x**3

    sine, double = torch.cond(x.sum() > 0, either, other, (x,))
    return (sine * double).sum()


def chosen(x: Tensor) -> Tensor:
    """The same, as `torch.func` can batch it."""
    return torch.where(x.sum() > 0, (x.sin() * x * 2).sum(), (x.cos() * x**4).sum())


@pytest.mark.parametrize("sign", [1, -1])
def test_jacobians_of_a_branch(sign: int) -> None:
    x, func = plain(3).abs() * sign, torch.func
    torch.testing.assert_close(adjoint.hessian(branching)(x), func.hessian(chosen)(x))
    third = func.jacrev(func.hessian(chosen))(x)
    torch.testing.assert_close(adjoint.jacrev(adjoint.hessian(branching))(x), third)


def test_a_branch_for_each_element_of_a_batch() -> None:
    xs, func = torch.stack([plain(3).abs(), -plain(3).abs(), plain(3)]), torch.func
    mine, theirs = (lambda xs, f=f: func.vmap(f)(xs).sum() for f in (branching, chosen))
    torch.testing.assert_close(adjoint.grad(mine)(xs), func.grad(theirs)(xs))
    torch.testing.assert_close(adjoint.hessian(mine)(xs), func.hessian(theirs)(xs))
    inside = func.vmap(adjoint.grad(branching))(xs)
    torch.testing.assert_close(inside, func.vmap(func.grad(chosen))(xs))


def stepping(steps: int, counter: Any, x: Tensor) -> Any:
    def step(i: Any, x: Tensor) -> Any:
        return i + 1, x.sin() * x.sum()

    return (while_loop(lambda i, x: i < steps, step, (counter, x))[1] ** 2).sum()


@pytest.mark.parametrize(
    ("steps", "counter"),
    [(0, 0), (1, torch.tensor(0)), (3, 0), (3, torch.tensor(0))],
    ids=["none", "one, counted by a tensor", "three", "three, counted by a tensor"],
)
def test_jacobians_of_a_loop(steps: int, counter: Any) -> None:
    x, func, loop = plain(3), torch.func, partial(stepping, steps, counter)
    written_out = partial(stepping, steps, 0)
    torch.testing.assert_close(adjoint.hessian(loop)(x), func.hessian(written_out)(x))
    third = func.jacrev(func.hessian(written_out))(x)
    torch.testing.assert_close(adjoint.jacrev(adjoint.hessian(loop))(x), third)


def scanning(x: Tensor, y: Tensor) -> Any:
    last, each = scan(lambda c, s: (c * s.sin(), c + s * y), y.sum(), x)
    return last * each.sum()


def mapping(x: Tensor, y: Tensor) -> Any:
    return map_slices(lambda s: s.sin() * s * y, x).sum()


@pytest.mark.parametrize(
    ("loop", "axes"),
    [
        *((scanning, axes) for axes in [(0, None), (None, 0), (1, 0)]),
        *((mapping, axes) for axes in [(0, None), (1, 0)]),
    ],
)
def test_a_loop_for_each_element_of_a_batch(loop: Any, axes: Any) -> None:
    x, y, func = plain(3, 3), plain(3, 3), torch.func
    given = x if axes[0] is not None else x[0], y if axes[1] is not None else y[0]

    def total(x: Tensor, y: Tensor) -> Any:
        return func.vmap(loop, axes)(x, y).cos().sum()

    for argnum in range(2):
        mine = adjoint.grad(total, argnum)(*given)
        torch.testing.assert_close(mine, func.grad(total, argnum)(*given))


def differentiated(function: Any, x: Tensor) -> Any:
    return torch.func.grad(function)(x)


def pushed_forward(function: Any, x: Tensor) -> Any:
    return torch.func.jvp(function, (x,), (x,))


def either_sum(x: Tensor) -> Any:
    return cond(is_positive(x), lambda a: a.sin(), lambda a: a.cos(), (x,)).sum()


def looping(x: Tensor) -> Any:
    return stepping(2, torch.tensor(0), x)


def closes_over(x: Tensor) -> Any:
    return cond(torch.tensor(True), lambda: x.sin(), lambda: x.cos(), ()).sum()


LEVELS = [
    (either_sum, "cond"),
    (closes_over, "cond"),
    (looping, "while_loop"),
    (lambda x: scanning(x, x), "scan"),
    (lambda x: mapping(x, x), "map"),
]


@pytest.mark.parametrize("transform", [differentiated, pushed_forward])
@pytest.mark.parametrize(("function", "name"), LEVELS)
def test_a_body_inside_a_transform_of_torch_is_refused(
    transform: Any, function: Any, name: str
) -> None:
    error = refused(lambda x: transform(function, x), lambda: plain(3))
    assert f"{name} inside torch.func.grad" in str(error)
    assert "use adjoint.grad" in str(error)
    assert error.source is not None
    assert "cond" in error.source.text or "operator(" in error.source.text


def test_a_loop_for_each_element_of_a_batch_is_refused() -> None:
    with pytest.raises(adjoint.CaptureError, match="while_loop inside torch"):
        adjoint.capture(lambda x: torch.func.vmap(looping)(x), plain(3, 3))
    with pytest.raises(adjoint.CaptureError, match="map inside torch"):
        adjoint.capture(lambda x: torch.func.vmap(lambda y: mapping(x, y))(x), plain(3, 3))
