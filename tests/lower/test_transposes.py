from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import adjoint
from adjoint.loops.evaluate import evaluate
from adjoint.loops.plan import Argument, Launch, Plan, SlotKind
from adjoint.loops.show import show
from adjoint.loops.statements import TeamMemory, walk
from adjoint.lower import transposes
from adjoint.torch_private import trees
from tests.lowering import GRID, check, graph_of, grid_program, launches, lower

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


def grids(function: Callable[..., Any], *inputs: torch.Tensor) -> list[Launch]:
    return launches(lower(graph_of(function, inputs), GRID))


def is_by_tiles(launch: Launch) -> bool:
    return any(isinstance(each, TeamMemory) for each in walk(launch.kernel.body))


@contextlib.contextmanager
def wherever_it_can_be(**sides: int) -> Iterator[None]:
    """Tiles for sizes that tests have time for, too."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"MIN_BYTES_TO_TILE": 0, "MIN_ROW_ELEMENTS": 2, **sides}.items():
            patch.setattr(transposes, name, value)
        yield


def test_a_tile_is_read_one_way_and_stored_the_other() -> None:
    (launch,) = grids(lambda x, y: [y + x.t()], torch.empty(4096, 1000), torch.empty(1000, 4096))
    assert launch.grid is not None
    assert launch.grid.count == 128 * 32
    assert show(launch.kernel) == (
        "kernel kernel(b0: f32, b1: f32, b2: f32 written; chunks) by teams of 256\n"
        "    # read across, by tiles of 32 x 32\n"
        "    parallel for g in range(4096):\n"
        "        team tile0: f32[1056]\n"
        "        i0.tile = (g // 128)\n"
        "        i1.tile = (g % 128)\n"
        "        vector for k in range(1024):\n"
        "            row = (k // 32)\n"
        "            i1.read = ((i1.tile * 32) + row)\n"
        "            column = (k % 32)\n"
        "            i0.read = minimum(((i0.tile * 32) + column), 999)\n"
        "            tile0[((row * 33) + column)] = b0[((i1.read * 1000) + i0.read)]\n"
        "        vector for k in range(1024):\n"
        "            row = minimum((k // 32), (999 - (i0.tile * 32)))\n"
        "            i0.made = ((i0.tile * 32) + row)\n"
        "            column = (k % 32)\n"
        "            i1.made = ((i1.tile * 32) + column)\n"
        "            b2[((i0.made * 4096) + i1.made)] = "
        "(b1[((i0.made * 4096) + i1.made)] + tile0[(row + (column * 33))])\n"
    )


def test_threads_take_as_many_neighbours_as_make_four_bytes() -> None:
    (launch,) = grids(lambda x: [x.t().contiguous()], torch.empty(4096, 2047, dtype=BF16))
    text = show(launch.kernel)
    assert "team tile0: bf16[4160]" in text
    # Along 2047 elements there is no whole number of pairs.
    assert "vector for k in range(4096):" in text
    assert "vector for k in range(2048):" in text
    assert text.count("for v in range(2)") == 1


@pytest.mark.parametrize(
    ("function", "shapes", "remark"),
    [
        (lambda x: [x + 1], [(2048, 2048)], None),
        (lambda x, y: [x.t() + y.t()], [(2048, 2048)] * 2, None),
        (lambda x: [x.t().contiguous()], [(512, 512)], "1048576 bytes are few"),
        (lambda x: [x.t().contiguous()], [(1 << 20, 4)], None),
        (lambda x: [x.t().contiguous()], [(1 << 20, 12)], "rows of 12 are short"),
        (lambda x: [x.t().contiguous()], [(3, 1 << 20)], "rows of 3 are short"),
        (lambda x: [x[:, ::2].t().contiguous()], [(2048, 2048)], "by tiles of 32 x 32"),
        (lambda x: [x[:, ::8].t().contiguous()], [(2048, 8192)], None),
        (lambda x: [x.t().contiguous()], [(2048, 2048)], "by tiles of 32 x 32"),
        (lambda x: [x.permute(0, 2, 3, 1).contiguous()], [(8, 64, 56, 56)], "by tiles of 32 x 32"),
        (lambda x: [torch.cat([x.t(), x.t()])], [(2048, 2048)], None),
    ],
)
def test_the_decision_can_be_read(
    function: Callable[..., Any], shapes: list[tuple[int, ...]], remark: str | None
) -> None:
    (launch,) = grids(function, *(torch.empty(shape) for shape in shapes))
    assert is_by_tiles(launch) == (remark is not None and remark.startswith("by tiles"))
    text = show(launch.kernel)
    assert "read across" not in text if remark is None else remark in text


def test_no_more_memory_than_a_block_has() -> None:
    with wherever_it_can_be(LONG_TILE_SIDE_ELEMENTS=64):
        inputs = [torch.rand(72, 40).half(), *torch.rand(7, 40, 72, dtype=F64)]

        def function(y: torch.Tensor, *given: torch.Tensor) -> list[torch.Tensor]:
            return [sum((x.t() for x in given), y).to(F16)]

        (launch,) = grids(function, *inputs)
        memory = [each for each in walk(launch.kernel.body) if isinstance(each, TeamMemory)]
        assert 1 < len(memory) < 8
        assert sum(m.count * m.dtype.itemsize for m in memory) <= 48 << 10
        check(function, *inputs)


SIZES = [(31, 33), (32, 64), (65, 63), (64, 34), (2, 40), (100, 3), (1, 40), (40, 1)]
DTYPES = [torch.bool, torch.uint8, torch.int16, torch.int64, F16, BF16, F32, F64]


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        pytest.param(
            sizes, dtype, marks=[] if sizes == SIZES[0] or dtype == F32 else [pytest.mark.slow]
        )
        for sizes in SIZES
        for dtype in DTYPES
    ],
)
def test_edges(sizes: tuple[int, int], dtype: torch.dtype) -> None:
    x = (torch.rand(3, *sizes) * 4).to(dtype)
    y = torch.rand(3, *reversed(sizes)).to(F32)
    with wherever_it_can_be():
        check(lambda x: [x[0].t() != 0], x)
        check(lambda x: [x.transpose(1, 2).clone(memory_format=torch.contiguous_format)], x)
        check(lambda x, y: [y + 1, y + x.transpose(1, 2), x.transpose(1, 2) == 0], x, y)
        check(lambda x, y: [x.transpose(1, 2) + y, y * 2], x, y)
        check(lambda x: [x[:, :, ::2].transpose(1, 2).contiguous() == 1], x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y, i: [x.t()[i] * y],
        lambda x, y, i: [(x.t() * y).exp(), x.t() - y, y.sin()],
        lambda x, y, i: [x.flip(0).t() + y, x.flip(1).t() + y],
        lambda x, y, i: [torch.where(y > 0.5, x.t(), y)],
        lambda x, y, i: [(x.t() + y).tril()],
        lambda x, y, i: [torch.cat([x.t() + y, x.t()], 1)],
        lambda x, y, i: [torch.nn.functional.pad(x.t(), [1, 2]) * 2],
        lambda x, y, i: [x.t().reshape(-1) + y.reshape(-1)],
        lambda x, y, i: [x.t() + y[0], x.t() * y[:, :1]],
        lambda x, y, i: [(x.t() + y).sum(-1), (x.t() + y).sum(0)],
    ],
)
def test_what_else_may_be_in_a_kernel(function: Callable[..., Any]) -> None:
    x, y, i = torch.rand(48, 70), torch.rand(70, 48), torch.randperm(70)
    with wherever_it_can_be():
        check(function, x, y, i)


def test_of_a_square_each_element_and_that_across() -> None:
    x = torch.rand(67, 67)
    with wherever_it_can_be():
        (launch,) = grids(lambda x: [x + x.t()], x)
        assert is_by_tiles(launch)
        check(lambda x: [x + x.t()], x)


@pytest.mark.parametrize("shape", [(2, 5, 9, 7), (3, 40, 33), (70, 65), (1, 1), (0, 3), (4, 0)])
def test_sizes_that_are_not_known(shape: tuple[int, ...]) -> None:
    """One program, whatever the sizes."""

    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [x.transpose(0, -1).contiguous(), y + x.transpose(0, -1)]

    traced = torch.rand([size + 17 for size in range(len(shape))])
    captured = adjoint.capture(function, traced, traced.transpose(0, -1).contiguous(), dynamic=True)
    plan = lower(captured.graph_module, GRID)
    assert any(is_by_tiles(launch) for launch in launches(plan))
    program = grid_program(plan)
    x, y = torch.rand(shape), torch.rand(*shape).transpose(0, -1).contiguous()
    for ours, eager in zip(program([x, y]), function(x, y), strict=True):
        assert torch.equal(ours, eager)


# Random kernels, run by the evaluator.


def evaluated(plan: Plan, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results of a plan that has nothing but kernels, and no sizes to be passed."""
    values = dict(zip(plan.inputs, inputs, strict=True))
    for slot in plan.slots:
        if slot.kind is not SlotKind.INPUT:
            assert slot.shape is not None
            values[slot.number] = torch.empty_strided(slot.shape, slot.strides, dtype=slot.dtype)
    for step in plan.steps:
        assert isinstance(step, Launch)
        names = [buffer.name for buffer in step.kernel.buffers]
        flat = [_flat(values[operand]) for operand in step.operands if isinstance(operand, int)]
        evaluate(step.kernel, dict(zip(names, flat, strict=True)), {"chunks": 1})
    return [values[leaf.slot] for leaf in trees.leaves(plan.outputs) if isinstance(leaf, Argument)]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.as_strided((1 + sum((size - 1) * stride for size, stride in sizes),), (1,))


