from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from adjoint.errors import FallbackWarning
from adjoint.graph.operations import require_within
from adjoint.kernels import compile_kernels
from adjoint.loops.plan import Launch, Plan, Product, SlotKind
from adjoint.runtime.cpu import machines
from adjoint.runtime.cpu.program import CpuProgram
from adjoint.target import cpu_target
from tests.lowering import calls, check, graph_of, lower

X = torch.arange(12.0).reshape(3, 4)


def test_values_between_kernels_and_calls_are_temporary() -> None:
    x = torch.arange(30.0, dtype=torch.float64).reshape(5, 6) / 30
    plan = check(lambda x: ((x + 1) @ (x * 2).t()).exp(), x).plan
    kinds = [slot.kind for slot in plan.slots]
    assert kinds.count(SlotKind.OUTPUT) == 1
    assert kinds.count(SlotKind.INPUT) == 1
    assert calls(plan) == []
    assert [type(step) for step in plan.steps] == [Launch, Product, Launch]


def test_a_result_that_shares_memory_with_an_output_is_no_temporary() -> None:
    """A view that is returned keeps the memory of what it views."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).view(-1)[2:]

    program = check(function, X)
    first, second = program([X]), program([X * 10])
    assert torch.equal(first, function(X))
    assert torch.equal(second, function(X * 10))


@pytest.mark.parametrize(
    "view",
    [
        lambda y: y.view(-1)[:6].expand(2, 6),
        lambda y: y.as_strided((6, 2), (1, 1)),
        lambda y: y.view(-1)[:4].unfold(0, 2, 1).repeat(2, 1),
        lambda y: y.t(),
        lambda y: y.view(2, 6).t(),
    ],
)
def test_the_memory_of_a_result_is_that_of_all_its_elements(view: Callable[..., Tensor]) -> None:
    """Though a view that shows some of them repeatedly may have as many."""
    result = check(lambda x: view(x + 1), X)([X])
    assert result.untyped_storage().nbytes() == view(X.clone()).untyped_storage().nbytes()
    assert result.stride() == view(X.clone()).stride()


def test_a_copy_is_made_in_each_call() -> None:
    """`flip` is read as a view, but as a tensor it is one of its own."""

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y = x + 1
        return [y.flip([0]), y.t().reshape(-1), (y * 2).flip([1]).sort(1).values]

    program = check(function, X)
    for ours, eager in zip(program([X * 10]), function(X * 10), strict=True):
        assert torch.equal(ours, eager)


def test_an_input_may_be_returned() -> None:
    check(lambda x: [x, x + 1, x.t()], X)


def test_constants_may_be_returned() -> None:
    check(lambda x: [torch.ones(3), x + torch.arange(4), torch.zeros(2).expand(3, 2)], X)


def test_a_tensor_like_one_that_is_not_there() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y = (x + 1).t()
        likes = [torch.zeros_like(y), torch.ones_like(y), torch.full_like(y, 3), y.new_zeros(2)]
        return [*likes, y.new_full((2, 2), 4.0), y.new_ones(3), x.expand(2, 3, 4).clone()]

    check(function, X)
    check(lambda x: [torch.zeros_like(x.expand(2, 3, 4)).sort(0).values, x * 2], X)


def test_one_value_returned_twice() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y = x + 1
        return [y, y, y * 2]

    check(function, X)


def test_bounds_are_checked_before_the_kernel() -> None:
    plan = lower(graph_of(lambda x, i: x[i] + x[i] * 2, [X, torch.tensor([1, 0])]))
    names = [getattr(step.target, "__name__", "") for step in calls(plan)]
    assert names == ["require_within"]


def test_a_size_of_the_indices_that_are_checked_is_there_before() -> None:
    torch.manual_seed(0)
    first, second, last = nn.Linear(6, 4), nn.Linear(4, 3), nn.Linear(6, 3)

    def function(x: Tensor, edges: Tensor) -> Tensor:
        starts = torch.arange(2).reshape(-1, 1) * x.shape[0]
        both = torch.stack([edges[0] + starts, edges[1] + starts]).reshape(2, -1)
        twice = x.repeat(2, 1)
        messages = second(silu(first(torch.cat([twice[both[0]], twice[both[1]]], -1))))
        index = both[1].unsqueeze(-1).expand_as(messages)
        summed = torch.zeros_like(twice).scatter_add(0, index, messages)
        result: Tensor = last(torch.cat([twice, summed], -1))
        return result

    torch.compiler.reset()
    edges = torch.stack([torch.arange(5), torch.arange(5).roll(1)])
    inputs = [torch.rand(5, 3), edges]
    compiled = torch.compile(function, backend="adjoint", dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        torch.testing.assert_close(compiled(*inputs), function(*inputs))


def test_require_within() -> None:
    require_within(torch.tensor([-3, 2]), -3, 3, 1, "aten.gather", IndexError)
    require_within(torch.tensor([], dtype=torch.int64), 0, 0, 1, "aten.gather", IndexError)
    for wrong, error in ((-4, IndexError), (3, RuntimeError)):
        message = rf"index {wrong} is out of bounds for dimension 1 with size 3 \(aten.gather\)"
        with pytest.raises(error, match=message):
            require_within(torch.tensor([0, wrong]), -3, 3, 1, "aten.gather", error)


def test_any_node_may_be_called_as_it_is() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, at: torch.Tensor) -> list[torch.Tensor]:
        y = (x @ w).softmax(1)
        z = torch.cat([y, x[:, :2]], 1) + torch.arange(w.shape[1] + 2)
        return [z[at].sum(0), torch.zeros_like(y).index_add(0, at, y) * z.amax(), z.t() - 1]

    inputs = [rand(20, 24), rand(24, 20), torch.arange(20).flip(0)]
    graph_module = graph_of(function, inputs)
    names = {name for step in launched(lower(graph_module)) for name in step.nodes}
    assert len(names) > 8
    for name in sorted(names):
        plan = lower(graph_module, called={name})
        assert name not in {other for step in launched(plan) for other in step.nodes}
        compiled = compile_kernels(plan, cpu_target(machines.host()))
        assert not compiled.refused
        for ours, eager in zip(
            CpuProgram(plan, compiled.code)(list(inputs)), function(*inputs), strict=True
        ):
            torch.testing.assert_close(ours, eager, msg=name)


def launched(plan: Plan) -> list[Launch]:
    return plan.launches


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64)
