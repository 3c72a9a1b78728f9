"""Library calls that write in place: where that is possible, and where it must not be done."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import adjoint
from adjoint.backend import adjoint as backend
from adjoint.errors import CaptureError
from adjoint.graph.partial_writes import written, written_there
from adjoint.loops.plan import LibraryCall, Plan
from adjoint.observing import Sighting
from tests.parity import Route, check, plain


def plans_of(function: Callable[..., Any], *inputs: Any, target: str = "native") -> list[Plan]:
    """The plans of the first call of a function."""
    plans: list[Plan] = []

    def see(sighting: Sighting) -> None:
        if isinstance(sighting.value, Plan):
            plans.append(sighting.value)

    compiled = torch.compile(
        function,
        backend=lambda graph, examples: backend(
            graph, examples, options={"target": target}, observer=see
        ),
    )
    with torch.no_grad():
        compiled(*inputs)
    return plans


def overwriting(plans: list[Plan]) -> tuple[int, int]:
    """How many calls write to inputs, and how many calls copy a tensor to write to it."""
    calls = [
        (plan, step)
        for plan in plans
        for step in plan.steps
        if isinstance(step, LibraryCall) and step.op is written
    ]
    over = [plan.slots[step.result].replaces is not None for plan, step in calls]
    copying = [
        step.target is written and plan.slots[step.result].replaces is None for plan, step in calls
    ]
    return sum(over), sum(copying)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """A cache of keys for 6 places, the key of the next place, and that place."""
    return plain(2, 3, 6, 4), plain(2, 3, 1, 4), torch.tensor([4])


def by_index(cache: Tensor, key: Tensor, at: Tensor) -> Tensor:
    cache[:, :, at] = key
    return key.sum()


def by_copy(cache: Tensor, key: Tensor, at: Tensor) -> None:
    cache.index_copy_(2, at, key)


def by_slice(cache: Tensor, key: Tensor, at: Tensor) -> Tensor:
    cache[:, :, 2:3] = key
    return key.exp()


def by_scatter(cache: Tensor, key: Tensor, at: Tensor) -> Tensor:
    cache.scatter_(2, at.view(1, 1, 1, 1).expand(2, 3, 1, 4), key)
    return key + 1


def by_number(cache: Tensor, key: Tensor, at: Tensor) -> None:
    cache[1, 2, 3] = 7


def diagonally(cache: Tensor, key: Tensor, at: Tensor) -> None:
    cache[0, 0].diagonal().copy_(key[0, 0, 0])


def in_a_batch(cache: Tensor, key: Tensor, at: Tensor) -> Tensor:
    cache[1, :, at] = key[1]
    return key.sum()


def in_rows(cache: Tensor, key: Tensor, at: Tensor) -> Tensor:
    cache.view(-1, 4)[at] = key[0, 0]
    return key.sum()


def transposed(cache: Tensor, key: Tensor, at: Tensor) -> Tensor:
    cache.transpose(1, 2)[:, at] = key.transpose(1, 2)
    return key.sum()


def read_later(cache: Tensor, key: Tensor, at: Tensor) -> Tensor:
    cache.index_copy_(2, at, key)
    return F.scaled_dot_product_attention(key, cache, cache) @ cache.transpose(2, 3)


def read_before(cache: Tensor, key: Tensor, at: Tensor) -> Tensor:
    old = cache.exp().sum(-1)
    cache[:, :, at] = key
    return old.unsqueeze(2) @ cache


def one_after_the_other(cache: Tensor, key: Tensor, at: Tensor) -> Tensor:
    cache[:, :, at] = key
    first = cache.sum(2)
    cache[:, :, 0] = 3
    cache[0] += 1
    return first + cache.sum(2)


def added(cache: Tensor, key: Tensor, at: Tensor) -> None:
    cache.index_add_(2, at, key)
    cache.index_put_((at % 2,), key[0], accumulate=True)


def shifted(cache: Tensor, key: Tensor, at: Tensor) -> None:
    cache[:, :, 3:] = cache[:, :, :3].clone()


def used_row(cache: Tensor, key: Tensor, at: Tensor) -> Tensor:
    row = cache[0]
    row[:, at] = key[0]
    return row.softmax(-1)


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (by_index, 1),
        (by_copy, 1),
        (by_slice, 1),
        (by_scatter, 1),
        (by_number, 1),
        (diagonally, 1),
        (in_a_batch, 1),
        (in_rows, 1),
        (transposed, 1),
        (read_later, 1),
        (read_before, 1),
        (one_after_the_other, 3),
        (added, 2),
        (shifted, 1),
    ],
)
def test_only_what_changes_is_written(function: Callable[..., Any], count: int) -> None:
    # The last one: an op may return other strides than its fake, and then there is one before.
    assert overwriting(plans_of(function, *inputs())[-1:]) == (count, 0)
    for route in Route:
        check(function, inputs, route)


def test_a_part_that_is_read_is_computed_besides() -> None:
    assert overwriting(plans_of(used_row, *inputs()))[0] == 1
    for route in Route:
        check(used_row, inputs, route)


@pytest.mark.parametrize("function", [by_index, read_later, one_after_the_other, in_rows])
def test_the_plain_evaluator_does_the_same(function: Callable[..., Any]) -> None:
    ours, other = inputs(), inputs()
    for mine, theirs in zip(ours, other, strict=True):
        theirs.copy_(mine)
    plans = plans_of(function, *ours, target="loops")
    assert overwriting(plans)[1] == 0
    function(*other)
    assert torch.equal(ours[0], other[0])


def returned_too(cache: Tensor, key: Tensor, at: Tensor) -> Tensor:
    old = cache + 0
    cache[:, :, at] = key
    return old


def needed_with_the_new(cache: Tensor, key: Tensor, at: Tensor) -> Tensor:
    old = cache.clone()
    cache[:, :, at] = key
    return old * cache.softmax(-1)


def product_of_both(cache: Tensor, key: Tensor, at: Tensor) -> Tensor:
    old = cache * 1
    cache[:, :, at] = key
    exponential: Tensor = torch.linalg.matrix_exp(cache[..., :4, :])
    return exponential @ old.transpose(2, 3)


def onto_itself(cache: Tensor, key: Tensor, at: Tensor) -> None:
    cache[:, :, 0:3] = cache[:, :, 3:6]


def swapped(cache: Tensor, key: Tensor, at: Tensor) -> None:
    first, second = cache[0].clone(), cache[1].clone()
    cache[0] = second
    cache[1] = first


def view_of_the_old(cache: Tensor, key: Tensor, at: Tensor) -> Tensor:
    old = cache.clone().transpose(0, 1)
    cache[:, :, at] = key
    return old @ cache[..., :4, :].transpose(0, 1)


def returned(cache: Tensor, key: Tensor, at: Tensor) -> Tensor:
    cache[:, :, at] = key
    return cache


def part_returned(cache: Tensor, key: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    cache[:, :, at] = key
    return cache[0], cache.view(-1)


@pytest.mark.parametrize(
    "function",
    [
        returned_too,
        needed_with_the_new,
        product_of_both,
        onto_itself,
        swapped,
        view_of_the_old,
        returned,
        part_returned,
    ],
)
def test_the_old_value_is_what_it_was(function: Callable[..., Any]) -> None:
    for route in Route:
        check(function, inputs, route)


def strided() -> tuple[Tensor, Tensor, Tensor]:
    return plain(3, 2, 6, 8).transpose(0, 1)[..., ::2], plain(2, 3, 1, 4), torch.tensor([1])


def expanded() -> tuple[Tensor, Tensor, Tensor]:
    return plain(2, 3, 1, 4).expand(2, 3, 6, 4), plain(2, 3, 1, 4), torch.tensor([1])


def sharing() -> tuple[Tensor, Tensor, Tensor]:
    whole = plain(2, 3, 7, 4)
    return whole[:, :, 1:], whole[:, :, :1], torch.tensor([1])


@pytest.mark.parametrize("make", [strided, sharing])
@pytest.mark.parametrize(
    "function", [by_index, by_copy, by_slice, in_a_batch, read_later, one_after_the_other, returned]
)
def test_inputs_of_any_layout(
    function: Callable[..., Any], make: Callable[[], tuple[Tensor, ...]]
) -> None:
    for route in Route:
        check(function, make, route)


@pytest.mark.parametrize("function", [by_copy, by_scatter])
def test_an_expanded_input_is_refused_as_in_eager(function: Callable[..., Any]) -> None:
    for route in Route:
        check(function, expanded, route, raises=RuntimeError)


@pytest.mark.filterwarnings("ignore:Use of index_put_ on expanded tensors")
def test_an_expanded_input_is_refused_where_eager_warns() -> None:
    with pytest.raises(CaptureError, match="several elements of the tensor that it writes to lie"):
        adjoint.capture(by_index, *expanded())


def test_an_input_that_is_seen_by_another_name() -> None:
    def function(cache: Tensor, other: Tensor) -> Tensor:
        before = other.exp()
        cache[1] = 2
        other[:, 0] = 3
        return before + other

    def twice() -> tuple[Tensor, Tensor]:
        cache = plain(4, 4)
        return cache, cache

    def turned() -> tuple[Tensor, Tensor]:
        cache = plain(4, 4)
        return cache, cache.t()

    for route in Route:
        for make in (twice, turned, lambda: (plain(4, 4), plain(4, 4))):
            check(function, make, route)


def test_derivatives_through_a_write() -> None:
    """Gradients of the new value, of the old one, and where autograd saves the old one."""

    def through(cache: Tensor, key: Tensor, at: Tensor) -> Tensor:
        cache = cache.sin()
        cache[:, :, at] = key.exp()
        cache[0, 1] *= 2
        return cache.square()

    def saved(cache: Tensor, key: Tensor, at: Tensor) -> Tensor:
        result = (cache * key).sum(2)
        with torch.no_grad():
            cache[:, :, at] = 1
        return result

    def written_to(cache: Tensor, key: Tensor, at: Tensor) -> Tensor:
        cache[:, :, at] = key.sin()
        return cache.cos()

    def differentiable() -> tuple[Tensor, Tensor, Tensor]:
        cache, key, at = inputs()
        return cache.requires_grad_(), key.requires_grad_(), at

    def with_key() -> tuple[Tensor, Tensor, Tensor]:
        cache, key, at = inputs()
        return cache, key.requires_grad_(), at

    def not_a_leaf() -> tuple[Tensor, Tensor, Tensor]:
        cache, key, at = differentiable()
        return cache * 1, key, at

    for route in Route:
        check(through, differentiable, route, order=2)
        check(saved, with_key, route, order=2)
        check(written_to, with_key, route, order=2)
        check(written_to, not_a_leaf, route, order=2)


def then_factored(cache: Tensor, key: Tensor, at: Tensor) -> Tensor:
    cache[:, :, at] = key
    cache[0, 0, 0] = 5
    cache[:, :, at] = key + 1
    factored: Tensor = torch.linalg.cholesky(cache[:, :, :4] - 100 * torch.eye(4))
    return factored.exp()


@pytest.mark.parametrize("function", [by_index, by_copy, by_scatter, in_rows])
@pytest.mark.parametrize("wrong", [6 * 6, -1000])
def test_an_index_out_of_bounds_leaves_the_input_alone(
    function: Callable[..., Any], wrong: int
) -> None:
    cache, key, at = inputs()
    compiled = torch.compile(function, backend="adjoint")
    with torch.no_grad():
        compiled(cache, key, at)
        before = cache.clone()
        with pytest.raises((IndexError, RuntimeError)):
            compiled(cache, key + 1, torch.tensor([wrong]))
    assert torch.equal(cache, before)


def test_what_fails_after_a_write_leaves_the_input_alone() -> None:
    cache, key, at = inputs()
    before, version = cache.clone(), cache._version
    compiled = torch.compile(then_factored, backend="adjoint")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cholesky"), torch.no_grad():
            compiled(cache, key, at)
        assert torch.equal(cache, before)
        assert cache._version == version


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, contextlib.nullcontext])
def test_the_memory_is_that_of_the_input(mode: Callable[[], Any]) -> None:
    """In each mode the new value is stored in the input, without a copy of it."""
    with mode():
        cache, key, at = torch.zeros(64, 64, 64), torch.ones(64, 1, 64), torch.tensor([3])

        def function(cache: Tensor, key: Tensor, at: Tensor) -> Tensor:
            cache.index_copy_(1, at, key)
            return key.sum(1)

        compiled = torch.compile(function, backend="adjoint")
        compiled(cache, key, at)
        address = cache.data_ptr()
        with torch.profiler.profile(profile_memory=True) as profile:
            compiled(cache, key * 2, at)
    taken = sum(max(0, each.self_cpu_memory_usage) for each in profile.events())
    assert taken < cache.nbytes // 4
    assert cache.data_ptr() == address
    assert torch.equal(cache[:, 3], torch.full((64, 64), 2.0))
    assert cache.sum() == 64 * 64 * 2


def test_an_inference_tensor_is_protected_outside_of_inference_mode() -> None:
    with torch.inference_mode():
        cache, key, at = inputs()
    compiled = torch.compile(by_copy, backend="adjoint")
    with pytest.raises(RuntimeError, match="nference"), torch.no_grad():
        compiled(cache, key, at)


def test_sizes_that_change() -> None:
    compiled = torch.compile(one_after_the_other, backend="adjoint", dynamic=True)
    for size in (3, 5, 8):
        ours = (plain(2, 3, size, 4), plain(2, 3, 1, 4), torch.tensor([1]))
        other = [each.clone() for each in ours]
        with torch.no_grad():
            torch.testing.assert_close(compiled(*ours), one_after_the_other(*other))
        assert torch.equal(ours[0], other[0])


# Tensors of the program itself.


def table(x: Tensor, at: Tensor) -> Tensor:
    made = torch.zeros(10, 4, dtype=x.dtype)
    made[at] = x
    made[at + 1] = x * 2
    return made.cumsum(0)


def table_returned(x: Tensor, at: Tensor) -> Tensor:
    made = x.sin().repeat(5, 1)
    made.index_copy_(0, at, x.cos())
    return made


@pytest.mark.parametrize(("function", "count"), [(table, 2), (table_returned, 1)])
def test_a_temporary_is_written_in_place(function: Callable[..., Any], count: int) -> None:
    def make() -> tuple[Tensor, Tensor]:
        return plain(2, 4), torch.tensor([1, 5])

    plans = plans_of(function, *make())
    targets = [step.target for p in plans for step in p.steps if isinstance(step, LibraryCall)]
    assert targets.count(written_there) == count
    assert written not in targets
    for route in Route:
        check(function, make, route)
        check(
            function, lambda: (plain(2, 4).requires_grad_(), torch.tensor([1, 5])), route, order=2
        )


def table_read_later(x: Tensor, at: Tensor) -> Tensor:
    made = x.sin()
    changed = made.index_copy(0, at, x[:2])
    exponential: Tensor = torch.linalg.matrix_exp(changed[:4])
    return exponential @ made[:4]


def both_returned(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    made = x.sin()
    return made.index_fill(0, at, 2.0), made


def two_of_one(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    made = x.sin()
    return made.index_fill(0, at, 2.0).cumsum(0), made.index_fill(0, at, 3.0).cumsum(1)


def of_a_view(x: Tensor, at: Tensor) -> Tensor:
    made = x.sin()
    exponential: Tensor = torch.linalg.matrix_exp(made[:4])
    shown = exponential.t()
    return shown.index_fill(0, at, 2.0) + shown


def of_a_constant(x: Tensor, at: Tensor) -> Tensor:
    return (
        torch.tensor([[1.0, 2], [3, 4]], dtype=x.dtype).index_fill(0, at - at, 9.0).exp() + x[0, 0]
    )


@pytest.mark.parametrize(
    "function", [table_read_later, both_returned, two_of_one, of_a_view, of_a_constant]
)
def test_what_is_read_again_is_copied(function: Callable[..., Any]) -> None:
    def make() -> tuple[Tensor, Tensor]:
        return plain(6, 4), torch.tensor([1, 3])

    for route in Route:
        check(function, make, route)
    compiled = torch.compile(function, backend="adjoint")
    first, second = (compiled(torch.ones(6, 4).double(), torch.tensor([1, 3])) for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
