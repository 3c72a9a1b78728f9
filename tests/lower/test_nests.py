from __future__ import annotations

import torch

from adjoint.loops.show import show_plan as shown
from tests.lowering import check, graph_of, lower


def text(function: object, *inputs: torch.Tensor) -> str:
    check(function, *inputs)  # type: ignore[arg-type]
    return shown(lower(graph_of(function, inputs)))  # type: ignore[arg-type]


def test_a_sum_of_rows() -> None:
    assert text(lambda x: x.sum(1) * 2, torch.ones(3, 40)) == (
        "kernel kernel(b0: f32, b1: f32 written; chunks)\n"
        "    parallel for t in range(chunks):\n"
        "        for r in range(((3 * t) // chunks), ((3 * (t + 1)) // chunks)):\n"
        "            var sum0 = 0.0\n"
        "            vector for i1 in range(40):\n"
        "                sum0 += b0[((r * 40) + i1)]\n"
        "            sum0.done = sum0\n"
        "            row1 = (sum0.done * 2.0)\n"
        "            b1[r] = row1\n"
    )


def test_the_name_of_a_node_is_not_in_the_kernel() -> None:
    """So that the same loops are the same kernel."""
    x = torch.ones(4, 40)
    one = text(lambda x: x.sum(0), x)
    other = text(lambda x: [x.cumsum(0), x.sum(0)][1], x)
    assert one == other
