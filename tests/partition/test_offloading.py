"""Values in host memory.  What the tests compute, on a CPU, counts as in memory of a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.utils.checkpoint import CheckpointPolicy, checkpoint

import adjoint
from adjoint.compiler import Compiler
from adjoint.host_memory import from_host, to_host
from adjoint.memory.report import report_of
from adjoint.options import Options
from adjoint.partition import marks
from adjoint.partition.offloading import fetch_ahead
from tests.parity import ROUTES, Route
from tests.partition.test_marks import arguments, block, derivatives, policy, split_by
from tests.partition.test_split import saved_nodes, targets

aten = torch.ops.aten

DEPTH = 3

pytestmark = pytest.mark.skipif(
    not hasattr(CheckpointPolicy, "MUST_CPU_OFFLOAD"), reason="this torch has no such policy"
)


@pytest.fixture(autouse=True)
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "is_on_device", lambda value: True)


def offloading(x: Tensor, w: Tensor, v: Tensor, name: str = "MUST_CPU_OFFLOAD") -> Tensor:
    """A residual network that offloads the products in its layers."""
    contexts = policy(name)
    for _ in range(DEPTH):
        x = x + checkpoint(block, x, w, v, use_reentrant=False, context_fn=contexts)
    return (x * x).sum()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", ["MUST_CPU_OFFLOAD", "PREFER_CPU_OFFLOAD"])
def test_marked_values_wait_in_host_memory(route: Route, name: str) -> None:
    made = split_by(route, lambda x, w, v: offloading(x, w, v, name), *arguments())
    copies = [node for node in saved_nodes(made) if node.target is to_host]
    assert [node.args[0].target for node in copies] == [aten.mm.default] * DEPTH  # type: ignore[union-attr]
    # The values themselves are freed in the forward graph.
    assert not {node.args[0] for node in copies} & set(saved_nodes(made))
    again = targets(made.first_backward.graph_module)
    assert again.count(from_host) == DEPTH
    assert again.count(aten.tanh.default) == DEPTH


def test_values_are_fetched_right_before_they_are_read() -> None:
    made = split_by(Route.DIRECT, offloading, *arguments())
    nodes = list(made.first_backward.graph_module.graph.nodes)
    for node in nodes:
        if node.target is from_host:
            assert nodes[nodes.index(node) + 1] in node.users


def test_values_are_copied_as_soon_as_they_are_computed() -> None:
    made = split_by(Route.DIRECT, offloading, *arguments())
    nodes = list(made.runs.graph.nodes)
    for node in nodes:
        if node.target is to_host:
            assert nodes[nodes.index(node) - 1] is node.args[0]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("function", [offloading])
def test_derivatives_are_eagers(function: Any, order: int) -> None:
    args = [each.double().detach().requires_grad_() for each in arguments()]
    expected = derivatives(function, args, order)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="adjoint", fullgraph=True)
    torch.testing.assert_close(derivatives(compiled, args, order), expected)


def test_a_derivative_of_some_results() -> None:
    """The backward graph for other cotangents is made of the forward graph, with its copies."""

    def function(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return offloading(x, w, v), (x @ w).exp().sum()

    args = [each.double().detach().requires_grad_() for each in arguments()]
    compiled: Any = torch.compile(function, backend="adjoint", fullgraph=True)
    for place in range(2):
        expected = torch.autograd.grad(function(*args)[place], args, allow_unused=True)
        found = torch.autograd.grad(compiled(*args)[place], args, allow_unused=True)
        torch.testing.assert_close(found, expected)


def test_sizes_that_change() -> None:
    compiled: Any = torch.compile(offloading, backend="adjoint", fullgraph=True, dynamic=True)
    _, w, v = arguments()
    for rows in (8, 9, 33):
        x = torch.randn(rows, 8, dtype=w.dtype, requires_grad=True)
        expected = torch.autograd.grad(offloading(x, w, v), (x, w, v))
        found = torch.autograd.grad(compiled(x, w, v), (x, w, v))
        torch.testing.assert_close(found, expected)


def test_a_gradient_inside_a_program() -> None:
    args = [each.detach() for each in arguments()]
    expected = torch.func.grad(plainly, argnums=(0, 1, 2))(*args)
    found = adjoint.grad(offloading, argnums=(0, 1, 2))(*args)
    torch.testing.assert_close(tuple(found), expected)


def plainly(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    for _ in range(DEPTH):
        x = x + block(x, w, v)
    return (x * x).sum()


def test_a_result_stays_where_it_is() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        contexts = policy("MUST_CPU_OFFLOAD")
        result: Tensor = checkpoint(torch.mm, x, w, use_reentrant=False, context_fn=contexts)
        return result, result.exp().sum()  # type: ignore[return-value]

    x, w, _ = arguments()
    graph_module = adjoint.capture(function, x, w).graph_module
    made = Compiler(Options()).derivative(graph_module, (0, 1))
    assert made is not None
    assert to_host not in targets(made.runs)


def test_what_is_in_host_memory_already_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    # Another function: what was derived for the one above may be in a cache.
    made = split_by(Route.DIRECT, lambda x, w, v: offloading(x.sin(), w, v), *arguments())
    assert to_host not in targets(made.runs)


def test_each_copy_begins_the_next() -> None:
    made = split_by(Route.DIRECT, offloading, *arguments())
    graph_module = fetch_ahead(made.first_backward.graph_module)
    copies = graph_module.graph.find_nodes(op="call_function", target=from_host)
    following = [list(copy.args[2]) for copy in copies]
    assert following == [*([copy.args[0]] for copy in copies[1:]), []]
    # Without any there is nothing to do.
    empty = fx.GraphModule(torch.nn.Module(), fx.Graph())
    assert fetch_ahead(empty) is empty


def test_the_report_says_what_is_in_host_memory() -> None:
    made = split_by(Route.DIRECT, offloading, *arguments())
    report = report_of(made, Compiler(Options(target="native")))
    there = [each for each in report.values if each.in_host_memory]
    assert [each.op for each in there] == ["aten.mm.default"] * DEPTH
    assert all(each.why.endswith("is MUST_CPU_OFFLOAD") for each in there)
    assert report.bytes == sum(e.bytes for e in report.values if not e.exists_anyway) - sum(
        each.bytes for each in there
    )
    assert "12.0 KiB, and 24.0 KiB in host memory, in 6 values" in str(report)
    assert "aten.mm.default, in host memory" in str(report)
