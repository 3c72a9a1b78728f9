from __future__ import annotations

import pytest
import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from adjoint.torch_private import symbols
from adjoint.torch_private.fake import make_fake, new_fake_mode


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
