from __future__ import annotations

import pytest
import torch
from torch import Tensor

from adjoint.atlas.artefacts import Artefacts, GraphHistory
from adjoint.stages import observe


def energy(x: Tensor, w: Tensor) -> Tensor:
    y = torch.tanh(x * w)
    return (y * y).sum()


@pytest.fixture(scope="module")
def graphs() -> list[GraphHistory]:
    artefacts = Artefacts()
    observe(artefacts, energy, (torch.rand(4, 5), torch.rand(5)), {}, order=1)
    return artefacts.graphs


def test_every_graph_is_kept_with_the_passes_that_touched_it(graphs: list[GraphHistory]) -> None:
    roles = [(graph.role, graph.order) for graph in graphs]
    assert roles[:4] == [("captured", 0), ("joint", 1), ("forward", 0), ("backward", 1)]
    forward = graphs[2]
    names = [touch.name for touch in forward.touches]
    assert names[-3:] == ["decompose", "merge-equal-values", "fetch-ahead"]
    joint = graphs[1]
    assert {"merge-common-subexpressions"} <= {touch.name for touch in joint.touches}


def test_inputs_and_outputs_have_descriptors(graphs: list[GraphHistory]) -> None:
    forward, backward = graphs[2], graphs[3]
    assert [port.meaning for port in forward.first.inputs] == ["L['x']", "L['w']"]
    assert forward.first.outputs[0].meaning == "result[0]"
    assert "gradient of L['x']" in [port.meaning for port in backward.first.outputs]
    assert "L['x']" in forward.saved


def test_kernels_have_their_lines_loops_and_traffic(graphs: list[GraphHistory]) -> None:
    forward = graphs[2]
    assert forward.is_lowered
    kernels = [kernel for kernel in forward.kernels if kernel.lines]
    assert kernels
    first = kernels[0]
    assert any("y = torch.tanh(x * w)" in line.text for line in first.lines)
    assert any(loop.startswith("parallel loop") for loop in first.loops)
    sizes = {operand.size for operand in first.operands if not operand.written}
    assert {"80", "20"} <= sizes  # x and w, in bytes.
    assert int(first.read) == sum(int(o.size) for o in first.operands if not o.written)
