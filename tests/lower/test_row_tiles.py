from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from adjoint.loops.plan import Plan, Product, RowTiles, SlotKind
from adjoint.lower.row_tiles import MIN_ROWS, Side, row_stride, side_of, sums_over_rows
from adjoint.target import cpu_target
from tests.lowering import graph_of, lower, native_program, program_of

Function = Callable[..., Any]

# How far results may be from exact ones, relative to the largest.
CLOSE = {torch.float32: 1e-5, torch.float64: 1e-13}


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def regions(plan: Plan) -> list[RowTiles]:
    return [step for step in plan.steps if isinstance(step, RowTiles)]


def products(plan: Plan) -> list[Product]:
    return [each for tiles in regions(plan) for each in tiles.body if isinstance(each, Product)]


def assert_close(ours: Any, exact: Any, dtype: torch.dtype) -> None:
    some = [ours] if isinstance(ours, Tensor) else ours
    others = [exact] if isinstance(exact, Tensor) else exact
    assert len(some) == len(others)
    for one, other in zip(some, others, strict=True):
        assert one.shape == other.shape
        assert one.dtype == (dtype if other.dtype.is_floating_point else other.dtype)
        far = (one.double() - other.double()).abs().max() / other.double().abs().max()
        assert far <= CLOSE[dtype], (one, other)


