from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import adjoint
from adjoint.compiler import Compiler
from adjoint.differentiate.sweep import differentiate
from adjoint.errors import DifferentiationError, FallbackWarning
from adjoint.graph.derivative import Derivative, Joint
from adjoint.graph.metadata import region_of
from adjoint.options import Options
from adjoint.partition.budget import Candidate, Choice, choices, marked, quickest_within
from adjoint.partition.split import Split
from tests.partition.test_split import saved_nodes

aten = torch.ops.aten

DEPTH = 4

# A budget is for programs with kernels, and these are too large for kernels in plain Python, so
# every test here names its target.


def net(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    for _ in range(DEPTH):
        hidden = torch.tanh(torch.sin(x @ w) * 2)
        x = x + torch.sigmoid(hidden @ v)
    return (x * x).mean()


def arguments() -> list[Tensor]:
    torch.manual_seed(0)
    shapes = (2048, 64), (64, 128), (128, 64)
    return [(torch.randn(shape, dtype=torch.float64) / 8).requires_grad_() for shape in shapes]


def joint_of(function: Callable[..., Any] = net) -> Joint:
    return differentiate(adjoint.capture(function, *arguments()).graph_module, [0], [0, 1, 2])


def made(budget: Any) -> tuple[Derivative, int]:
    compiler = Compiler(Options(memory_budget=budget, target="native"))
    graph_module = adjoint.capture(net, *arguments()).graph_module
    derivative = compiler.derivative(graph_module, (0, 1, 2))
    assert derivative is not None
    pair = compiler.footprint(derivative)
    assert pair is not None
    return derivative, pair.peak


def test_parts_are_divided_where_little_crosses() -> None:
    joint = marked(joint_of(), Choice(DEPTH, DEPTH, DEPTH))
    parts: dict[int, list[Any]] = {}
    for node in Split(joint).forward_nodes:
        region = region_of(node)
        assert region is not None
        parts.setdefault(region.index, []).append(node.target)
    first, *_ = parts.values()
    assert len(parts) == DEPTH
    # A layer, and nothing of the next.
    assert first[-1] is aten.add.Tensor
    assert first.count(aten.mm.default) == 2


def test_the_items_of_a_tuple_are_in_the_part_of_their_operator() -> None:
    def split(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        for _ in range(DEPTH):
            one, other = torch.tanh(x @ w).split(64, 1)
            x = x + one * torch.sigmoid(other)
        return (x * x).mean()

    graph_module = adjoint.capture(split, *arguments()).graph_module
    joint = differentiate(graph_module, [0], [0, 1])
    # Every place is a boundary between two parts in one of these divisions.
    for parts in range(2, 2 + len(Split(joint).forward_nodes)):
        nodes = Split(marked(joint, Choice(parts, parts, parts))).forward_nodes
        items = [node for node in nodes if node.target is operator.getitem]
        assert items
        assert all(region_of(node) == region_of(node.all_input_nodes[0]) for node in items)


def test_a_selective_part_saves_its_products() -> None:
    joint = marked(joint_of(), Choice(DEPTH, 2, 1))
    policies: dict[int, set[str]] = {}
    for node in Split(joint).forward_nodes:
        region = region_of(node)
        if region is not None and node.target is aten.mm.default:
            policies.setdefault(region.index, set()).add(region.policy)
    assert policies == {-1: {""}, -2: {"MUST_SAVE"}}


def test_derivatives_belong_to_the_part_of_what_they_are_derivatives_of() -> None:
    joint = marked(joint_of(), Choice(DEPTH, DEPTH, DEPTH))
    reverse = Split(joint).reverse
    marks = {region.index for node in reverse if (region := region_of(node)) is not None}
    assert marks == {-1 - part for part in range(DEPTH)}


def test_marks_of_the_user_stay() -> None:
    def function(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        inner: Any = torch.utils.checkpoint.checkpoint(torch.sin, x @ w, use_reentrant=False)
        return net(x, w, v) + inner.sum()  # type: ignore[no-any-return]

    nodes = Split(marked(joint_of(function), Choice(2, 2, 2))).forward_nodes
    found = [region_of(node) for node in nodes if node.target is aten.sin.default]
    assert 0 in [region.index for region in found if region is not None]


def test_the_choices_recompute_more_and_more() -> None:
    found = choices(joint_of())
    assert found[0] == Choice(found[0].parts)
    fine = [each for each in found if each.parts == found[0].parts]
    assert fine[-1] == Choice(fine[0].parts, fine[0].parts, fine[0].parts)
    counts = [(each.whole, each.selective) for each in fine]
    assert counts == sorted(counts)


# Of each candidate the time, the bytes that are saved, and the peak, which need not fall.
CANDIDATES = {
    Candidate("nothing", 1.0, 80): 100,
    Candidate("some", 1.2, 60): 80,
    Candidate("more, but no better", 1.3, 50): 90,
    Candidate("products", 1.5, 40): 60,
    Candidate("all", 2.0, 20): 40,
    Candidate("coarse", 2.1, 10): 50,
    Candidate("as long as coarse", 2.1, 5): 30,
}


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (1000, "nothing"),
        (100, "nothing"),
        (99, "some"),
        (79, "products"),
        (59, "all"),
        (39, "as long as coarse"),
        (29, None),
    ],
)
def test_the_quickest_within_a_budget(budget: int, expected: str | None) -> None:
    reordered = reversed(list(CANDIDATES))
    found, peak = quickest_within(budget, reordered, CANDIDATES.__getitem__)
    assert (found and found.made) == expected
    assert peak == (30 if found is None else CANDIDATES[found])


def test_peaks_are_predicted_only_where_they_may_be_within_the_budget() -> None:
    predicted = []

    def peak_of(candidate: Candidate[str]) -> int:
        predicted.append(candidate.made)
        return CANDIDATES[candidate]

    quickest_within(45, CANDIDATES, peak_of)
    assert {*predicted} == {"products", "all"}


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9), st.integers(0, 9)), min_size=1),
    st.lists(st.integers(0, 20), min_size=2),
)
def test_a_larger_budget_is_never_slower_and_a_smaller_one_never_takes_more(
    rows: list[tuple[int, int, int]], budgets: list[int]
) -> None:
    peaks = {Candidate(0, float(time), least): least + more for time, least, more in rows}
    found = [quickest_within(each, peaks, peaks.__getitem__) for each in sorted(budgets)]
    taken = [(candidate.seconds, peak) for candidate, peak in found if candidate is not None]
    # None is within the smallest budgets alone.
    assert [each for each, _ in found[len(found) - len(taken) :]].count(None) == 0
    assert [seconds for seconds, _ in taken] == sorted((each for each, _ in taken), reverse=True)
    assert [peak for _, peak in taken] == sorted(peak for _, peak in taken)


