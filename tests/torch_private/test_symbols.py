from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
from torch import fx

from adjoint.torch_private import symbols
from adjoint.torch_private.fake import make_fake, new_fake_mode


def test_what_a_symbolic_number_means() -> None:
    fake = make_fake(new_fake_mode(), torch.randn(4, 3), True, "x")
    sizes: list[Any] = list(fake.shape)
    expr = symbols.expression(sizes[0] * 2 + sizes[1])
    first, second = symbols.symbols_of(expr)
    assert {first, second} == {symbols.expression(size) for size in sizes}
    assert symbols.evaluate(expr, dict.fromkeys((first, second), 5)) == 15


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
