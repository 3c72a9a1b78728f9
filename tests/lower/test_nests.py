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


def packed_in_pairs(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """As weights of which two are packed into one, with a scale for 64."""
    pairs = torch.stack([x + 1, x * 2], -1).reshape(x.shape[0], -1, 64)
    return pairs * scale.unsqueeze(-1)


def test_the_loop_around_short_columns_is_vectorized() -> None:
    """No counter is divided, so that adjacent elements are seen to be adjacent."""
    x, scale = torch.arange(3200.0).reshape(20, 160), torch.arange(100.0).reshape(20, 5)
    made = text(packed_in_pairs, x, scale)
    assert "for r in range(((100 * t) // chunks), ((100 * (t + 1)) // chunks)):" in made
    assert "vector for i2 in range(32):" in made
    assert "%" not in made


def test_columns_stay_rows_where_few_rows_would_be_left() -> None:
    x, scale = torch.arange(320.0).reshape(2, 160), torch.arange(10.0).reshape(2, 5)
    assert "vector for r in range(((320 * t)" in text(packed_in_pairs, x, scale)
