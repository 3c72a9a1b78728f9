from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

import adjoint
from adjoint.graph.operations import random_bits
from adjoint.loops.evaluate import evaluate
from adjoint.loops.plan import RowTiles
from adjoint.loops.runs import why_not_captured
from adjoint.lower.draws import DIGITS, DRAWS, draw_in_kernels, streams_of
from adjoint.options import Options
from adjoint.runtime.gpu.program import draws_random_numbers
from adjoint.runtime.plans.program import PlanProgram
from adjoint.target import cuda_target
from adjoint.torch_private.fake import new_fake_mode
from tests.lowering import (
    DRAWING_GRID,
    calls,
    graph_of,
    grid_program,
    launches,
    lower,
    native_program,
)

aten = torch.ops.aten
CPU = torch.device("cpu")


def drawing(
    function: Callable[..., Any], inputs: Sequence[Any], target: Any = "native"
) -> PlanProgram:
    """Native: statistics are taken of far more numbers than plain Python can draw."""
    program = native_program(graph_of(function, inputs), Options(target=target, eager_rng=False))
    assert program is not None
    return program


def seeds(number: int = 0) -> torch.Tensor:
    return torch.tensor([1234567 + number, 89])


def drawn(function: Callable[..., Any], *inputs: Any, number: int = 0) -> list[Any]:
    program = drawing(function, inputs)
    assert calls(program.plan) == []
    return list(program([*inputs, seeds(number)]))


def targets(graph_module: fx.GraphModule) -> list[Any]:
    return [node.target for node in graph_module.graph.nodes if node.op == "call_function"]


def test_seeds_are_the_last_input_and_each_draw_has_its_stream() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return [aten.bernoulli.p(x, 0.5) + aten.bernoulli.p(x, 0.5), aten.bernoulli.p(y, 0.5)]

    graph_module = graph_of(function, [torch.rand(3), torch.rand(4)])
    made = draw_in_kernels(graph_module, CPU)
    streams = streams_of(made.graph)
    inputs = made.graph.find_nodes(op="placeholder")
    assert [node.name for node in inputs][2:] == ["seeds"]
    drawn = [node for node in made.graph.nodes if node.target is random_bits]
    assert [node.args[1] for node in drawn] == list(range(streams)) == [0, 1, 2]
    assert all(node.args[0] is inputs[-1] for node in drawn)
    assert aten.bernoulli.p not in targets(made)
    assert len(graph_module.graph.find_nodes(op="placeholder")) == 2, "the graph is as it was"


def test_a_graph_that_draws_nothing_is_left_alone() -> None:
    graph_module = graph_of(lambda x: [x.sin()], [torch.rand(3)])
    assert draw_in_kernels(graph_module, CPU) is graph_module


def test_a_generator_of_the_users_is_drawn_from() -> None:
    generator = torch.Generator().manual_seed(1)
    captured = adjoint.capture(
        lambda x: x.clone().bernoulli_(0.5, generator=generator), torch.rand(3)
    )
    graph_module = captured.graph_module
    assert len(graph_module.graph.find_nodes(op="get_attr")) == 1
    assert draw_in_kernels(graph_module, CPU) is graph_module


def test_what_is_on_another_device_is_left_alone() -> None:
    graph_module = graph_of(lambda x: [aten.bernoulli.p(x, 0.5)], [torch.rand(3)])
    assert draw_in_kernels(graph_module, torch.device("meta")) is graph_module


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "contiguous": lambda: torch.rand(64, 96),
    "transposed": lambda: torch.rand(96, 64).t(),
    "sliced": lambda: torch.rand(64, 200)[:, ::2][:, :96],
    "expanded": lambda: torch.rand(64, 1).expand(64, 96),
    "no dimensions": lambda: torch.rand(()),
    "nothing": lambda: torch.rand(0, 4),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("p", [0.0, 0.25, 0.9, 1.0])
