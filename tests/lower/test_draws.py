from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx

import adjoint
from adjoint.graph.operations import random_bits
from adjoint.lower.draws import DRAWS, draw_in_kernels
from adjoint.native import native_program
from adjoint.runtime.cpu.program import CpuProgram
from tests.lowering import calls, graph_of, launches

aten = torch.ops.aten
CPU = torch.device("cpu")


def drawing(function: Callable[..., Any], inputs: Sequence[Any]) -> CpuProgram:
    program = native_program(graph_of(function, inputs), True, False)
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
    made, streams = draw_in_kernels(graph_module, CPU)
    inputs = made.graph.find_nodes(op="placeholder")
    assert [node.name for node in inputs][2:] == ["seeds"]
    drawn = [node for node in made.graph.nodes if node.target is random_bits]
    assert [node.args[1] for node in drawn] == list(range(streams)) == [0, 1, 2]
    assert all(node.args[0] is inputs[-1] for node in drawn)
    assert aten.bernoulli.p not in targets(made)
    assert len(graph_module.graph.find_nodes(op="placeholder")) == 2, "the graph is as it was"


def test_a_graph_that_draws_nothing_is_left_alone() -> None:
    graph_module = graph_of(lambda x: [x.sin()], [torch.rand(3)])
    assert draw_in_kernels(graph_module, CPU) == (graph_module, 0)


def test_a_generator_of_the_users_is_drawn_from() -> None:
    generator = torch.Generator().manual_seed(1)
    captured = adjoint.capture(
        lambda x: x.clone().bernoulli_(0.5, generator=generator), torch.rand(3)
    )
    graph_module = captured.graph_module
    assert len(graph_module.graph.find_nodes(op="get_attr")) == 1
    assert draw_in_kernels(graph_module, CPU) == (graph_module, 0)


def test_what_is_on_another_device_is_left_alone() -> None:
    graph_module = graph_of(lambda x: [aten.bernoulli.p(x, 0.5)], [torch.rand(3)])
    assert draw_in_kernels(graph_module, torch.device("meta")) == (graph_module, 0)


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
        graph_of(lambda x: [*aten.native_dropout.default(x, p, train), x + 1], [x]), True, False
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


def test_there_is_a_test_of_each() -> None:
    tested = {aten.native_dropout.default, aten.bernoulli.p}
    assert set(DRAWS) == tested
