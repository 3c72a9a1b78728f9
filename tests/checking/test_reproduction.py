from __future__ import annotations

import runpy
from pathlib import Path

import torch
from torch import Tensor

from adjoint.capture.direct import capture
from adjoint.checking.reproduction import of_nodes


def gathered(x: Tensor, index: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, x.index_select(0, index), 0.0).sum(1)


def test_a_script_has_the_ops_and_runs(tmp_path: Path) -> None:
    inputs = [torch.rand(5, 40), torch.randint(0, 5, (8,)), torch.rand(8, 40) > 0.5]
    graph_module = capture(gathered, *inputs).graph_module
    nodes = [each for each in graph_module.graph.nodes if each.op == "call_function"]
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    known = dict(zip(placeholders, inputs, strict=True))
    for gradients in (False, True):
        text = of_nodes(nodes, known, graph_module, gradients)
        assert "torch.ops.aten.index_select.default(x" in text
        script = tmp_path / "script.py"
        script.write_text(text)
        torch.compiler.reset()
        runpy.run_path(str(script))


def test_what_cannot_be_written_has_no_script() -> None:
    graph_module = capture(gathered, torch.rand(5, 4), torch.tensor([1]), torch.ones(1, 4) > 0)
    assert of_nodes([], {}, graph_module.graph_module) == ""