def test_a_smaller_budget_holds_less_and_means_the_same() -> None:
    args = arguments()
    expected = torch.autograd.grad(net(*args), args)
    peaks, recomputed = [], []
    for budget in (None, 0.8, 0.6, 0.4):
        derivative, peak = made(budget)
        peaks.append(peak)
        nodes = derivative.first_backward.graph_module.graph.nodes
        recomputed.append(sum(node.target is aten.sin.default for node in nodes))
        torch._dynamo.reset()
        compiled = adjoint.compile(net, fullgraph=True, memory_budget=budget, target="native")
        actual = torch.autograd.grad(compiled(*args), args)
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)
    everything = peaks[0]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] <= 0.4 * everything
    assert recomputed == sorted(recomputed)
    assert recomputed[-1] == DEPTH


def test_a_budget_in_bytes() -> None:
    _, free = made(None)
    derivative, peak = made(int(0.7 * free))
    assert peak <= 0.7 * free
    assert any(region_of(node) for node in derivative.graph_module.graph.nodes)
    same, _ = made(f"{2 * free / 2**20}MiB")
    assert [n.name for n in saved_nodes(same)] == [n.name for n in saved_nodes(made(None)[0])]


def test_an_impossible_budget_says_what_is_possible() -> None:
    with pytest.raises(DifferentiationError, match="least peak that was found has") as caught:
        made(1000)
    assert "that is 1,000 bytes" in str(caught.value)
    assert caught.value.source is not None
    assert caught.value.source.file == __file__
    least = int(caught.value.remedy.split("=")[1].split(",")[0])
    assert made(least)[1] <= least


def test_second_derivatives_within_a_budget() -> None:
    args = arguments()

    def derivatives(function: Callable[..., Any]) -> Any:
        first = torch.autograd.grad(function(*args), args, create_graph=True)
        total: Any = sum((each**2).sum() for each in first)
        return torch.autograd.grad(total, args)

    torch._dynamo.reset()
    compiled = adjoint.compile(net, fullgraph=True, memory_budget=0.4, target="native")
    torch.testing.assert_close(derivatives(compiled), derivatives(net), rtol=1e-10, atol=1e-12)


def test_a_transform_within_a_budget() -> None:
    args = [each.detach() for each in arguments()]
    expected = torch.func.grad(net, argnums=(0, 1, 2))(*args)
    options = {"memory_budget": 0.4, "target": "native"}
    found = adjoint.grad(net, argnums=(0, 1, 2), options=options)(*args)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_what_runs_op_by_op_has_no_budget() -> None:
    compiler = Compiler(Options(memory_budget=1000, target="reference"))
    graph_module = adjoint.capture(net, *arguments()).graph_module
    with pytest.warns(FallbackWarning, match="memory_budget has no effect"):
        assert compiler.derivative(graph_module, (0, 1, 2)) is not None
