from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from adjoint.torch_private import symbols
from adjoint.torch_private.dynamo import general_shapes
from adjoint.torch_private.fake import DATA_DEPENDENT, FakeTensorMode, make_fake, new_fake_mode
from tests.versions import TORCH


def test_what_a_symbolic_number_means() -> None:
    fake = make_fake(new_fake_mode(), torch.randn(4, 3), True, "x")
    sizes: list[Any] = list(fake.shape)
    expr = symbols.expression(sizes[0] * 2 + sizes[1])
    first, second = symbols.symbols_of(expr)
    assert {first, second} == {symbols.expression(size) for size in sizes}
    assert symbols.evaluate(expr, dict.fromkeys((first, second), 5)) == 15


@pytest.mark.parametrize(("size", "value"), [(2, 20), (5, 6), (9, 0)])
def test_cases(size: int, value: int) -> None:
    n = sympy.Symbol("n", integer=True)
    expr = sympy.Piecewise((n * 10, n < 3), (n + 1, n < 6), (0, True))
    assert symbols.evaluate(expr, {n: size}) == value


def test_a_choice_between_expressions() -> None:
    n = sympy.Symbol("n", integer=True)
    expr = sympy.Piecewise((n + 4, n < 0), (n, True))
    assert symbols.evaluate(expr, {n: -1}) == 3
    assert symbols.evaluate(expr, {n: 2}) == 2
    graph = fx.Graph()
    proxy = fx.Proxy(graph.placeholder("n"), fx.proxy.GraphAppendingTracer(graph))
    graph.output(symbols.evaluate(expr, {n: proxy}).node)
    module = fx.GraphModule(torch.nn.Module(), graph)
    assert [module(-1), module(2)] == [3, 2]


@pytest.mark.parametrize(
    ("expr", "value"),
    [(sympy.Integer(3), 3), (sympy.Float(2.5), 2.5), (sympy.true, True), (sympy.false, False)],
)
def test_constants(expr: sympy.Basic, value: object) -> None:
    found = symbols.constant_value(expr)
    assert found == value
    assert type(found) is type(value)


def test_where_the_sizes_of_a_tensor_are_found() -> None:
    fake = make_fake(new_fake_mode(), torch.randn(4, 3), True, "x")
    found = [(str(query), axis) for _, query, axis in symbols.size_symbols(fake)]
    assert found[:2] == [("aten.sym_size.int", 0), ("aten.sym_size.int", 1)]
    assert list(symbols.size_symbols(torch.ones(3))) == []


def test_symbols_are_seen_in_inputs_as_they_were_before_anything_was_assumed() -> None:
    mode = new_fake_mode()
    fake = make_fake(mode, torch.randn(4, 3), True, "x")
    (first, second) = map(symbols.unsimplified, fake.shape)
    size: Any = fake.shape[0]
    with symbols.assumptions(mode.shape_env):
        assert size == 4
    assert symbols.expression(size) == 4
    assert symbols.symbol_positions([2, fake]) == [(first, 1, 0), (second, 1, 1)]
    assert symbols.first_violated(symbols.assumed(mode.shape_env), {first: 4}) is None
    assert symbols.first_violated(symbols.assumed(mode.shape_env), {first: 5}) is not None


def test_symbols_anew_are_those_of_another_shape_env() -> None:
    mode, other = new_fake_mode(), new_fake_mode()
    symbol = symbols.unsimplified(make_fake(mode, torch.randn(4), True, "x").shape[0])
    assert isinstance(symbol, sympy.Symbol)
    assert other.shape_env is not None
    made = symbols.fresh_symbols(other.shape_env, {symbol: 7})[symbol]
    assert made.node.hint == 7
    assert made.node.shape_env is other.shape_env
    assert symbols.assumed(None) == []


