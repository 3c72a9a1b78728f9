"""Strided windows on memory: how a tensor is found, and read, by where it lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import adjoint
from adjoint.trace.geometry import dense_order, extent, same_elements, same_layout, same_memory
from tests.parity import ROUTES, Route, Row, Table, check, grown, leaf, plain, refused


@pytest.mark.parametrize(
    ("tensor", "order"),
    [
        (torch.zeros(2, 3), [0, 1]),
        (torch.zeros(2, 3).t(), [1, 0]),
        (torch.zeros(2, 3, 4).permute(1, 2, 0), [2, 0, 1]),
        (torch.zeros(2, 1, 3), [0, 1, 2]),
        (torch.zeros(4, 4)[:, ::2], None),
        (torch.zeros(4, 4)[1:], [0, 1]),
        (torch.zeros(1, 3).expand(2, 3), None),
        (torch.zeros(()), []),
    ],
)
def test_the_order_of_axes_in_memory(tensor: Tensor, order: list[int] | None) -> None:
    assert dense_order(tensor) == order


def test_the_same_memory() -> None:
    x = torch.zeros(4, 5, dtype=torch.complex64)
    assert same_memory(x, x.detach())
    for other in (x.clone(), x[1:], x.t(), x.view(20), x.conj(), torch.eye(4, 5).to_sparse()):
        assert not same_memory(x, other)
    imaginary = x.conj().imag
    assert not same_memory(imaginary, imaginary.conj().view(4, 5).neg())


def test_extent() -> None:
    x = torch.zeros(4, 5)
    assert extent(x) == 20
    assert extent(x[:, ::2]) == 20
    assert extent(x[1:3, 1:2]) == 6
    assert extent(x[:0]) == 0
    assert extent(x[0, 0]) == 1


def test_layouts_and_places() -> None:
    x = torch.zeros(4, 4)
    assert same_layout(x, torch.ones(4, 4))
    assert not same_layout(x, x.t())
    assert same_elements(x[1], x[1])
    assert not same_elements(x[1], x[2])
    assert not same_elements(x, x.view(torch.int32))


table = Table()


@table(lambda: plain(3, 4))
def of_an_input(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.as_strided((2, 2), (4, 2), 1)
    y.mul_(2)
    return y, x.sum()


@table(lambda: plain(5, 4)[2:].detach())
def of_an_input_that_begins_late(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.as_strided((2, 2), (4, 2), 9)
    return y * 2, x.as_strided((2,), (1,))


@table(lambda: plain(5, 4)[2:])
def of_a_view_that_begins_late(x: Tensor) -> Tensor:
    x.as_strided((2, 2), (4, 2), 9).add_(1)
    return x * 2


@table(lambda: grown(3, 4))
def of_a_transpose(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.t().as_strided((2, 3), (1, 4), 1)
    y.mul_(2)
    return y * 1, x


@table(lambda: plain(3, 4).t().detach())
def of_an_input_in_another_order(x: Tensor) -> Tensor:
    x.as_strided((2,), (1,), 3).add_(1)
    return x * 2


@table(lambda: leaf(3, 4))
def of_an_intermediate_in_another_order(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.t() * 2
    z = y.as_strided((2, 2), (4, 1), 2)
    z.mul_(3)
    return z, y


def two_rows() -> tuple[Tensor, Tensor]:
    base = plain(3, 4)
    return base[0], base[1]


@table(two_rows)
def across_inputs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.as_strided((2, 2), (4, 1), 2).mul_(3)
    return x * 1, y * 1


@table(two_rows)
def across_inputs_returned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.as_strided((8,), (1,)), y * 2


def two_halves_over_one_memory() -> tuple[Tensor, Tensor]:
    base = plain(4, 4)
    return base[:2].data, base[2:].data


@table(two_halves_over_one_memory)
def across_inputs_without_a_common_base(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x.as_strided((4, 2), (4, 1))
    z.mul_(3)
    return z, y * 1


@table(lambda: (plain(3, 4), plain(2)))
def of_complex_numbers(x: Tensor, y: Tensor) -> Tensor:
    z = torch.view_as_complex(x.view(3, 2, 2))
    z.as_strided((2,), (2,), 1).mul_(2j)
    return x * 1


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
@pytest.mark.parametrize("row", table, ids=str)
def test_as_strided(row: Row, route: Route) -> None:
    row.check(route)


# Windows on more of the memory than the tensor shows.


def outside(x: Tensor) -> Any:
    return x.as_strided((2, 4), (4, 1), 0) * 2


def after_it(x: Tensor) -> Any:
    return x.view(-1).as_strided((6,), (1,)).sin() + x.sum()


def in_the_gaps(x: Tensor) -> Any:
    return x.t().as_strided((2, 2), (4, 1)) * 2


def in_one_and_beyond(x: Tensor) -> Any:
    window = (x * 2)[:, 0].as_strided((2, 2), (4, 1))
    return window.sin() * x.sum()


def returned(x: Tensor) -> Any:
    window = x.as_strided((2, 4), (4, 1), 0)
    return window, window * window


def of_data_alone(x: Tensor) -> Any:
    return x.detach().as_strided((2, 4), (4, 1), 0) * x.sum()


def written_before(x: Tensor) -> Any:
    y = x.detach()
    y.mul_(3)
    return x.detach().as_strided((2, 4), (4, 1), 0) * 2


def written_through(x: Tensor) -> Any:
    x.detach().as_strided((2, 4), (4, 1), 0).mul_(3)
    return x * 2


def written_around(x: Tensor) -> Any:
    y = x.detach()
    y.add_(1)
    window = y.as_strided((3,), (4,), 0)
    window.mul_(2)
    y.mul_(5)
    return window, y.as_strided((8,), (1,), 0) * 1, x


@pytest.mark.parametrize(
    "route", [Route.DIRECT, pytest.param(Route.DYNAMO, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize("make", [plain, leaf, grown])
@pytest.mark.parametrize(
    "window",
    [
        pytest.param(lambda x: x[1], id="row"),
        pytest.param(lambda x: x[:2, ::2], id="gaps"),
        pytest.param(lambda x: x[1].detach().requires_grad_(x.requires_grad), id="no view"),
        pytest.param(lambda x: x[1:2, :3].t(), id="transposed"),
    ],
)
@pytest.mark.parametrize(
    "function",
    [
        outside,
        after_it,
        in_the_gaps,
        in_one_and_beyond,
        returned,
        of_data_alone,
        written_before,
        written_through,
        written_around,
    ],
)
def test_windows_beyond_the_tensor(
    function: Any, window: Any, make: Callable[..., Tensor], route: Route
) -> None:
    try:
        function(window(make(3, 4)))
    except (RuntimeError, IndexError):
        pytest.skip("no such views of this tensor")
    check(function, lambda: window(make(3, 4)), route, order=2)


@pytest.mark.parametrize("make", [plain, leaf])
@pytest.mark.parametrize("function", [outside, returned, written_around], ids=lambda f: f.__name__)
def test_windows_beyond_the_tensor_through_dynamo(
    function: Any, make: Callable[..., Tensor]
) -> None:
    check(function, lambda: make(3, 4)[1], Route.DYNAMO, order=2)


def test_a_program_is_for_one_place_of_what_it_counts_from() -> None:
    torch._dynamo.reset()

    def function(x: Tensor) -> Tensor:
        return x.as_strided((3,), (1,), 4) * x.sum()

    memory = torch.randn(20, dtype=torch.float64)
    inputs = [memory[4:12], memory[2:10], memory[10:18], memory[:10].clone()[2:10]]
    compiled = torch.compile(function, backend="adjoint", fullgraph=True)
    for x in (*inputs, *inputs):
        assert_close(compiled(x), function(x))
    captured = adjoint.capture(function, inputs[0])
    assert_close(adjoint.run(captured, inputs[0]), function(inputs[0]))
    with pytest.raises(TypeError, match="begins at element 4 of a memory of 160 bytes"):
        adjoint.run(captured, inputs[1])


@pytest.mark.filterwarnings("ignore::adjoint.FallbackWarning")
def test_windows_in_transforms() -> None:
    def counts(x: Tensor) -> Tensor:
        return (x.as_strided((3,), (1,), 4) * x.sum()).sum()

    def steps(x: Tensor) -> Tensor:
        return (x.as_strided((3,), (2,)) * x.sum()).sum()

    memory = torch.randn(20, dtype=torch.float64)
    for function in (counts, steps):
        gradient = adjoint.grad(function)
        for x in (memory[:8], memory[4:12], memory[2:10], memory[::2], memory[8:16].clone()):
            assert_close(gradient(x), torch.func.grad(function)(x))


def test_a_recorded_write_beyond_the_tensor_is_refused() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 1
        window = y[1].as_strided((2, 4), (4, 1), 0)
        y.mul_(2)
        return window.sum()

    error = refused(program, lambda: leaf(3, 4))
    assert error.construct == "a write"
    assert error.remedy


def test_memory_that_eager_does_not_have_either() -> None:
    def beyond(x: Tensor, y: Tensor) -> Tensor:
        x.view(-1).as_strided((2,), (1,))
        return y * 2

    def inputs() -> tuple[Tensor, Tensor]:
        x = plain()
        return x, x.data

    check(beyond, inputs, raises=RuntimeError)
    with pytest.raises(adjoint.CaptureError, match="memory outside of the tensor") as raised:
        adjoint.capture(beyond, *inputs())
    assert "x.view(-1).as_strided((2,), (1,))" in str(raised.value)


def test_views_of_memory_that_is_empty_this_time() -> None:
    torch._dynamo.reset()

    def function(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        return x.index_add(0, rows, x[columns].sin())

    compiled = torch.compile(function, backend="adjoint", fullgraph=True)
    x = torch.randn(5, dtype=torch.float64)
    for count in (3, 4, 0, 2, 0):
        pairs = (torch.arange(25).view(5, 5) < count).nonzero(as_tuple=True)
        torch.testing.assert_close(compiled(x, *pairs), function(x, *pairs))


def _spectrum(x: Tensor) -> Tensor:
    window = torch.ones(16, dtype=x.dtype)
    return torch.stft(x, 16, center=False, return_complex=True, window=window).abs()


# Inputs with gaps between their elements, or with several elements in one place.
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: grown(2, 64, 2)[..., 0], id="interleaved"),
        pytest.param(lambda: leaf(64, 3).t()[1:], id="transposed"),
        pytest.param(lambda: leaf(1, 64).expand(2, 64), id="expanded"),
        pytest.param(lambda: leaf(64).unfold(0, 32, 16), id="overlapping"),
    ],
)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
def test_windows_on_a_tensor_with_gaps(make: Callable[[], Tensor], route: Route) -> None:
    check(_spectrum, make, route, order=2)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
def test_writing_through_a_window_on_a_tensor_with_gaps(route: Route) -> None:
    def program(x: Tensor) -> Tensor:
        x.as_strided((3,), (4,)).mul_(2)
        return x * 1

    check(program, lambda: plain(20)[::2], route)


def complexes() -> Tensor:
    return plain(12, dtype=torch.complex128)


# Inputs that carry a conjugation or a negation, which their memory does not.
LAZY: dict[str, Callable[[], Tensor]] = {
    "conjugate": lambda: complexes().conj(),
    "conjugate leaf": lambda: complexes().conj().requires_grad_(),
    "conjugate of an intermediate": lambda: grown(12, dtype=torch.complex128).conj(),
    "conjugate with gaps": lambda: complexes()[::2].conj(),
    "conjugate transpose": lambda: complexes().view(3, 4).mH,
    "conjugate, expanded": lambda: complexes()[:1].expand(12).conj(),
    "negative": lambda: torch._neg_view(plain(12)),
    "negative leaf": lambda: torch._neg_view(plain(12)).requires_grad_(),
    "imaginary part": lambda: complexes().conj().imag,
    "both": lambda: torch._neg_view(complexes().conj()),
}

WINDOWS: dict[str, Callable[[Tensor], object]] = {
    "read": lambda x: x.as_strided((2, 2), (1, 2)).sin(),
    "returned": lambda x: x.as_strided((2, 2), (1, 2)),
    "written": lambda x: x.detach().as_strided((2, 2), (1, 2)).mul_(2),
    "beyond": lambda x: x.detach()[:1].as_strided((3,), (1,)) * 2,
    "copied": lambda x: torch.as_strided_copy(x.detach(), (2, 2), (1, 2)),
    "the input": lambda x: x.detach().mul_(3),
}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("make", LAZY)
def test_windows_on_what_is_conjugated_or_negated_lazily(
    make: str, window: str, route: Route
) -> None:
    check(WINDOWS[window], LAZY[make], route)


def of_another_dtype() -> tuple[Tensor, Tensor]:
    whole = plain(6)
    return whole, whole.view(torch.int64)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
def test_a_window_on_memory_of_another_dtype(route: Route) -> None:
    check(lambda x, y: (x * 2, y.as_strided((2, 2), (1, 2))), of_another_dtype, route)


# Where eager's `as_strided_copy` and `as_strided_scatter` count from.
@pytest.mark.parametrize("offset", [None, 0, 5])
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: plain(12), id="whole"),
        pytest.param(lambda: plain(20)[3:15], id="offset"),
        pytest.param(lambda: plain(25)[1::2], id="gaps"),
        pytest.param(lambda: plain(4, 3).t(), id="transposed"),
        pytest.param(lambda: plain(1, 3).expand(4, 3), id="expanded"),
        pytest.param(lambda: grown(20)[3:15], id="offset, with a history"),
    ],
)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
def test_windows_that_are_copied(
    make: Callable[[], Tensor], offset: int | None, route: Route
) -> None:
    window = ((2, 2), (1, 2), offset)

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        replaced = torch.as_strided_scatter(x.detach(), x.detach().new_ones(2, 2), *window)
        return torch.as_strided_copy(x.detach(), *window), replaced

    check(program, make, route)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
def test_a_window_that_is_replaced_by_what_requires_grad(route: Route) -> None:
    def program(x: Tensor, source: Tensor) -> Tensor:
        return torch.as_strided_scatter(x, source, (2, 2), (1, 2))

    def inputs() -> tuple[Tensor, Tensor]:
        return plain(4, 3).detach().t(), plain(2, 2).requires_grad_()

    error = refused(program, inputs, route)
    assert "positions in the memory of the tensor it writes to" in str(error)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
def test_a_copy_of_a_window_of_a_transpose_has_a_history(route: Route) -> None:
    def program(x: Tensor) -> Tensor:
        return torch.as_strided_copy(x, (2, 2), (1, 2)).sin()

    check(program, lambda: plain(4, 3).t().detach().requires_grad_(), route, order=2)
