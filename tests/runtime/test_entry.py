from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

import adjoint
from adjoint.graph.captured import CapturedProgram
from adjoint.graph.evaluation import evaluate
from adjoint.runtime.entry import EntryPoint
from adjoint.runtime.sharing import sharing


def write(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return x * y


def read(x: Tensor, y: Tensor) -> Tensor:
    return x * y


class Counting:
    """Captures a function, and counts how often."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.count = 0

    def __call__(self, inputs: Sequence[Any]) -> CapturedProgram:
        self.count += 1
        return adjoint.capture(self.function, *inputs)


def loaded(graph_module: fx.GraphModule) -> Any:
    return partial(evaluate, graph_module)


def test_a_program_is_captured_once_for_each_way_to_share_memory() -> None:
    capture, x = Counting(write), torch.zeros(4)
    program = EntryPoint(capture([torch.zeros(3), torch.ones(3)]), capture, loaded)
    assert torch.equal(program(torch.zeros(3), torch.ones(3))[0], torch.ones(3))
    assert capture.count == 1
    for _ in range(2):
        x.zero_()
        assert torch.equal(program(x[1:], x[:3])[0], torch.tensor([0.0, 1.0, 1.0]))
    assert capture.count == 2
    y = torch.ones(3)
    assert torch.equal(program(y, y)[0], torch.full((3,), 4.0))
    assert capture.count == 3


def test_what_is_captured_for_inputs_that_share_memory_holds_for_their_sizes() -> None:
    def scale(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        return y + 1, z * z.shape[0]

    torch._dynamo.reset()
    compiled = adjoint.compile(scale, dynamic=True, fullgraph=True)
    compiled(torch.ones(6), torch.ones(5), torch.ones(3))
    for size in (3, 4, 5):
        results = []
        for function in (scale, compiled):
            x = torch.arange(6.0)
            results.append((*function(x, x[1:], torch.ones(size)), x))
        torch.testing.assert_close(*results)


def test_a_program_that_writes_to_nothing_is_captured_once() -> None:
    capture, x = Counting(read), torch.ones(3)
    program = EntryPoint(capture([x, x.clone()]), capture, loaded)
    assert torch.equal(program(x, x)[0], x)
    assert capture.count == 1


def test_sharing_counts_only_memory_that_is_written_to() -> None:
    x, y = torch.ones(4), torch.ones(4)
    assert sharing([x, y], [0]) == ()
    assert sharing([x, y, y[1:]], [0]) == ()
    assert sharing([x, y, x[1:]], [0]) != ()
    assert sharing([x, x[1:]], [0]) != sharing([x, x[2:]], [0])


def train(compiled: bool) -> list[Tensor]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(4, 3)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = module(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = torch.compile(step, backend="adjoint") if compiled else step
    return [*(run() for _ in range(3)), *(each.detach() for each in module.parameters())]


def test_an_optimizer_steps_inside_compiled_code() -> None:
    """The graph writes to tensors that it closes over."""
    torch.testing.assert_close(train(compiled=True), train(compiled=False))


def test_sharing_tells_bases_apart() -> None:
    few, many = torch.ones(6), torch.ones(8)
    assert sharing([few[:4], few[2:6]], [0]) != sharing([many[:4], many[2:6]], [0])