def test_what_is_taken_for_granted_is_written_down_once() -> None:
    mode = new_fake_mode()
    x = make_fake(mode, torch.randn(4, 3), True, "x")
    with symbols.assumptions(mode.shape_env) as outer, symbols.assumptions(mode.shape_env) as inner:
        assert x.shape[0] != 1
    assert inner is outer is symbols.assumed(mode.shape_env)
    assert len(outer) == 1
    with symbols.assumptions(mode.shape_env):
        assert x.shape[0] < 7
    assert len(outer) == 2
    with symbols.assumptions(None) as nothing:
        pass
    assert nothing == []


def test_sizes_that_only_a_run_knows() -> None:
    mode = new_fake_mode()
    assert mode.shape_env is not None
    size = symbols.unbacked_size(mode.shape_env)
    assert symbols.is_unbacked(symbols.expression(size))
    assert bool(size >= 0)
    known = make_fake(mode, torch.ones(3), True, "x").shape[0]
    assert not symbols.is_unbacked(symbols.expression(known))  # type: ignore[arg-type]
    assert symbols.is_unbacked_int(size * 2 + 1)
    assert not any(map(symbols.is_unbacked_int, (known, 3)))
    with mode:
        assert (torch.empty((size, 3)) * 2).shape[0] == size


def test_sizes_that_depend_on_data_are_let_be_for_a_while() -> None:
    shape_env = ShapeEnv(allow_dynamic_output_shape_ops=False)
    mode = FakeTensorMode(shape_env=shape_env)
    with mode:
        x = torch.empty(3)
        with pytest.raises(DATA_DEPENDENT):
            x.nonzero()
        with symbols.allow_data_dependent_sizes(shape_env):
            assert isinstance(x.nonzero().shape[0], torch.SymInt)
        with pytest.raises(DATA_DEPENDENT):
            torch.empty(4).nonzero()
    with symbols.allow_data_dependent_sizes(None):
        pass


def test_axes_whose_size_only_the_run_knows() -> None:
    shape_env = ShapeEnv()
    size = symbols.unbacked_size(shape_env)
    assert symbols.axes_of_unbacked_size((size, 3, size), (1, 1, 4)) == [0]
    assert symbols.axes_of_unbacked_size((size,), (1, 1)) == []


def test_a_size_that_is_zero_in_this_call() -> None:
    mode = new_fake_mode()
    empty, full = (make_fake(mode, torch.empty(n, 3), True, f"x{n}") for n in (0, 4))
    assert symbols.is_zero_in_capture(empty.shape[0])
    assert int(empty.shape[0]) == 0
    assert not symbols.is_zero_in_capture(full.shape[0])
    assert symbols.is_zero_in_capture(0)
    assert not symbols.is_zero_in_capture(2)


def test_which_expressions_are_solved() -> None:
    a, b, whole = sympy.symbols("a b whole", integer=True)
    assert symbols.solve(a + b + 1, a, whole) == whole - b - 1
    solution = symbols.solve(3 * a + b, a, whole)
    assert solution is not None
    assert solution.subs({whole: 17, b: 2}) == 5
    # A factor that may be zero, a part of it that is lost, and none of it.
    for expr in (a * b, a * a + a, b + 1):
        assert symbols.solve(expr, a, whole) is None


@pytest.mark.skipif(
    TORCH <= (2, 11), reason="the size of such a slice depends on data in 2.11, whatever is guarded"
)
@pytest.mark.parametrize("length", [9, 10])
def test_where_a_slice_ends_is_decided(length: int) -> None:
    aten = torch.ops.aten
    fake_mode = new_fake_mode()
    fake = make_fake(fake_mode, torch.randn(length), True, "x")
    half: Any = fake.shape[0] // 2
    places = [
        (aten.slice.Tensor, (fake[:half], 0, 1, fake.shape[0] - half)),
        (aten.slice.Tensor, (fake, 0, 3 - half)),
        (aten.select.int, (fake, 0, half - 3)),
    ]
    for op, args in places:
        with general_shapes(), fake_mode:
            symbols.guard_open_decisions(op, args, {})
            made = op(*args)
        assert not any(map(symbols.is_unbacked_int, (*made.shape, made.storage_offset())))
