from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from adjoint.loops.plan import Argument, LibraryCall, Plan, SlotKind, operands_of
from adjoint.loops.show import show_plan
from adjoint.lower import recomputation, scheduling
from adjoint.lower.products import ASSUMED_ROWS
from adjoint.torch_private import trees
from tests.lowering import DRAWING_GRID, GRID, graph_of, grid_program, launches, lower

X = torch.randn(24, 32, dtype=torch.float64) / 4
W = torch.randn(32, 32, dtype=torch.float64) / 4
WIDE = torch.randn(32, 256, dtype=torch.float64) / 4
BYTES = 24 * 32 * 8


def planned(function: Callable[..., Any], *inputs: Tensor, traffic: float = 10.0) -> Plan:
    """Values are computed again however little memory is in use, and (almost) whatever it costs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recomputation, "MIN_PEAK_BYTES", 1)
        patch.setattr(recomputation, "MAX_EXTRA_TRAFFIC", traffic)
        patch.setattr(recomputation, "MIN_SAVING_PER_TRAFFIC", 0)
        return lower(graph_of(function, inputs), GRID)


def both(
    function: Callable[..., Any], *inputs: Tensor, traffic: float = 10.0
) -> tuple[Plan, Plan, int]:
    """The plan in which nothing is computed again and the one in which something is, which agree
    with eager; and how many bytes of memory that saves."""
    plain = lower(graph_of(function, inputs), GRID)
    plan = planned(function, *inputs, traffic=traffic)
    eager = function(*inputs)
    # How far rounding may carry a result is how far a rounding of the inputs carries eager's.
    shifted = function(*(each * (1 + 4 * torch.finfo(each.dtype).eps) for each in inputs))
    for each in (plain, plan):
        results = grid_program(each)(list(inputs))
        for one, other, another in zip(results, eager, shifted, strict=True):
            close = 1e-10 if other.dtype == torch.float64 else 1e-4
            rounding = 10 * float((another - other).abs().max())
            torch.testing.assert_close(one, other, rtol=close, atol=close + rounding)
    return plain, plan, peak_of(plain) - peak_of(plan)


def peak_of(plan: Plan) -> int:
    """Bytes of temporaries that there are at once, at most."""
    sizes = {
        slot.number: slot.dtype.itemsize * torch.Size(map(int, slot.shape)).numel()
        for slot in plan.slots
        if slot.kind is SlotKind.TEMPORARY and slot.dtype is not None and slot.shape is not None
    }
    views: dict[int, int] = {}
    places: dict[int, list[int]] = {}
    for place, step in enumerate(plan.steps):
        if isinstance(step, LibraryCall):
            leaves = trees.leaves((step.args, step.kwargs))
            slots = [leaf.slot for leaf in leaves if isinstance(leaf, Argument)]
            if step.is_view:
                views[step.result] = views.get(slots[0], slots[0])
            slots = [*slots, step.result]
        else:
            slots = [each for each in operands_of(step) if isinstance(each, int)]
        for slot in slots:
            places.setdefault(views.get(slot, slot), []).append(place)
    lives = [(places[slot][0], places[slot][-1], sizes[slot]) for slot in sizes]
    return max(
        (
            sum(size for first, last, size in lives if first <= place <= last)
            for place in range(len(plan.steps))
        ),
        default=0,
    )


def middle(a: Tensor, w: Tensor, wide: Tensor) -> Tensor:
    """A reader of `a`, and then much memory."""
    return (a @ w).sin() @ wide @ wide.t()


def with_late_call(x: Tensor, w: Tensor, wide: Tensor) -> list[Tensor]:
    y = x @ w
    a = y * (1 - x * x)
    d = middle(a, w, wide)
    return [a.t() @ d, (y * d).sum()]


def with_late_kernel(x: Tensor, w: Tensor, wide: Tensor) -> list[Tensor]:
    y = x @ w
    a = y * (1 - x * x)
    d = middle(a, w, wide)
    return [(a * d + y * x).exp().sum(0)]


@pytest.fixture
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another pass sees to kernels that read what a value is made of anyway: not here."""
    monkeypatch.setattr(scheduling, "eliminate_loads", lambda groups, nodes, outside: groups)