def cast(inputs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """In another type, laid out as they are."""
    return [x.to(dtype) if x.dtype.is_floating_point else x for x in inputs]


W, V, U = random(24, 40, seed=1) / 5, random(40, 16, seed=2) / 6, random(16, 9, seed=3) / 4


def layers(x: Tensor, w: Tensor, v: Tensor, u: Tensor) -> Tensor:
    return torch.tanh(torch.tanh(torch.tanh(x @ w) @ v) @ u)


def layer(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
    return (x @ w + b).sigmoid() @ v


def transposed_weights(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return torch.relu(x @ w.t()).exp() @ v.t()


def sums(x: Tensor, w: Tensor) -> list[Tensor]:
    y = torch.tanh(x @ w)
    return [y, y.sum(0), (y * y).sum(), y.sum(1), y.amax(0)]


def over_rows(x: Tensor, w: Tensor) -> list[Tensor]:
    y = torch.tanh(x @ w)
    z = y.exp()
    return [x.t() @ y, y.t() @ z, z.t() @ x]


def backward(x: Tensor, w: Tensor, v: Tensor, cotangent: Tensor) -> list[Tensor]:
    y = torch.tanh(x @ w)
    below = (cotangent @ v.t()) * (1 - y * y)
    return [y.t() @ cotangent, x.t() @ below, below.sum(0), below @ w.t()]


def slices(x: Tensor, w: Tensor) -> list[Tensor]:
    y = torch.tanh(x[:, 3:15] @ w[5:17, 4:30])
    z = torch.tanh(y[:, 2:20] @ w[1:19, 3:24])
    return [z, y[:, 4:9].t() @ z, x[:, 7:19].t() @ y[:, 1:]]


def rows_of_an_input(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(torch.tanh(x[2:] @ w) * 2) @ w.t()


def gathered(x: Tensor, w: Tensor, rows: Tensor) -> Tensor:
    return torch.tanh(torch.tanh(x[rows] @ w) @ w.t())


def gathered_and_scattered(x: Tensor, w: Tensor, rows: Tensor) -> list[Tensor]:
    y = torch.tanh((x[rows] * 2) @ w)
    return [x.new_zeros(x.shape[0], w.shape[1]).index_add(0, rows, y.exp()), y]


def gathered_from_a_region(x: Tensor, w: Tensor, rows: Tensor) -> Tensor:
    """Other rows than those at hand: the region has to end before."""
    y = torch.tanh(x @ w)
    return torch.tanh(y[rows] @ w.t())


def softmax(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).softmax(1) @ w.t()


def a_sum_used_later(x: Tensor, w: Tensor) -> Tensor:
    y = torch.tanh(x @ w)
    return torch.tanh((y - y.mean(0)) @ w.t())


def columns_that_are_rows(x: Tensor, w: Tensor) -> Tensor:
    """The first of the two is `w' @ x'`, whose columns are the rows of the second."""
    y = torch.tanh(w.t() @ x.t())
    return torch.tanh(y.t() @ w.t())


def squares(x: Tensor, y: Tensor) -> list[Tensor]:
    """Rows and columns, and what is summed over, are as many."""
    z = torch.tanh(x @ y)
    return [z @ y, z.t() @ y, y @ z, (y @ z.t()).exp()]


def three_dimensions(x: Tensor, w: Tensor) -> Tensor:
    y = torch.tanh(x @ w)
    return (y.reshape(-1, 8, 5).sum(2) * 2).exp() @ w[:8]


def pairs(x: Tensor, w: Tensor, v: Tensor) -> list[Tensor]:
    """Two chains side by side."""
    y, z = torch.tanh(x @ w), torch.sigmoid(x @ w * 2)
    return [y @ v, z @ v, (y * z).t() @ (y @ v)]


def flipped(x: Tensor, w: Tensor) -> Tensor:
    y = torch.tanh(x @ w)
    return (y.flip([0]) * y).exp() @ w.t()


def shifted(x: Tensor, w: Tensor) -> Tensor:
    """As many rows, but of others."""
    y = torch.tanh(x @ w)
    z = torch.cat([y[1:], y[:1]])
    return torch.tanh(z * y) @ w.t()


def mixed(x: Tensor, w: Tensor) -> list[Tensor]:
    y = torch.tanh(x @ w)
    return [y, (y > 0).sum(1), (y > 0.5), y.argmax(1)]


def overlapping(x: Tensor, w: Tensor, column: Tensor) -> list[Tensor]:
    """Sides that are expanded, flipped, or windows over one another."""
    y = torch.tanh(x @ w)
    sides = [w[0].expand(24, 40), w[:, :1].expand(24, 40), w.flip([0]), w.flip([1])]
    sides += [w.view(-1).unfold(0, 40, 1)[:24]]
    made = [torch.tanh(y @ side.t()) for side in sides]
    return [*made, torch.tanh(torch.tanh(column.expand(-1, 24) @ w) @ w.t())]


def places(most: int, count: int) -> Tensor:
    return torch.arange(count).mul(7919).remainder(most)


CASES: list[tuple[Function, Callable[[int], list[Tensor]]]] = [
    (layers, lambda n: [random(n, 24), W, V, U]),
    (layer, lambda n: [random(n, 24), W, random(40), V]),
    (transposed_weights, lambda n: [random(n, 24), W.t().contiguous(), V.t().contiguous()]),
    (transposed_weights, lambda n: [random(24, n).t(), W.t(), V.t()]),
    (sums, lambda n: [random(n, 24), W]),
    (over_rows, lambda n: [random(n, 24), W]),
    (over_rows, lambda n: [random(n, 48)[:, ::2], W]),
    (over_rows, lambda n: [random(2 * n, 24)[::2], W]),
    (backward, lambda n: [random(n, 24), W, V, random(n, 16)]),
    (slices, lambda n: [random(n, 24), W]),
    (rows_of_an_input, lambda n: [random(n, 24), W]),
    (gathered, lambda n: [random(700, 24), W, places(700, n)]),
    (gathered_and_scattered, lambda n: [random(700, 24), W, places(700, n)]),
    (gathered_and_scattered, lambda n: [random(50, 24), W, places(50, n)]),
    (gathered_from_a_region, lambda n: [random(n, 24), W, places(n, n)]),
    (softmax, lambda n: [random(n, 24), W]),
    (a_sum_used_later, lambda n: [random(n, 24), W]),
    (columns_that_are_rows, lambda n: [random(n, 24), W]),
    (three_dimensions, lambda n: [random(n, 24), W]),
    (pairs, lambda n: [random(n, 24), W, V]),
    (flipped, lambda n: [random(n, 24), W]),
    (shifted, lambda n: [random(n, 24), W]),
    (mixed, lambda n: [random(n, 24), W]),
    (overlapping, lambda n: [random(n, 24), W, random(n, 1)]),
]
NAMES = [f"{function.__name__}-{place}" for place, (function, _) in enumerate(CASES)]


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_a_tiled_program_computes_what_eager_does(case: Any, dtype: torch.dtype) -> None:
    function, make = case
    for rows in (601, 4999):
        inputs = make(rows)
        program = native_program(graph_of(function, cast(inputs, dtype)))
        assert program is not None
        if rows == 4999 and function is not columns_that_are_rows:
            assert regions(program.plan), "nothing was tiled"
        exact = function(*cast(cast(inputs, dtype), torch.float64))
        for count in (1, 2, 3, 1):
            with threads(count):
                assert_close(program(cast(inputs, dtype)), exact, dtype)


def test_what_shares_no_rows_is_tiled_apart() -> None:
    """Otherwise all recomputations of a backward graph would run at once."""

    def side_by_side(x: Tensor, y: Tensor, w: Tensor, v: Tensor) -> list[Tensor]:
        return [torch.tanh(each @ w) @ v for each in (x, y)]

    def joined(x: Tensor, y: Tensor, w: Tensor, v: Tensor) -> Tensor:
        one, other = side_by_side(x, y, w, v)
        return one * other

    inputs = [random(4999, 24), random(4999, 24, seed=1), W, V]
    for function, count in ((side_by_side, 2), (joined, 1)):
        program = program_of(function, inputs)
        assert len(regions(program.plan)) == count
        assert_close(program(list(inputs)), function(*inputs), torch.float64)


@pytest.mark.parametrize("size", [512, 600])
def test_squares(size: int) -> None:
    inputs = [random(size, size) / size, random(size, size, seed=1)]
    program = program_of(squares, inputs)
    assert regions(program.plan)
    for count in (1, 2):
        with threads(count):
            assert_close(program(list(inputs)), squares(*inputs), torch.float64)


def with_any_rows(function: Function, inputs: list[Tensor], rows: int) -> GraphModule:
    """The graph of a function for any number of rows, all other sizes as they are."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fakes: list[Tensor] = []
    for x in inputs:
        sizes = [DimDynamic.DUCK if size == rows else DimDynamic.STATIC for size in x.shape]
        context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
        fakes.append(mode.from_tensor(x, symbolic_context=context))
    graph_module: GraphModule = make_fx(function)(*fakes)
    return graph_module


# Graphs with a stride that no size gives run op by op.
@pytest.mark.parametrize(
    "case", [case for case in CASES if all(x.is_contiguous() for x in case[1](9))]
)
def test_one_program_for_any_number_of_rows(case: Any) -> None:
    function, make = case
    program = native_program(with_any_rows(function, make(4999), 4999))
    assert program is not None
    if function is not columns_that_are_rows:
        assert regions(program.plan), "nothing was tiled"
    for rows in (4999, 3, 17, 600, 2048, 50, 5001):
        inputs = make(rows)
        for count in (1, 2):
            with threads(count):
                assert_close(program(list(inputs)), function(*inputs), torch.float64)


def test_rows_that_are_not_finite_stay_where_they_are() -> None:
    """Also in what is summed over rows: memory of an earlier call is cleared, not multiplied."""
    x = random(1201, 24)
    program = program_of(over_rows, [x, W])
    wrong = x.clone()
    wrong[1000, 3] = torch.nan
    wrong[7, 4] = torch.inf
    for given in (x, wrong, x):
        for ours, eager in zip(program([given, W]), over_rows(given, W), strict=True):
            torch.testing.assert_close(ours, eager, rtol=1e-10, atol=1e-10, equal_nan=True)


# What is tiled ------------------------------------------------------------------------------------


def test_values_that_only_the_rows_at_hand_need_are_local() -> None:
    plan = program_of(layers, [random(4999, 24), W, V, U]).plan
    (tiles,) = regions(plan)
    assert len(tiles.body) == 6
    kinds = [slot.kind for slot in plan.slots]
    assert kinds.count(SlotKind.LOCAL) == 5
    assert kinds.count(SlotKind.TEMPORARY) == 0


def test_a_sum_over_rows_is_known_after_the_region() -> None:
    plan = program_of(a_sum_used_later, [random(4999, 24), W]).plan
    assert len(regions(plan)) == 2
    first, second = (plan.steps.index(tiles) for tiles in regions(plan))
    assert second > first + 1


def test_a_sum_over_rows_is_precise() -> None:
    """Each block of rows is added up by itself."""
    inputs = [random(100000, 16) + 1, random(16, 16)]
    program = program_of(sums_of_a_layer, inputs)
    assert regions(program.plan)
    (found,) = program(list(inputs))
    (exact,) = sums_of_a_layer(*(each.double() for each in inputs))
    assert (found.double() - exact).abs().max() < 1e-6 * exact.abs().max()


def sums_of_a_layer(x: Tensor, w: Tensor) -> list[Tensor]:
    return [((x @ w).tanh() + 1).sum(0)]


def test_products_over_rows_are_parts_of_a_region() -> None:
    plan = program_of(backward, [random(4999, 24), W, V, random(4999, 16)]).plan
    (tiles,) = regions(plan)
    assert [each.sums for each in products(plan)].count(True) == 2
    assert len(tiles.begin) >= 2


def test_other_rows_than_those_at_hand_are_not_read_in_a_region() -> None:
    for function, *more in ((gathered_from_a_region, places(4999, 4999)), (flipped,), (shifted,)):
        plan = program_of(function, [random(4999, 24), W, *more]).plan
        inside = [[each for each in t.body if isinstance(each, Product)] for t in regions(plan)]
        assert [len(each) for each in inside] == [1, 1]


def test_few_rows_and_few_bytes_are_not_tiled() -> None:
    few = MIN_ROWS - 1
    assert not regions(program_of(layers, [random(few, 24), W, V, U]).plan)
    assert not regions(program_of(layer, [random(600, 5), W[:5, :5], random(5), V[:5, :5]]).plan)


def test_tiling_can_be_left_out() -> None:
    graph_module = graph_of(layers, [random(4999, 24), W, V, U])
    assert regions(lower(graph_module))
    assert not regions(lower(graph_module, cpu_target()))


# Sides --------------------------------------------------------------------------------------------


def node_of(function: Function, *inputs: Tensor) -> Node:
    """The last node of a graph."""
    graph = graph_of(function, inputs).graph
    found: Any = next(node for node in graph.nodes if node.op == "output").args[0]
    assert isinstance(found, Node)
    return found


@pytest.mark.parametrize(
    ("function", "offset", "strides"),
    [
        (lambda x: x.t(), 0, (1, 6)),
        (lambda x: x[1:, 2:], 8, (6, 1)),
        (lambda x: x[:, 2:].t(), 2, (1, 6)),
        (lambda x: x[::2], 0, (12, 1)),
        (lambda x: x.view(2, 12), 0, (12, 1)),
    ],
)
def test_a_side_is_two_strides(function: Function, offset: int, strides: tuple[int, int]) -> None:
    made = side_of(node_of(function, torch.zeros(4, 6)))
    assert isinstance(made, Side)
    assert made.base.op == "placeholder"
    assert (made.offset, made.strides) == (offset, strides)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, ::2],
        lambda x: x.view(2, 2, 6).transpose(0, 1)[:, :, ::2].select(2, 1),
        lambda x: x[0].expand(4, 6),
        lambda x: x[:, :1].expand(4, 6),
        lambda x: x.flip([0]),
        lambda x: x.flip([1]),
    ],
)
def test_what_is_no_side(function: Function) -> None:
    assert side_of(node_of(function, torch.zeros(4, 6))) is None


def test_what_lies_by_rows() -> None:
    assert row_stride(node_of(lambda x: x + 1, torch.zeros(4, 6)), 4) == 6
    assert row_stride(node_of(lambda x: x + 1, torch.zeros(2, 3, 5)), 6) == 5
    assert row_stride(node_of(lambda x: x + 1, torch.zeros(2, 1, 3, 5)), 6) == 5
    assert row_stride(node_of(lambda x: x + 1, torch.zeros(3, 2, 5).transpose(0, 1)), 6) is None
    assert row_stride(node_of(lambda x: x + 1, torch.zeros(4, 6)), 6) is None
    assert row_stride(node_of(lambda x: x + 1, torch.zeros(6, 4).t()), 4) is None
    assert row_stride(node_of(lambda x: x.sum(), torch.zeros(4)), 4) is None


def test_where_the_rows_are() -> None:
    node = node_of(torch.mm, torch.zeros(4, 6), torch.zeros(6, 5))
    assert list(sums_over_rows(node, 6)) == [True]
    assert list(sums_over_rows(node, 4)) == [False]
    assert list(sums_over_rows(node, 5)) == []


def block(x: Tensor, scale: Tensor, up: Tensor, down: Tensor) -> list[Tensor]:
    """Part of a transformer: rows are those of every sequence in the batch."""
    y = torch.nn.functional.layer_norm(x, (64,), scale)
    z = x + torch.nn.functional.gelu(y @ up) @ down
    return [z, z.sum((0, 1)), z.transpose(0, 1) * 2, z[:, 1:].mean(2)]


@pytest.mark.parametrize("count", [1, 2])
def test_rows_of_several_dimensions(count: int) -> None:
    inputs = [random(5, 207, 64), random(64), random(64, 96, seed=1), random(96, 64, seed=2)]
    graph_module = graph_of(block, inputs)
    assert len(products(lower(graph_module))) == 2
    with threads(count):
        program = native_program(graph_module)
        assert program is not None
        assert_close(program(list(inputs)), block(*inputs), torch.float64)
