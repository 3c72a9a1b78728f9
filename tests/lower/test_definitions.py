from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from adjoint.lower.definitions import _RULES
from adjoint.lower.planning import lower
from tests.lowering import calls, check, graph_of, launches

aten = torch.ops.aten

SLOW = pytest.mark.slow
HALVES = [torch.float16, torch.bfloat16]
FLOATS = [torch.float32, torch.float64, *HALVES]
INTEGERS = [torch.int64, torch.int32, torch.uint8]
DTYPES = [*FLOATS, *INTEGERS, torch.bool]


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Small numbers, so that sums of them are exact and their order does not matter."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.randint(-3, 4, shape, generator=generator)
    return (made.abs() if dtype == torch.uint8 else made).to(dtype)


def places(below: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, below, shape, generator=generator).to(dtype)


LAYOUTS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "contiguous": lambda dtype: numbers(3, 4, 5, dtype=dtype),
    "transposed": lambda dtype: numbers(5, 4, 3, dtype=dtype).permute(2, 1, 0),
    "sliced": lambda dtype: numbers(3, 8, 7, dtype=dtype)[:, ::2, 1:6],
    "expanded": lambda dtype: numbers(3, 1, 5, dtype=dtype).expand(3, 4, 5),
    "middle": lambda dtype: numbers(4, 3, 5, dtype=dtype).transpose(0, 1),
    "ones": lambda dtype: numbers(1, 4, 1, dtype=dtype),
}

Row = tuple[Any, Callable[..., Any]]

# Of a tensor of three dimensions.
ROWS: list[Row] = [
    *[
        (op, functools.partial(op, dim=dim, keepdim=keep))
        for op in (aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default)
        for dim in ([0], [1], [2], [-1, 0], [0, 1, 2], [1, 2])
        for keep in (False, True)
    ],
    *[(op, op) for op in (aten.sum.default, aten.mean.default, aten.prod.default)],
    *[(op, op) for op in (aten.all.default, aten.any.default)],
    *[(op, op) for op in (aten.max.default, aten.min.default)],
    (aten.amax.default, aten.amax.default),
    *[
        (op, lambda x, op=op, dim=dim: op(x, dim))
        for op in (aten.prod.dim_int, aten.all.dim, aten.any.dim)
        for dim in (0, -1)
    ],
    (aten.all.dims, lambda x: aten.all.dims(x, [0, 2])),
    (aten.any.dims, lambda x: aten.any.dims(x, [0, 2], True)),
    (aten.sum.dim_IntList, lambda x: aten.sum.dim_IntList(x, [1], dtype=torch.float64)),
    (aten.sum.default, lambda x: aten.sum.default(x, dtype=torch.int32)),
    (aten.mean.dim, lambda x: aten.mean.dim(x, [1], dtype=torch.float64)),
    (aten.cat.default, lambda x: aten.cat.default([x, x + x, x], 1)),
    (aten.cat.default, lambda x: aten.cat.default([x, x.new_zeros([0])], -1)),
    (aten.cat.default, lambda x: aten.cat.default([x, x.to(torch.float64)], 0)),
    (aten.constant_pad_nd.default, lambda x: aten.constant_pad_nd(x, [1, 2, 0, 1], 1)),
    (aten.constant_pad_nd.default, lambda x: aten.constant_pad_nd(x, [0, 0, 0, 0, 2, 0])),
    (aten.repeat.default, lambda x: aten.repeat(x, [2, 1, 3])),
    (aten.repeat.default, lambda x: aten.repeat(x, [2, 1, 2, 1])),
    *[(aten.tril.default, lambda x, d=d: aten.tril(x, d)) for d in (-1, 0, 2)],
    *[(aten.triu.default, lambda x, d=d: aten.triu(x, d)) for d in (-1, 0, 2)],
    (aten.full_like.default, lambda x: aten.full_like(x, 2) + x),
    (aten.new_full.default, lambda x: aten.new_full(x, [5], 2) + x.sum()),
    (aten.new_ones.default, lambda x: aten.new_ones(x, [2, 2])),
    (aten.new_zeros.default, lambda x: aten.new_zeros(x, [3, 1])),
    (aten.ones_like.default, lambda x: aten.ones_like(x) + x),
    (aten.zeros_like.default, lambda x: aten.zeros_like(x) + x),
]