@pytest.mark.usefixtures("_alone")
def test_a_late_kernel_computes_what_it_reads() -> None:
    plain, plan, less = both(with_late_kernel, X, W, WIDE)
    assert less == BYTES
    assert len(plan.steps) == len(plain.steps)


@pytest.mark.usefixtures("_alone")
def test_where_that_saves_traffic_no_other_is_needed() -> None:
    assert both(with_late_kernel, X, W, WIDE, traffic=0.0)[2] == BYTES
    assert both(with_late_call, X, W, WIDE, traffic=0.0)[2] == 0


def test_what_would_only_take_the_place_of_another_is_not_computed_again() -> None:
    def function(x: Tensor, w: Tensor, wide: Tensor) -> list[Tensor]:
        a = x @ w * (1 - x * x)
        return [a.t() @ middle(a, w, wide)]

    plain, plan, less = both(function, X, W, WIDE)
    assert less == 0
    assert show_plan(plan) == show_plan(plain)


def test_what_is_gained_must_be_worth_the_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recomputation, "MIN_PEAK_BYTES", 1)
    monkeypatch.setattr(recomputation, "MAX_EXTRA_TRAFFIC", 10.0)

    def peak(worth: float) -> int:
        monkeypatch.setattr(recomputation, "MIN_SAVING_PER_TRAFFIC", worth)
        return peak_of(lower(graph_of(with_late_call, (X, W, WIDE)), GRID))

    assert peak(0) == peak(1e9) - BYTES


def test_several_that_are_made_of_one() -> None:
    def function(x: Tensor, w: Tensor, wide: Tensor) -> list[Tensor]:
        y = x @ w
        a, b = y * (1 - x * x), y + x
        d = middle(a, w, wide) + middle(b, w, wide)
        return [a.t() @ d, b.t() @ d]

    _, plan, less = both(function, X, W, WIDE)
    assert less == BYTES
    shared = [each for each in launches(plan) if len(each.operands) > 3]
    assert shared, "both are made in one go"


def test_what_is_only_needed_late_is_made_late() -> None:
    def function(x: Tensor, w: Tensor, wide: Tensor) -> list[Tensor]:
        y = x @ w
        a = y * (1 - x * x)
        return [a.t() @ middle(y, w, wide), y]

    plain, plan, less = both(function, X, W, WIDE)
    assert less == BYTES
    assert len(plan.steps) == len(plain.steps)


def test_what_was_never_stored_may_be_stored_instead() -> None:
    """Two values of one that nobody has read but a kernel."""

    def function(x: Tensor, w: Tensor, wide: Tensor) -> list[Tensor]:
        y = (x @ w).tanh().tanh().tanh().tanh()
        a, b = y * (1 - x), y * (2 - x * x)
        d = middle(a, w, wide) + middle(b, w, wide)
        return [a.t() @ d, b.t() @ d]

    assert both(function, X, W, WIDE)[2] == BYTES


def test_a_value_and_another_that_is_made_of_it_are_not_both_taken_away() -> None:
    def function(x: Tensor, w: Tensor, wide: Tensor) -> list[Tensor]:
        y = x @ w
        a = y * (1 - x * x)
        b = a * y
        d = middle(y.sin(), w, wide)
        return [a.t() @ d, b.t() @ d]

    assert both(function, X, W, WIDE)[2] == 0


@pytest.mark.parametrize(
    "function", [lambda x: [(x + 1).exp().flip([1]) + x], lambda x: [(x + 1).exp()[1:] * 2]]
)
def test_what_is_read_at_once_is_made_once(function: Callable[..., Any]) -> None:
    plain, plan, less = both(function, X, traffic=1e9)
    assert less == 0
    assert show_plan(plan) == show_plan(plain)


def test_a_long_chain() -> None:
    """What is not there is made of what is not there either, all the way back."""

    def function(x: Tensor, w: Tensor, wide: Tensor) -> list[Tensor]:
        for _ in range(400):
            x = (x + x @ w) / 2
        return [x.t() @ middle(x, w, wide)]

    plain = lower(graph_of(function, (X, W, WIDE)), GRID)
    assert peak_of(planned(function, X, W, WIDE)) == peak_of(plain)