@pytest.mark.parametrize("train", [True, None, False])
def test_dropout_is_what_eager_makes_of_its_mask(layout: str, p: float, train: Any) -> None:
    x = LAYOUTS[layout]() + 1
    program = native_program(
        graph_of(lambda x: [*aten.native_dropout.default(x, p, train), x + 1], [x]),
        Options(eager_rng=False),
    )
    if program is None:
        assert layout == "nothing"
        return
    result, mask, _ = program([x, seeds()] if program.plan.streams else [x])
    expected = aten.native_dropout.default(x, p, train)
    assert mask.dtype == torch.bool
    for one, other in zip((result, mask), expected, strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
    if p in (0, 1) or train is False:
        assert torch.equal(mask, expected[1])
        assert torch.equal(result, expected[0])
    elif mask.numel() > 1:
        assert abs(mask.double().mean() - (1 - p)) < 0.02
    if train is not False:
        scale = 0.0 if p == 1 else 1 / (1 - p)
        assert torch.equal(result, x * mask * scale)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dropout_of_other_types(dtype: torch.dtype) -> None:
    x = torch.randn(1000, dtype=torch.float64).to(dtype)
    result, mask = drawn(lambda x: aten.native_dropout.default(x, 0.3, True), x)
    assert torch.equal(result, x * mask * (1 / 0.7))
    (wide,) = drawn(lambda x: aten.native_dropout.default(x, 0.3, True)[1:], x.float())
    assert torch.equal(mask, wide), "which are dropped does not depend on the type"


def test_dropout_is_one_kernel_with_its_neighbours() -> None:
    x = torch.randn(64, 128)
    program = drawing(
        lambda x: [torch.softmax(aten.native_dropout.default(x.sin(), 0.3, True)[0] * 2, -1)], [x]
    )
    assert calls(program.plan) == []
    assert len(launches(program.plan)) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.bool])
def test_truth_with_a_probability(dtype: torch.dtype) -> None:
    x = torch.zeros(10000, dtype=dtype)
    probabilities = (0.0, 0.125, 1.0)
    results = drawn(lambda x: [aten.bernoulli.p(x, p) for p in probabilities], x)
    for p, found in zip(probabilities, results, strict=True):
        assert found.dtype == dtype
        assert set(found.tolist()) <= {0, 1}
        # Four times the deviation of the mean.
        assert abs(found.double().mean() - p) <= 4 * (p * (1 - p) / 10000) ** 0.5


# Draws of a tensor like `x`, and what their numbers become if they are spread evenly over [0, 1).
Cumulative = Callable[[torch.Tensor], torch.Tensor]


def below(number: float) -> Cumulative:
    return lambda drawn: drawn / number


def standard(drawn: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.special.ndtr(drawn)
    return found


CONTINUOUS: dict[Any, tuple[Callable[[torch.Tensor], Any], Cumulative]] = {
    aten.rand.default: (lambda x: aten.rand.default(x.shape, dtype=x.dtype), below(1)),
    aten.rand_like.default: (aten.rand_like.default, below(1)),
    aten.uniform.default: (
        lambda x: aten.uniform.default(x, -1.0, 3.0),
        lambda drawn: (drawn + 1) / 4,
    ),
    aten.randn.default: (lambda x: aten.randn.default(x.shape, dtype=x.dtype), standard),
    aten.randn_like.default: (aten.randn_like.default, standard),
    aten.normal.float_float: (
        lambda x: aten.normal.float_float(1.0, 2.0, x.shape, dtype=x.dtype),
        lambda drawn: standard((drawn - 1) / 2),
    ),
    aten.normal_functional.default: (
        lambda x: aten.normal_functional.default(x, -1.0, 0.5),
        lambda drawn: standard((drawn + 1) * 2),
    ),
    aten.normal.Tensor_float: (
        lambda x: aten.normal.Tensor_float(x, 2.0),
        lambda drawn: standard(drawn / 2),
    ),
    aten.exponential.default: (
        lambda x: aten.exponential.default(x, 0.5),
        lambda drawn: -torch.expm1(drawn * -0.5),
    ),
    aten.rrelu_with_noise_functional.default: (
        lambda x: aten.rrelu_with_noise_functional.default(x, x, 0.25, 0.75, True)[1],
        lambda drawn: (drawn - 0.25) * 2,
    ),
}

WHOLE: dict[Any, tuple[Callable[[torch.Tensor], Any], range]] = {
    aten.randint.default: (lambda x: aten.randint.default(6, x.shape), range(6)),
    aten.randint.low: (lambda x: aten.randint.low(-3, 7, x.shape), range(-3, 7)),
    aten.randint_like.default: (lambda x: aten.randint_like.default(x, 6), range(6)),
    aten.randint_like.low_dtype: (
        lambda x: aten.randint_like.low_dtype(x, -3, 7, dtype=torch.int32),
        range(-3, 7),
    ),
    aten.random.to: (lambda x: aten.random.to(x, 6), range(6)),
}

TRUTH = {
    aten.bernoulli.p,
    aten.bernoulli.default,
    aten.bernoulli.Tensor,
    aten.native_dropout.default,
}


def test_there_is_a_test_of_each() -> None:
    assert set(DRAWS) == {*CONTINUOUS, *WHOLE, *TRUTH}


def assert_even(counts: torch.Tensor) -> None:
    """Chi-square of so many classes has that mean, and a variance of twice that."""
    expected = counts.sum() / counts.numel()
    freedom = counts.numel() - 1
    found = float((counts - expected).square().sum() / expected)
    assert abs(found - freedom) < 4 * (2 * freedom) ** 0.5


def assert_uncorrelated(one: torch.Tensor, other: torch.Tensor) -> None:
    """By the correlation, and by how often each pair of parts of [0, 1) comes."""
    found = torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]
    assert abs(found) < 4 / one.numel() ** 0.5
    pairs = (one * 8).long() * 8 + (other * 8).long()
    assert_even(torch.bincount(pairs.flatten(), minlength=64).double())


