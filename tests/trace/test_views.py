"""Every view op: read after a write to its base, written through, returned."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.parity import ROUTES, Route, check, grown, plain

View = Callable[[Tensor], Tensor]

REAL: dict[str, tuple[tuple[int, ...], View]] = {
    "alias": ((3, 4), torch.ops.aten.alias.default),
    "as_strided": ((3, 4), lambda x: x.as_strided((2, 3), (4, 1), 1)),
    "as_strided_overlapping_rows": ((3, 4), lambda x: x.as_strided((2, 2), (1, 4))),
    "broadcast_one": ((3, 1), lambda x: x.expand(3, 1)),
    "chunk": ((4, 3), lambda x: x.narrow(0, 2, 2)),
    "diagonal": ((4, 4), lambda x: x.diagonal()),
    "diagonal_offset": ((3, 4, 2), lambda x: x.diagonal(1, 0, 1)),
    "diagonal_negative": ((4, 3), torch.diagonal),
    "expand_dims": ((3, 1), lambda x: x.expand(1, 3, 1)),
    "flatten": ((2, 3, 2), lambda x: x.flatten(1)),
    "index_none": ((3, 4), lambda x: x[None, :, 1]),
    "movedim": ((2, 3, 4), lambda x: x.movedim(0, 2)),
    "mT": ((2, 3, 4), lambda x: x.mT),
    "narrow": ((5, 2), lambda x: x.narrow(0, 1, 3)),
    "narrow_last": ((2, 5), lambda x: x.narrow(-1, 1, 3)),
    "permute": ((2, 3, 4), lambda x: x.permute(2, 0, 1)),
    "permute_negative": ((2, 3, 4), lambda x: x.permute(-1, 0, -2)),
    "reshape": ((2, 6), lambda x: x.reshape(3, 4)),
    "select": ((3, 4), lambda x: x.select(1, 2)),
    "select_negative": ((3, 4), lambda x: x[-1]),
    "select_scalar": ((3, 4), lambda x: x[1, 2]),
    "slice": ((6, 2), lambda x: x[1:5]),
    "slice_step": ((6, 3), lambda x: x[1::2, ::2]),
    "slice_negative": ((6, 3), lambda x: x[-4:-1]),
    "slice_empty": ((6, 3), lambda x: x[4:2]),
    "slice_all": ((6, 3), lambda x: x[:]),
    "squeeze": ((1, 3, 1), lambda x: x.squeeze()),
    "squeeze_dim": ((1, 3, 1), lambda x: x.squeeze(0)),
    "squeeze_dim_not_one": ((1, 3, 1), lambda x: x.squeeze(1)),
    "squeeze_dims": ((1, 3, 1), lambda x: x.squeeze((0, 2))),
    "swapaxes": ((2, 3, 4), lambda x: x.swapaxes(0, 2)),
    "swapdims": ((2, 3, 4), lambda x: x.swapdims(1, 2)),
    "T": ((3, 4), lambda x: x.T),
    "t": ((3, 4), lambda x: x.t()),
    "t_vector": ((3,), lambda x: x.t()),
    "transpose": ((2, 3, 4), lambda x: x.transpose(0, -1)),
    "unflatten": ((2, 6), lambda x: x.unflatten(1, (2, 3))),
    "unfold": ((6, 2), lambda x: x.unfold(0, 2, 2)),
    "unfold_gaps": ((7,), lambda x: x.unfold(0, 2, 3)),
    "unsqueeze": ((3, 4), lambda x: x.unsqueeze(1)),
    "unsqueeze_last": ((3, 4), lambda x: x.unsqueeze(-1)),
    "view": ((2, 6), lambda x: x.view(4, 3)),
    "view_as": ((2, 6), lambda x: x.view_as(torch.empty(3, 4))),
    "view_minus_one": ((2, 6), lambda x: x.view(-1)),
    "view_same_dtype": ((2, 6), lambda x: x.view(torch.float64)),
    "chain": ((4, 6), lambda x: x.t()[1:5].unsqueeze(0).transpose(1, 2)[:, ::2]),
    "chain_of_views": ((4, 6), lambda x: x[1:3].view(3, 4).t()[2]),
    "conj_of_real": ((3,), lambda x: x.conj()),
    "real_of_real": ((3,), lambda x: x.real),
    "empty": ((0, 3), lambda x: x.t()),
    "scalar": ((), lambda x: x.view(1, 1)),
    "scalar_expand": ((), lambda x: x.unsqueeze(0)),
}

# Views that eager refuses to write to when a gradient is wanted: several results, or overlaps.
OTHER: dict[str, tuple[tuple[int, ...], View]] = {
    "chunk": ((4, 3), lambda x: x.chunk(2)[1]),
    "chunk_dim": ((3, 5), lambda x: x.chunk(2, 1)[1]),
    "hsplit": ((2, 4), lambda x: x.hsplit(2)[1]),
    "split": ((5, 2), lambda x: x.split(2)[2]),
    "split_dim": ((2, 5), lambda x: x.split(2, dim=-1)[1]),
    "split_sizes": ((6, 2), lambda x: x.split([1, 2, 3])[1]),
    "split_with_sizes_dim": ((2, 6), lambda x: x.split_with_sizes([1, 2, 3], dim=1)[2]),
    "tensor_split": ((7, 2), lambda x: x.tensor_split(3)[1]),
    "tensor_split_at": ((7, 2), lambda x: x.tensor_split((2, 5))[1]),
    "unbind": ((3, 2), lambda x: x.unbind()[1]),
    "unbind_last": ((3, 2), lambda x: x.unbind(-1)[1]),
    "unsafe_chunk": ((4, 3), lambda x: x.unsafe_chunk(2)[1]),
    "vsplit": ((4, 2), lambda x: x.vsplit(2)[0]),
    "view_int64": ((2, 6), lambda x: x.view(torch.int64)),
    "view_int32": ((2, 6), lambda x: x.view(torch.int32)),
    "view_uint8": ((2, 6), lambda x: x.view(torch.uint8)[:, 1:9]),
    "view_complex": ((3, 4), lambda x: x.view(torch.complex128)),
    "detach": ((3, 4), lambda x: x.detach()),
    "detach_row": ((3, 4), lambda x: x.detach()[1]),
    "row_detach": ((3, 4), lambda x: x[1].detach()),
    "data": ((3, 4), lambda x: x.data),
    "row_data": ((3, 4), lambda x: x[:, 1].data),
}

COMPLEX: dict[str, tuple[tuple[int, ...], View]] = {
    "view_as_real": ((3, 2), torch.view_as_real),
    "real": ((3, 2), lambda x: x.real),
    "imag": ((3, 2), lambda x: x.imag),
    "conj": ((3, 2), lambda x: x.conj()),
    "mH": ((3, 2), lambda x: x.mH),
    "conj_row": ((3, 2), lambda x: x.conj()[1]),
    "conj_imag": ((3, 2), lambda x: x.conj().imag),
    "conj_twice": ((3, 2), lambda x: x.conj()[:2].conj()),
    "row_real": ((3, 2), lambda x: x[1].real),
    "view_float": ((3, 2), lambda x: x.detach().view(torch.float64)),
    "adjoint": ((3, 2), lambda x: x.adjoint()),
}

ALL = [
    *(pytest.param(shape, view, torch.float64, id=name) for name, (shape, view) in REAL.items()),
    *(pytest.param(shape, view, torch.float64, id=f"{n}_") for n, (shape, view) in OTHER.items()),
    *(
        pytest.param(shape, view, torch.complex128, id=f"complex_{name}")
        for name, (shape, view) in COMPLEX.items()
    ),
]

views = pytest.mark.parametrize(("shape", "view", "dtype"), ALL)
writable = pytest.mark.parametrize(
    ("shape", "view", "dtype"), [row for row in ALL if not str(row.id).endswith("_")]
)


@views
def test_read_after_a_write_to_the_base(
    shape: tuple[int, ...], view: View, dtype: torch.dtype
) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        seen = view(y)
        y.add_(1)
        return seen.clone() * 3, y

    check(program, lambda: grown(*shape, dtype=dtype))


@views
def test_read_after_a_hidden_write_to_the_base(
    shape: tuple[int, ...], view: View, dtype: torch.dtype
) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        seen = view(y)
        with torch.no_grad():
            y.add_(1)
        return seen.clone() * 3, y

    check(program, lambda: grown(*shape, dtype=dtype))


@pytest.mark.parametrize("make", [plain, grown])
@views
def test_written_through(
    shape: tuple[int, ...], view: View, dtype: torch.dtype, make: Callable[..., Tensor]
) -> None:
    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        seen = view(y)
        seen.mul_(3)
        other = y.sin()
        seen.add_(w.to(seen.dtype))
        return other, y

    check(program, lambda: (make(*shape, dtype=dtype), make(1)))


@pytest.mark.parametrize("make", [plain, grown])
@views
def test_an_input_written_through(
    shape: tuple[int, ...], view: View, dtype: torch.dtype, make: Callable[..., Tensor]
) -> None:
    def program(x: Tensor) -> Tensor:
        seen = view(x)
        seen.mul_(3)
        return x.sin()

    check(program, lambda: make(*shape, dtype=dtype))


@views
def test_an_input_written_through_without_grad(
    shape: tuple[int, ...], view: View, dtype: torch.dtype
) -> None:
    def program(x: Tensor) -> Tensor:
        with torch.no_grad():
            view(x).mul_(3)
        return x.sin()

    check(program, lambda: grown(*shape, dtype=dtype))


@views
def test_returned(shape: tuple[int, ...], view: View, dtype: torch.dtype) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        return view(x), view(y), view(y), view(x)

    check(program, lambda: grown(*shape, dtype=dtype))


@views
def test_returned_after_a_write(shape: tuple[int, ...], view: View, dtype: torch.dtype) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        one, two = view(x), view(y)
        x.mul_(2)
        y.mul_(2)
        return one, two, y

    check(program, lambda: grown(*shape, dtype=dtype))


@pytest.mark.parametrize(("shape", "view", "dtype"), ALL[::3])
def test_through_dynamo(shape: tuple[int, ...], view: View, dtype: torch.dtype) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        y.add_(1)
        x.add_(1)
        return view(x), view(y)

    check(program, lambda: grown(*shape, dtype=dtype), Route.DYNAMO)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
def test_views_of_views_of_inputs_in_a_loop(route: Route) -> None:
    def program(x: Tensor) -> Tensor:
        for row in x.unbind(1):
            for cell in row.split(1):
                cell.mul_(2)
        return x.sum()

    check(program, lambda: plain(3, 2), route)