EXTENT = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 9, 12])
OPERAND = st.tuples(
    st.permutations(range(3)), st.sampled_from(DTYPES), st.sampled_from(["whole", "step", "row"])
)
Operand = tuple[list[int], torch.dtype, str]


def laid_out(shape: Sequence[int], operand: Operand, number: int) -> torch.Tensor:
    """A tensor of `shape` whose dims lie in memory in any order; it may have gaps, or one row."""
    order, dtype, how = operand
    sizes = [1 if how == "row" and dim == 0 else shape[dim] for dim in order]
    if how == "step":
        sizes[-1] *= 2
    generator = torch.Generator().manual_seed(number)
    made = torch.randint(0, 4, sizes, generator=generator).to(dtype)
    if how == "step":
        made = made[..., 1::2]
    return made.permute([order.index(dim) for dim in range(3)])


def combined(results: list[torch.dtype], *inputs: torch.Tensor) -> list[torch.Tensor]:
    total = inputs[0].to(F64)
    for number, x in enumerate(inputs[1:]):
        total = total * 2 + x.to(F64) * (number + 1)
    return [(total - place).to(dtype).contiguous() for place, dtype in enumerate(results)]


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.tuples(st.integers(1, 3), EXTENT, EXTENT),
    st.lists(OPERAND, min_size=1, max_size=3),
    st.lists(st.sampled_from([torch.int64, torch.bool, BF16, F32]), min_size=1, max_size=2),
)
def test_random_transposes(
    shape: tuple[int, int, int], operands: list[Operand], results: list[torch.dtype]
) -> None:
    inputs = [laid_out(shape, operand, number) for number, operand in enumerate(operands)]
    with wherever_it_can_be(TILE_SIDE_ELEMENTS=4, LONG_TILE_SIDE_ELEMENTS=8):
        plan = lower(graph_of(lambda *given: combined(results, *given), inputs), GRID)
    for ours, eager in zip(evaluated(plan, inputs), combined(results, *inputs), strict=True):
        assert torch.equal(ours, eager)


def test_random_transposes_are_by_tiles() -> None:
    """Or the test above would show nothing."""
    operands: list[Operand] = [([0, 2, 1], BF16, "step"), ([0, 1, 2], F32, "whole")]
    inputs = [laid_out((2, 9, 7), operand, number) for number, operand in enumerate(operands)]
    with wherever_it_can_be(TILE_SIDE_ELEMENTS=4, LONG_TILE_SIDE_ELEMENTS=8):
        (launch,) = grids(lambda *given: combined([F32], *given), *inputs)
    assert is_by_tiles(launch)