SIZE = (200, 500)


@pytest.mark.parametrize("dtype", DIGITS)
@pytest.mark.parametrize("op", CONTINUOUS, ids=str)
def test_how_numbers_are_spread(op: Any, dtype: torch.dtype) -> None:
    """Elements, neighbours, rows, and what is drawn by the same op again and in another call."""
    call, cumulative = CONTINUOUS[op]
    x = torch.zeros(SIZE, dtype=dtype)
    one, other = (each.double() for each in drawn(lambda x: [call(x), call(x)], x))
    (later,) = (each.double() for each in drawn(lambda x: [call(x)], x, number=1))
    one, other, later = (cumulative(each).clamp(0, 1 - 2**-53) for each in (one, other, later))
    if dtype != torch.bfloat16 or op in (aten.rand.default, aten.rand_like.default):
        # The steps of the type are too large to tell parts of equal size apart elsewhere.
        assert_even(torch.histc(one, 32, 0, 1))
    assert abs(one.mean() - 0.5) < 4 * (1 / 12 / one.numel()) ** 0.5 + torch.finfo(dtype).eps / 2
    if dtype.itemsize > 2:
        assert_uncorrelated(one[:, 1:], one[:, :-1])
        assert_uncorrelated(one[1:], one[:-1])
        assert_uncorrelated(one, other)
        assert_uncorrelated(one, later)
    assert not torch.equal(one, other)
    assert not torch.equal(one, later)


