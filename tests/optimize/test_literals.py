from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import adjoint
from adjoint.graph.metadata import Mode, set_mode, set_value, tensor_of
from adjoint.graph.verify import verify
from adjoint.optimize.literals import LITERAL, MAX_LITERAL_BYTES, fold_literals
from adjoint.torch_private.fake import new_fake_mode
from adjoint.torch_private.graph_modules import module_of
from tests.rewriting import assert_same, graph_of, targets

aten = torch.ops.aten
FULL = aten.full.default
VECTOR = torch.tensor([0.5, -1.0, 2.0, 3.0])


def folded(function: Callable[..., Any], *inputs: Any) -> list[Any]:
    module = graph_of(function, *inputs)
    made = fold_literals(module)
    verify(made)
    assert_same(module, made, *inputs)
    return targets(made)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda a: a * torch.exp(torch.tensor(2.0)), [FULL, aten.mul.Tensor]),
        (lambda a: a + torch.tensor(True), [FULL, aten.add.Tensor]),
        (lambda a: a + torch.tensor(3).pow(2).to(torch.float64), [FULL, aten.add.Tensor]),
        (
            lambda a: a * torch.tensor([1.0, 2.0, 3.0, 4.0]).flip(0).cumsum(0),
            [LITERAL, aten.mul.Tensor],
        ),
        (
            lambda a: a * torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t()[0].sum(),
            [FULL, aten.mul.Tensor],
        ),
        (lambda a: (a.sin(), torch.tensor(2.0).exp()), [aten.sin.default, FULL]),
        (
            lambda a: (a * torch.tensor(1j).exp()).abs(),
            [LITERAL, aten.mul.Tensor, aten.abs.default],
        ),
    ],
)
def test_what_follows_from_literals_is_computed_at_once(
    function: Callable[..., Any], expected: list[Any]
) -> None:
    assert sorted(map(str, folded(function, VECTOR))) == sorted(map(str, expected))


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a * torch.tensor([1.0, 2.0, 3.0, 4.0]),
        lambda a: a * torch.bernoulli(torch.tensor([0.5])),
        lambda a: a.sum() + torch.tensor([1.0]).expand(MAX_LITERAL_BYTES).contiguous().sum(),
        lambda a: a.sin() * 2,
    ],
)
def test_what_stays(function: Callable[..., Any]) -> None:
    module = graph_of(function, VECTOR)
    assert fold_literals(module) is module


def test_a_result_is_in_memory_of_its_own() -> None:
    def function(a: Tensor) -> tuple[Tensor, Tensor]:
        return a.sin(), torch.tensor([1.0, 2.0]).exp()

    compiled = torch.compile(function, backend="adjoint", fullgraph=True)
    for _ in range(2):
        result = compiled(VECTOR)[1]
        torch.testing.assert_close(result, torch.tensor([1.0, 2.0]).exp())
        result.zero_()


def test_a_literal_that_the_program_writes_to() -> None:
    def function(a: Tensor) -> Tensor:
        factor = torch.tensor([2.0, 1.0])
        factor.add_(a[:2]).mul_(torch.tensor(3.0).exp())
        return factor * a[2:]

    compiled = torch.compile(function, backend="adjoint", fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(VECTOR), function(VECTOR))


def test_derivatives() -> None:
    def function(a: Tensor) -> Tensor:
        return (a * torch.tensor(2.0).exp()).sin().pow(torch.tensor(2.0)).sum()

    x = torch.randn(5, dtype=torch.float64)
    for mine, theirs in ((adjoint.grad, torch.func.grad), (adjoint.hessian, torch.func.hessian)):
        torch.testing.assert_close(mine(function)(x), theirs(function)(x))


def test_numbers_of_the_host_are_created_on_the_device_that_uses_them() -> None:
    mode = new_fake_mode()
    graph = fx.Graph()
    with mode:
        x = torch.empty(3, device="cuda:0")
        number = torch.full((), 2.5, dtype=torch.float64, device="cpu")
    given = graph.placeholder("x")
    half = graph.call_function(
        FULL, ([], 2.5), {"dtype": torch.float64, "device": torch.device("cpu")}
    )
    product = graph.call_function(aten.mul.Tensor, (given, half))
    graph.output((product, half))
    for node, value in ((given, x), (half, number), (product, x)):
        set_value(node, value)
        set_mode(node, Mode())
    made = fold_literals(module_of(torch.nn.Module(), graph))
    (moved,) = [node for node in made.graph.nodes if node.target is aten.mul.Tensor]
    operand = moved.args[1]
    assert isinstance(operand, fx.Node)
    assert (operand.target, operand.args) == (FULL, ([], 2.5))
    assert tensor_of(operand).device == torch.device("cuda:0")
    assert tensor_of(operand).dtype == torch.float64
    # The result stays where it is.
    assert [node.target for node in made.graph.nodes if node.op == "call_function"].count(FULL) == 2


def test_a_number_that_is_written_to_a_part_is_created_on_the_device() -> None:
    mode = new_fake_mode()
    graph = fx.Graph()
    with mode:
        x = torch.empty(3, device="cuda:0")
        number = torch.full((), 2.5, device="cpu")
    given = graph.placeholder("x")
    two = graph.call_function(
        FULL, ([], 2.5), {"dtype": torch.float32, "device": torch.device("cpu")}
    )
    filled = graph.call_function(aten.fill.Tensor, (given, two))
    copied = graph.call_function(aten.copy.default, (filled, two))
    graph.output((copied,))
    for node, value in ((given, x), (two, number), (filled, x), (copied, x)):
        set_value(node, value)
        set_mode(node, Mode())
    made = fold_literals(module_of(torch.nn.Module(), graph))
    created = made.graph.find_nodes(op="call_function", target=FULL)
    assert {tensor_of(node).device for node in created} == {torch.device("cuda:0")}