def takes(call: Callable[..., Any], *inputs: Any) -> bool:
    try:
        call(*inputs)
    except (RuntimeError, NotImplementedError):
        return False
    return True


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "dtypes",
    [
        [torch.float32, torch.int32],
        pytest.param([torch.float64, *HALVES, torch.int64, torch.uint8, torch.bool], marks=SLOW),
    ],
    ids=["quick", "rest"],
)
def test_of_one_tensor(layout: str, dtypes: list[torch.dtype]) -> None:
    inputs = [LAYOUTS[layout](dtype) for dtype in dtypes]

    cases = [
        (call, place)
        for _, call in ROWS
        for place in range(len(inputs))
        if takes(call, inputs[place])
    ]
    check(lambda *tensors: [call(tensors[place]) for call, place in cases], *inputs)


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3), (2, 0, 3)])
def test_of_nothing(shape: tuple[int, ...]) -> None:
    x, y = torch.zeros(shape), torch.ones(3)
    check(lambda x, y: [x + 1, x.sum() + y, x.sum(-1), x.mean(-1), x.prod() * y], x, y)
    check(lambda x, y: [x.sum(0), x.mean() + y, (x > 0).all() & (y > 0), (x > 0).any(0)], x, y)
    check(lambda x, y: [torch.cat([x, x + 1]), torch.cat([x.flatten(), y]), y + 1], x, y)