@pytest.mark.parametrize("op", WHOLE, ids=str)
def test_how_integers_are_spread(op: Any) -> None:
    call, numbers = WHOLE[op]
    x = torch.zeros(SIZE, dtype=torch.int64)
    (found,) = drawn(lambda x: [call(x)], x)
    assert found.dtype == (torch.int32 if op is aten.randint_like.low_dtype else torch.int64)
    assert found.min() == numbers[0]
    assert found.max() == numbers[-1]
    assert_even(torch.bincount((found - numbers[0]).flatten(), minlength=len(numbers)).double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_numbers_far_from_zero(dtype: torch.dtype) -> None:
    (found,) = drawn(lambda x: [aten.randn_like.default(x)], torch.zeros(4_000_000, dtype=dtype))
    assert found.isfinite().all()
    for size in (3.0, 4.0, 5.0):
        expected = found.numel() * 2 * float(torch.special.ndtr(torch.tensor(-size).double()))
        seen = int((found.abs() > size).sum())
        assert abs(seen - expected) < 4 * expected**0.5 + 1
    assert abs(found.double().mean()) < 4 / found.numel() ** 0.5
    assert abs(found.double().var() - 1) < 4 * (2 / found.numel()) ** 0.5


@pytest.mark.parametrize("dtype", DIGITS)
def test_numbers_below_one_are_below_one(dtype: torch.dtype) -> None:
    x = torch.zeros(1_000_000, dtype=dtype)
    (unit, far) = drawn(
        lambda x: [aten.rand_like.default(x), aten.uniform.default(x, 10.0, 11.0)], x
    )
    assert unit.dtype == dtype
    assert 0 <= unit.min() <= unit.max() < 1
    assert 10 <= far.min() <= far.max() < 11


def test_no_time_to_wait_is_zero() -> None:
    x = torch.zeros(4_000_000)
    (found,) = drawn(lambda x: [aten.exponential.default(x).log()], x)
    assert found.isfinite().all()


@pytest.mark.parametrize("op", [aten.bernoulli.default, aten.bernoulli.Tensor], ids=str)
def test_truth_with_a_probability_for_each(op: Any) -> None:
    p = torch.tensor([0.0, 0.25, 1.0]).expand(10000, 3).contiguous()
    inputs = [p] if op is aten.bernoulli.default else [torch.zeros(10000, 3), p]
    program = drawing(lambda *given: [op(*given)], inputs)
    assert [call.target for call in calls(program.plan)] == [aten._assert_async.msg]
    assert why_not_captured(program.plan) == ""
    (found,) = program([*inputs, seeds()])
    often = found.double().mean(0)
    assert often[0] == 0
    assert abs(often[1] - 0.25) < 4 * (0.25 * 0.75 / 10000) ** 0.5
    assert often[2] == 1
    for wrong in (-0.1, 1.1, torch.nan):
        p[7, 1] = wrong
        with pytest.raises(RuntimeError, match="probability is not between 0 and 1"):
            program([*inputs, seeds()])


def test_rrelu_is_what_eager_makes_of_its_noise() -> None:
    x = torch.randn(1000)
    function = aten.rrelu_with_noise_functional.default
    result, noise = drawn(lambda x: function(x, x, 0.1, 0.3, True), x)
    assert torch.equal(noise[x > 0], torch.ones_like(x)[x > 0])
    assert ((noise >= 0.1) & (noise < 0.3))[x <= 0].all()
    assert torch.equal(result, x * noise)
    program = drawing(lambda x: function(x, x, 0.1, 0.3, False), [x])
    assert program.plan.streams == 0
    for one, other in zip(program([x]), function(x, x, 0.1, 0.3, False), strict=True):
        assert torch.equal(one, other)


REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "complex": lambda x: aten.randn.default(x.shape, dtype=torch.complex64),
    "two tensors": lambda x: aten.normal.Tensor_Tensor(x, x + 1),
    "huge range": lambda x: aten.randint.low(0, 1 << 62, x.shape),
    "small type": lambda x: aten.randint.low(0, 3, x.shape, dtype=torch.uint8),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_left_to_torch(name: str) -> None:
    x = torch.rand(8)
    program = drawing(lambda x: [REFUSED[name](x), x + 1], [x])
    assert program.plan.streams == 0
    assert len(calls(program.plan)) == 1
    program([x])


RAISES: dict[str, Callable[[torch.Tensor], Any]] = {
    "integers": lambda x: aten.randint.low(0, 1 << 33, x.shape, dtype=torch.int32),
    "ends": lambda x: aten.uniform.default(x.half(), 0.0, 1e6),
    "order": lambda x: aten.uniform.default(x, 1.0, 0.0),
    "probability": lambda x: aten.bernoulli.p(x, 1.5),
    "dropout": lambda x: aten.native_dropout.default(x, 1.5, True)[0],
    "rate": lambda x: aten.exponential.default(x, -1.0),
    "deviation": lambda x: aten.normal_functional.default(x, 0.0, -1.0),
}


@pytest.mark.parametrize("name", RAISES)
def test_what_eager_refuses_is_refused(name: str) -> None:
    x = torch.rand(8)
    with pytest.raises(RuntimeError):
        RAISES[name](x)
    with pytest.raises(RuntimeError):
        drawing(lambda x: [RAISES[name](x), x + 1], [x])([x])


def test_the_number_of_threads_does_not_matter() -> None:
    x = torch.zeros(300, 1000)
    program = drawing(lambda x: [aten.randn_like.default(x), aten.rand_like.default(x).sum(0)], [x])
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(program([x, seeds()])[0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_the_evaluator_draws_what_code_draws() -> None:
    x = torch.rand(40)
    program = drawing(lambda x: aten.native_dropout.default(x, 0.3, True), [x])
    (launch,) = launches(program.plan)
    result, mask = program([x, seeds()])
    held = dict(zip(program.plan.inputs, (x, seeds()), strict=True))
    buffers = {
        buffer.name: held.get(slot, torch.empty(40, dtype=buffer.dtype))
        for buffer, slot in zip(launch.kernel.buffers, launch.operands, strict=True)
        if isinstance(slot, int)
    }
    evaluate(launch.kernel, buffers, {"chunks": 1})
    written = {b.dtype: buffers[b.name] for b in launch.kernel.buffers if b.written}
    assert torch.equal(written[torch.bool], mask)
    assert torch.equal(written[torch.float32], result)


@pytest.mark.parametrize("op", CONTINUOUS, ids=str)
def test_kernels_in_plain_python_draw_the_same(op: Any) -> None:
    call, _ = CONTINUOUS[op]
    x = torch.zeros(5, 7)
    (found,) = drawing(lambda x: [call(x)], [x], "loops")([x, seeds()])
    (expected,) = drawn(lambda x: [call(x)], x)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("op", CONTINUOUS, ids=str)
def test_kernels_for_a_gpu_draw_the_same(op: Any) -> None:
    call, _ = CONTINUOUS[op]
    x = torch.zeros(37, 19)
    plan = lower(graph_of(lambda x: [call(x)], [x]), DRAWING_GRID)
    assert calls(plan) == []
    assert why_not_captured(plan) == ""
    (found,) = grid_program(plan)([x, seeds()])
    (expected,) = drawn(lambda x: [call(x)], x)
    # The same numbers; the functions made of them are rounded by other instructions there.
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def masked(x: torch.Tensor) -> torch.Tensor:
    """What is kept of elements like those of `x`, with the numbers of `seeds()`."""
    (mask,) = drawn(lambda x: aten.native_dropout.default(x, 0.3, True)[1:], x)
    kept: torch.Tensor = mask
    return kept


def test_rows_worked_on_some_at_a_time_draw_the_same() -> None:
    x, w = torch.rand(5000, 64), torch.rand(64, 64) - 0.5

    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        return [aten.native_dropout.default((x @ w).sin(), 0.3, True)[0] @ w]

    program = drawing(function, [x, w])
    assert any(isinstance(step, RowTiles) for step in program.plan.steps)
    (found,) = program([x, w, seeds()])
    expected = (x @ w).sin() * masked(x) * (1 / 0.7) @ w
    # Products add up in another order.
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("columns", [7, 96, 2000])
def test_rows_that_teams_share_draw_the_same(columns: int) -> None:
    x = torch.rand(30, columns)

    def function(x: torch.Tensor) -> Any:
        kept, _ = aten.native_dropout.default(torch.softmax(x, -1), 0.3, True)
        return [kept, kept.sum(-1), kept.sum(0)]

    plan = lower(graph_of(function, [x]), DRAWING_GRID)
    assert calls(plan) == []
    expected = torch.softmax(x, -1) * masked(x) * (1 / 0.7)
    for program in (grid_program(plan), drawing(function, [x])):
        found = program([x, seeds()])
        torch.testing.assert_close(found[0], expected)
        torch.testing.assert_close(found[1], expected.sum(-1))
        torch.testing.assert_close(found[2], expected.sum(0))


def test_on_a_gpu_dropout_is_part_of_the_kernel_around_it() -> None:
    device = torch.device("cuda", 0)
    with new_fake_mode():
        x = torch.empty(64, 128, device=device)
    traced = make_fx(lambda x: [torch.nn.functional.dropout(x.exp(), 0.3) * 2])(x)
    assert aten.native_dropout.default in targets(traced)
    for draws in (False, True):
        plan = lower(traced, cuda_target(device, (9, 0), draws_in_kernels=draws))
        assert plan.streams == draws
        assert len(launches(plan)) == (1 if draws else 2)
        assert why_not_captured(plan) == ""
        assert draws_random_numbers(plan) != draws
        assert bool(calls(plan)) != draws