def test_nothing_is_drawn_again() -> None:
    def function(x: Tensor, w: Tensor, wide: Tensor) -> list[Tensor]:
        a = torch.rand_like(x) * 2
        d = middle(a, w, wide)
        return [a.t() @ d]

    graph_module = graph_of(function, (X, W, WIDE))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recomputation, "MIN_PEAK_BYTES", 1)
        patch.setattr(recomputation, "MAX_EXTRA_TRAFFIC", 10.0)
        plan = lower(graph_module, DRAWING_GRID)
    assert "philox" in show_plan(plan)
    assert show_plan(plan) == show_plan(lower(graph_module, DRAWING_GRID))


def test_little_memory_is_left_as_it_is() -> None:
    plain = lower(graph_of(with_late_call, (X, W, WIDE)), GRID)
    assert peak_of(plain) < recomputation.MIN_PEAK_BYTES
    assert show_plan(plain) != show_plan(planned(with_late_call, X, W, WIDE))


def test_layers_of_a_network_and_their_derivatives() -> None:
    """Tall products are kernels that compute again what they read beside."""

    def function(x: Tensor, *weights: Tensor) -> list[Tensor]:
        values = [x]
        for w in weights:
            values.append(torch.tanh(values[-1] @ w))
        cotangent = values[-1] * 2
        slopes: list[Tensor] = []
        through: list[Tensor] = []
        for w, y in zip(reversed(weights), reversed(values), strict=False):
            slopes.append(cotangent * y)
            through.append(cotangent * (1 - y * y))
            cotangent = through[-1] @ w.t()
        last = cotangent
        for w, slope, y in zip(weights, reversed(slopes), values[1:], strict=True):
            last = (last @ w) * slope + y
        gradients = [x.t() @ y for x, y in zip(values, reversed(through), strict=False)]
        return [*gradients, last.sum(0)]

    x = torch.randn(ASSUMED_ROWS, 16) / 4
    weights = [torch.randn(16, 16) / 4 for _ in range(4)]
    plain, plan, less = both(function, x, *weights)
    assert less >= 2 * ASSUMED_ROWS * 16 * 4
    tiles = [sum(each.kernel.tile is not None for each in launches(p)) for p in (plain, plan)]
    assert tiles[0] == tiles[1] > 4


# Any program --------------------------------------------------------------------------------------

SIDE = 12

OPS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, y: x + y,
    lambda x, y: x * y,
    lambda x, y: x * (1 - y * y),
    lambda x, y: x.sin(),
    lambda x, y: x * 0.5,
    lambda x, y: x @ y / SIDE,
    lambda x, y: x.t() @ y / SIDE,
    lambda x, y: x.t() + y,
    lambda x, y: x - y.mean(1, keepdim=True),
    lambda x, y: x + y.sum(0),
    lambda x, y: torch.cat([x[:4], y[4:]]),
]

STEPS = st.lists(
    st.tuples(st.integers(0, len(OPS) - 1), st.integers(0, 40), st.integers(0, 40)),
    min_size=4,
    max_size=24,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.sets(st.integers(0, 23), max_size=3), st.sampled_from([0.0, 0.1, 10.0]))
def test_any_program_means_the_same_and_takes_no_more_memory(
    steps: list[tuple[int, int, int]], returned: set[int], traffic: float
) -> None:
    def function(*inputs: Tensor) -> list[Tensor]:
        values = list(inputs)
        for op, one, other in steps:
            # Half of them read what is recent, half anything.
            x = values[-1 - one % min(4, len(values))] if one % 2 else values[one % len(values)]
            values.append(OPS[op](x, values[other % len(values)]))
        made = values[len(inputs) :]
        return [*(made[place] for place in returned if place < len(made)), made[-1] + made[-2]]

    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(SIDE, SIDE, generator=generator, dtype=torch.float64) for _ in range(2)]
    assert both(function, *inputs, traffic=traffic)[2] >= 0
