"""The smoke test: five seconds that touch every part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import adjoint
from adjoint.graph.descriptors import Buffer, InputMutation, Parameter


class Model(nn.Module):
    """A product, a branch on a value, a buffer that counts and a view that is returned."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        self.count += 1
        y = self.linear(x)
        with torch.no_grad():
            scale = y.abs().max()
        z = torch.cond(scale > 1, lambda a: a / 2, lambda a: a * 2, (y,))
        return z.t(), scale


def test_everything_a_little() -> None:
    eager, compiled = Model(), Model()
    compiled.load_state_dict(eager.state_dict())
    x = torch.randn(2, 3)
    runs: list[Callable[[], Any]] = [
        lambda: adjoint.run(captured, x),
        lambda: adjoint.compile(compiled)(x),
    ]
    captured = adjoint.capture(compiled, x)
    assert Parameter("linear.weight") in captured.inputs
    assert Buffer("count") in captured.inputs
    assert InputMutation(Buffer("count")) in captured.outputs
    assert "self.count += 1" in captured.show()
    for run in runs:
        expected, actual = eager(x), run()
        torch.testing.assert_close(actual, expected)
        for model, result in ((eager, expected), (compiled, actual)):
            model.zero_grad()
            result[0].sum().backward()
        assert torch.equal(compiled.count, eager.count)
        weights = compiled.linear.weight.grad, eager.linear.weight.grad
        torch.testing.assert_close(*weights)