def test_of_no_dimensions() -> None:
    x = torch.tensor(3.0)
    check(lambda x: [x + 1, x.sum(), x.mean(), x.amax(), x * torch.ones(2), x.exp().sum([])], x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extremes_of_special_numbers(dtype: torch.dtype) -> None:
    if dtype.is_floating_point:
        rows = [[float("nan"), 1], [float("inf"), -1], [float("-inf"), 2], [-1, -2]]
        x = torch.tensor(rows, dtype=dtype)
    elif dtype == torch.bool:
        x = torch.tensor([[True, False], [False, False]])
    else:
        limits = torch.iinfo(dtype)
        x = torch.tensor([[limits.max, limits.max], [limits.min, limits.min]], dtype=dtype)
    check(lambda x: [x.amax(1), x.amin(1), x.amax(0), x.amin(0), x.max(), x.min()], x)


INDEXING: list[tuple[Any, Callable[..., Any], Callable[[torch.dtype], list[torch.Tensor]]]] = [
    (
        aten.index.Tensor,
        lambda x, i: aten.index.Tensor(x, [i]),
        lambda d: [numbers(6, 4, dtype=d), places(6, 3, 2) - 6],
    ),
    (
        aten.index.Tensor,
        lambda x, i: aten.index.Tensor(x, [None, i]),
        lambda d: [numbers(4, 6, 3, dtype=d), places(6, 5, dtype=torch.int32)],
    ),
    (
        aten.index.Tensor,
        lambda x, i, j: aten.index.Tensor(x, [i, None, j]),
        lambda d: [numbers(4, 6, 4, dtype=d), places(4, 2, 1), places(4, 3)],
    ),
    (
        aten.index.Tensor,
        lambda x, i, j: aten.index.Tensor(x, [None, i, j]),
        lambda d: [numbers(4, 5, 5, dtype=d), places(5, 2, 1), places(5, 3)],
    ),
    (
        aten.index_select.default,
        lambda x, i: aten.index_select(x, 1, i),
        lambda d: [numbers(4, 6, dtype=d), places(6, 9)],
    ),
    (
        aten.gather.default,
        lambda x, i: aten.gather(x, -1, i),
        lambda d: [numbers(4, 6, dtype=d), places(6, 3, 8)],
    ),
    (
        aten.embedding.default,
        lambda w, i: aten.embedding(w, i),
        lambda d: [numbers(7, 3, dtype=d), places(7, 2, 5)],
    ),
    (
        aten.embedding_dense_backward.default,
        lambda g, i: aten.embedding_dense_backward(g, i, 7, 2, False),
        lambda d: [numbers(2, 5, 3, dtype=d), places(7, 2, 5)],
    ),
    (
        aten.index_add.default,
        lambda x, i, s: aten.index_add(x, 1, i, s, alpha=2),
        lambda d: [numbers(3, 4, dtype=d), places(4, 9), numbers(3, 9, dtype=d, seed=2)],
    ),
    (
        aten.index_put.default,
        lambda x, i, s: aten.index_put(x, [i], s, True),
        lambda d: [numbers(5, 4, dtype=d), places(5, 9) - 5, numbers(9, 4, dtype=d, seed=2)],
    ),
    (
        aten.index_put.default,
        lambda x, i, s: aten.index_put(x, [None, i], s, True),
        lambda d: [numbers(5, 4, dtype=d), places(4, 9), numbers(1, dtype=d, seed=2)],
    ),
    (
        aten.index_put.default,
        lambda x, i, s: aten.index_put(x, [i], s, False) + 1,
        lambda d: [numbers(5, 4, dtype=d), torch.tensor([3, 0]), numbers(2, 4, dtype=d, seed=2)],
    ),
    (
        aten.scatter_add.default,
        lambda x, i, s: aten.scatter_add(x, 1, i, s),
        lambda d: [numbers(5, 4, dtype=d), places(4, 3, 9), numbers(4, 10, dtype=d, seed=2)],
    ),
    (
        aten.select_backward.default,
        lambda g: aten.select_backward(g, [3, 4, 5], 1, -2),
        lambda d: [numbers(3, 5, dtype=d)],
    ),
    (
        aten.slice_backward.default,
        lambda g: aten.slice_backward(g, [6, 3], 0, 1, 5, 1),
        lambda d: [numbers(4, 3, dtype=d)],
    ),
    (
        aten.slice_backward.default,
        lambda g: aten.slice_backward(g, [6, 3], 0, -4, 9223372036854775807, 1),
        lambda d: [numbers(4, 3, dtype=d)],
    ),
    (
        aten.slice_backward.default,
        lambda g: aten.slice_backward(g, [7, 3], 0, 0, 7, 2) * 2,
        lambda d: [numbers(4, 3, dtype=d)],
    ),
    *[
        (
            aten.mse_loss_backward.default,
            lambda g, x, y, r=r: aten.mse_loss_backward(g, x, y, r),
            lambda d, r=r: [
                numbers(*([] if r else [4, 2]), dtype=d),
                numbers(4, 2, dtype=d),
                numbers(4, 2, dtype=d, seed=3),
            ],
        )
        for r in (0, 1, 2)
    ],
]


@pytest.mark.parametrize("place", range(len(INDEXING)))
def test_elements_by_index(place: int) -> None:
    _, call, make = INDEXING[place]
    for dtype in [torch.float32, torch.float16, torch.int64, torch.bool]:
        inputs = make(dtype)
        if takes(call, *inputs):
            # Something to fuse around what may be declined.
            check(lambda *tensors: [call(*tensors), tensors[0].logical_not()], *inputs)


NEW: list[tuple[Any, Callable[[], Any]]] = [
    (aten.arange.default, lambda: aten.arange(5)),
    (aten.arange.start, lambda: aten.arange.start(2, 7)),
    (aten.arange.start_step, lambda: aten.arange.start_step(7, -3, -2)),
    (aten.arange.start_step, lambda: aten.arange.start_step(0, 1, 0.25)),
    (aten.full.default, lambda: aten.full([2, 3], 1.5)),
    (aten.full.default, lambda: aten.full([2], 0.1, dtype=torch.float16)),
    (aten.ones.default, lambda: aten.ones([2], dtype=torch.bool)),
    (aten.scalar_tensor.default, lambda: aten.scalar_tensor(2.5, dtype=torch.float64)),
    (aten.zeros.default, lambda: aten.zeros([2, 2], dtype=torch.int32)),
]


@pytest.mark.parametrize("place", range(len(NEW)))
def test_new_tensors(place: int) -> None:
    _, call = NEW[place]
    x = torch.tensor(2.0)
    check(lambda x: [call(), call() * x, call().to(torch.float64) + x, (call() + call()).sum()], x)


def test_each_rule_has_a_sample() -> None:
    sampled = {row[0] for row in [*ROWS, *INDEXING, *NEW]}
    assert sampled == set(_RULES)


@pytest.mark.parametrize(
    ("call", "size", "message"),
    [
        (lambda x, i: x[i], 3, "index 5 is out of bounds"),
        (lambda x, i: x.index_select(0, i), 3, "out of"),
        (lambda x, i: x.gather(0, i), 3, "out of"),
        (lambda x, i: x.scatter_add(0, i, x), 3, "out of"),
    ],
)
def test_an_index_out_of_bounds_raises(call: Any, size: int, message: str) -> None:
    x, good, bad = torch.arange(3.0), torch.tensor([0, 2, 1]), torch.tensor([0, 5, 1])
    program = check(lambda x, i: call(x, i) * 2, x, good)
    with pytest.raises((IndexError, RuntimeError), match=message):
        program([x, bad])
    torch.testing.assert_close(program([x, good]), call(x, good) * 2)


def test_a_negative_index_where_eager_takes_none_raises() -> None:
    x, good, bad = torch.arange(3.0), torch.tensor([0, 2, 1]), torch.tensor([0, -1, 1])
    program = check(lambda x, i: x.index_select(0, i) * 2, x, good)
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        program([x, bad])


@pytest.mark.parametrize("call", [torch.floor_divide, torch.remainder, torch.fmod])
def test_integers_divided_by_zero_raise(call: Any) -> None:
    x, good, bad = torch.arange(3), torch.tensor([1, 2, 3]), torch.tensor([1, 0, 3])
    program = check(lambda x, y: call(x, y) + x, x, good)
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        program([x, bad])


@pytest.mark.parametrize(
    ("call", "inputs"),
    [
        (lambda x: x.to(torch.complex64), [torch.ones(3)]),
        (lambda x: torch.arange(0, 1, 0.3) + x, [torch.ones(4)]),
        (lambda x, i: x.half().index_add(0, i, x.half()), [torch.ones(1), torch.tensor([0])]),
    ],
)
def test_declined(call: Any, inputs: list[torch.Tensor]) -> None:
    """What has no definition is called."""
    assert calls(lower(graph_of(call, inputs)))


def test_what_is_made_of_nothing_is_not_stored() -> None:
    x = torch.ones(3, 4)
    plan = check(lambda x: x + torch.full((4,), 2.0) + torch.arange(4), x).plan
    (launch,) = launches(plan)
    assert len(launch.operands) == 2
    assert not calls(plan)
