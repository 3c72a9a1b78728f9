from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch import fx

from adjoint.torch_private import size_evaluation, symbols
from adjoint.torch_private.fake import make_fake, new_fake_mode


def test_what_a_symbolic_number_means() -> None:
    fake = make_fake(new_fake_mode(), torch.randn(4, 3), True, "x")
    sizes: list[Any] = list(fake.shape)
    expr = symbols.expression(sizes[0] * 2 + sizes[1])
    first, second = symbols.symbols_of(expr)
    assert {first, second} == {symbols.expression(size) for size in sizes}
    assert size_evaluation.evaluate(expr, dict.fromkeys((first, second), 5)) == 15


@pytest.mark.parametrize(("size", "value"), [(2, 20), (5, 6), (9, 0)])
def test_cases(size: int, value: int) -> None:
    n = sympy.Symbol("n", integer=True)
    expr = sympy.Piecewise((n * 10, n < 3), (n + 1, n < 6), (0, True))
    assert size_evaluation.evaluate(expr, {n: size}) == value


def test_a_choice_between_expressions() -> None:
    n = sympy.Symbol("n", integer=True)
    expr = sympy.Piecewise((n + 4, n < 0), (n, True))
    assert size_evaluation.evaluate(expr, {n: -1}) == 3
    assert size_evaluation.evaluate(expr, {n: 2}) == 2
    graph = fx.Graph()
    proxy = fx.Proxy(graph.placeholder("n"), fx.proxy.GraphAppendingTracer(graph))
    graph.output(size_evaluation.evaluate(expr, {n: proxy}).node)
    module = fx.GraphModule(torch.nn.Module(), graph)
    assert [module(-1), module(2)] == [3, 2]


def test_an_expression_as_nodes() -> None:
    n = sympy.Symbol("n", integer=True)
    graph = fx.Graph()
    given = graph.placeholder("n")
    value, made = size_evaluation.as_nodes(2 * n + 1, {n: given}, graph)
    graph.output(value)
    assert made[-1] is value
    assert len(made) == 2
    assert fx.GraphModule({}, graph)(5) == 11
    assert size_evaluation.as_nodes(n, {n: given}, fx.Graph()) == (given, [])


@pytest.mark.parametrize(
    "rounded",
    [
        lambda n: torch.sym_int(n * 1.7),
        lambda n: torch.sym_int(n / 7),
        lambda n: math.floor(n * 0.6),
        lambda n: math.ceil(n / 2),
        lambda n: round(n * 0.6),
    ],
)
def test_numbers_with_fractions_become_sizes(rounded: Callable[[Any], Any]) -> None:
    graph = fx.Graph()
    node = graph.placeholder("n")
    size: Any = make_fake(new_fake_mode(), torch.empty(5), True, "x").shape[0]
    (symbol,) = symbols.symbols_of(symbols.expression(size))
    result, _ = size_evaluation.as_nodes(symbols.expression(rounded(size)), {symbol: node}, graph)
    graph.output(result)
    computed = fx.GraphModule({}, graph)
    assert [computed(count) for count in range(2, 30)] == [rounded(count) for count in range(2, 30)]
