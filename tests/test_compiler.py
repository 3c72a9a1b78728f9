from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import adjoint
from adjoint.compiler import compile_graph
from adjoint.graph.captured import CapturedProgram
from adjoint.options import Options
from tests.parity import leaf


def program(x: Tensor) -> Tensor:
    return x.sin() * 2


def graph() -> torch.fx.GraphModule:
    class Root(torch.nn.Module):
        def forward(self, x: Tensor) -> Any:
            return (program(x),)

    return torch.fx.symbolic_trace(Root())


def test_the_observer_is_shown_each_stage() -> None:
    seen: list[tuple[str, Any]] = []

    def saw(stage: str, value: Any) -> Any:
        seen.append((stage, value))
        return value

    x = leaf(3)
    (result,) = compile_graph(graph(), [x], Options(), saw)(x)
    torch.testing.assert_close(result, program(x))
    assert [stage for stage, _ in seen] == ["capture", "lower", "emit"]
    assert isinstance(seen[0][1], CapturedProgram)


def test_capture_and_run() -> None:
    x = leaf(3)
    captured = adjoint.capture(program, x)
    assert torch.equal(adjoint.run(captured, x), program(x))
    assert "aten.sin.default" in captured.show()
