from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import silu

from adjoint.loops.plan import Launch
from adjoint.lower.groups import MAX_EPILOGUE_READS
from adjoint.lower.products import ASSUMED_ROWS
from tests.lower.test_row_tiles import with_any_rows
from tests.lowering import CLOSE, GRID, calls, check, graph_of, grid_program, launches, lower

ROWS = ASSUMED_ROWS + 37


def products(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[list[Launch], int]:
    """Kernels that are products, and how many are left to the library."""
    plan = lower(graph_of(function, inputs), GRID)
    found = [each for each in launches(plan) if each.kernel.tile is not None]
    return found, sum(each.writes for each in calls(plan))


@pytest.fixture(autouse=True)
def _close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of n products that add up to s in absolute terms, two orders of adding differ by n s / 2**23
    at most; here n is 128 and s about 80, which would be 1e-3."""
    monkeypatch.setitem(CLOSE, torch.float32, (1e-5, 5e-5))


@pytest.mark.parametrize(
    ("inner", "columns"), [(16, 16), (20, 128), (128, 20), (36, 64), (24, 256)]
)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_tall_product(inner: int, columns: int, transposed: bool) -> None:
    x = torch.randn(ROWS, inner)
    w = torch.randn(columns, inner).t() if transposed else torch.randn(inner, columns)
    found, called = products(lambda x, w: [x @ w + 1], x, w)
    assert (len(found), called) == (1, 0)
    check(lambda x, w: [x @ w + 1], x, w)


def test_one_of_which_nothing_is_made_is_the_librarys_but_for_short_sums() -> None:
    x, w = torch.randn(ROWS, 128), torch.randn(128, 128)
    assert products(lambda x, w: [x @ w], x, w) == ([], 1)
    found, called = products(lambda x, w: [x @ w], x[:, :20].contiguous(), w[:20])
    assert (len(found), called) == (1, 0)
    check(lambda x, w: [x * 2, (x + 1) @ w], x, w)


def test_what_is_multiplied_is_computed_as_it_is_read() -> None:
    x, w = torch.randn(ROWS, 32), torch.randn(32, 64)
    plan = lower(graph_of(lambda x, w: [silu(x * 2) @ w], (x, w)), GRID)
    assert len(plan.steps) == 1
    check(lambda x, w: [silu(x * 2) @ w], x, w)


def test_what_takes_long_is_not_computed_for_each_tile() -> None:
    x, w, wide = torch.randn(ROWS, 32), torch.randn(32, 64), torch.randn(32, 256)

    def two(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [(x.sin() * x.cos()) @ w]

    assert len(lower(graph_of(two, (x, w)), GRID).steps) == 2
    assert len(lower(graph_of(lambda x, w: [silu(x) @ w], (x, wide)), GRID).steps) == 2
    assert len(lower(graph_of(lambda x, w: [(x * x) @ w], (x, wide)), GRID).steps) == 1
    check(two, x, w)


def test_what_it_makes_is_not_read_beside_it() -> None:
    x, w = torch.randn(ROWS, 32), torch.randn(32, 64)
    beside = [torch.randn(ROWS, 64) for _ in range(MAX_EPILOGUE_READS)]

    def function(x: torch.Tensor, w: torch.Tensor, *beside: torch.Tensor) -> list[torch.Tensor]:
        product = x @ w
        made = [product * each for each in beside]
        return [*made, made[0] + made[1]]

    assert len(lower(graph_of(function, (x, w, *beside)), GRID).steps) == 1
    check(function, x, w, *beside)


def test_what_is_made_of_it_is_stored_at_once() -> None:
    x, w, b = torch.randn(ROWS, 32), torch.randn(32, 64), torch.randn(64)

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        a = torch.addmm(b, x, w)
        return [a, silu(a) * 2]

    assert len(lower(graph_of(function, (x, w, b)), GRID).steps) == 1
    check(function, x, w, b)


def test_layers_on_layers() -> None:
    x, v, w = torch.randn(ROWS, 32) / 9, torch.randn(64, 32), torch.randn(48, 64) / 8

    def function(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        a = x @ v.t()
        y = torch.tanh(a) @ w.t()
        g = (y * y) @ w
        g = g * (1 - torch.tanh(a) ** 2)
        return [y, g, g.t() @ x]

    check(function, x, v, w)


def test_rows_are_gathered_and_scattered() -> None:
    h, w = torch.randn(100, 32), torch.randn(32, 64) / 16
    i, j = torch.randint(0, 100, (ROWS,)), torch.randint(0, 100, (ROWS,))

    def function(h: torch.Tensor, w: torch.Tensor, i: Any, j: Any) -> list[torch.Tensor]:
        return [torch.zeros(100, 64).index_add(0, j, (h[i] * 2) @ w)]

    check(function, h, w, i, j)


@pytest.mark.parametrize("rows", [ROWS, 1000])
@pytest.mark.parametrize("columns", [64, 20])
def test_what_is_made_of_it_is_scattered_at_once(rows: int, columns: int) -> None:
    h, x, c = torch.randn(100, columns), torch.randn(rows, 32) / 16, torch.randn(rows)
    w, b = torch.randn(columns, 32) / 16, torch.randn(columns)
    i, j = torch.randint(0, 100, (rows,)), torch.randint(0, 100, (rows,))

    def function(*given: torch.Tensor) -> list[torch.Tensor]:
        h, x, c, w, b, i, j = given
        y = torch.addmm(b, x, w.t())
        return [y, h.index_add(0, i, h[j] * y * c[:, None])]

    first, second = launches(lower(graph_of(function, (h, x, c, w, b, i, j)), GRID))
    assert first.kernel.tile is None
    assert second.kernel.tile is not None
    check(function, h, x, c, w, b, i, j)


def test_rows_of_rows() -> None:
    x, w, b = torch.randn(8, ROWS, 16), torch.randn(32, 16), torch.randn(8, 1, 32)
    check(lambda x, w, b: [silu(torch.nn.functional.linear(x, w) + b)], x, w, b)


@pytest.mark.parametrize(("inner", "columns"), [(16, 16), (20, 128), (128, 20), (36, 64), (64, 36)])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_of_few_rows(inner: int, columns: int, transposed: bool) -> None:
    x, y = torch.randn(333, inner), torch.randn(333, columns)
    w = torch.randn(columns, inner).t() if transposed else torch.randn(inner, columns)
    (found,), called = products(lambda x, w, y: [silu(x @ w) * y], x, w, y)
    assert found.kernel.tile is not None
    assert found.kernel.tile.rows == 32
    assert called == 0
    check(lambda x, w, y: [silu(x @ w) * y], x, w, y)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (torch.empty(4096, 256), torch.empty(256, 256)),  # neither tall nor small
        (torch.empty(64, 32), torch.empty(32, 32)),  # few rows
        (torch.empty(ROWS, 30), torch.empty(30, 32)),  # not in quads
        (torch.empty(ROWS, 32), torch.empty(32, 1024)),  # wide
        (torch.empty(32, ROWS).t(), torch.empty(32, 32)),  # rows lie across
        (torch.empty(ROWS, 32, dtype=torch.float64), torch.empty(32, 32, dtype=torch.float64)),
        (torch.empty(ROWS, 33)[:, 1:], torch.empty(32, 32)),  # quads do not begin at quads
    ],
)
def test_others_are_the_librarys(left: torch.Tensor, right: torch.Tensor) -> None:
    assert products(lambda x, y: [x @ y + 1], left, right) == ([], 1)


def test_products_in_less_than_floats_are_the_librarys() -> None:
    x, w = torch.empty(ROWS, 32), torch.empty(32, 32)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        assert products(lambda x, w: [x @ w + 1], x, w) == ([], 1)
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"


def test_any_number_of_rows() -> None:
    def function(x: Any, w: Any, b: Any, y: Any) -> list[torch.Tensor]:
        return [silu(torch.addmm(b, x, w.t())) * y]

    def inputs(rows: int) -> list[torch.Tensor]:
        shapes = ((rows, 32), (64, 32), (64,), (rows, 64))
        return [torch.randn(shape) / 4 for shape in shapes]

    plan = lower(with_any_rows(function, inputs(4999), 4999), GRID)
    assert any(each.kernel.tile is not None for each in launches(plan))
    program = grid_program(plan)
    for rows in (4999, 1, 3, 128, 300):
        given = inputs(rows)
        torch.testing.assert_close(program(list(given)), function(*given))
