from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from adjoint.emit.nvptx import emit_module
from adjoint.graph.operations import random_bits
from adjoint.philox import ROUNDS
from adjoint.runtime.gpu.assembly import assemble
from tests.assembler import ASSEMBLER, said_of
from tests.lowering import GRID, HOPPER, graph_of, launches, lower

ROWS, HALF = torch.empty(4096, 1024), torch.empty(4096, 1024, dtype=torch.bfloat16)
WIDE = torch.empty(1024, 4096)
PLACES = torch.zeros(4096, dtype=torch.int64)

CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "elements": (lambda x: [(x + 1).tanh()], [ROWS]),
    "halves": (lambda x: [(x.float() * 2).to(torch.bfloat16)], [HALF]),
    "softmax": (lambda x: [torch.softmax(x, -1)], [ROWS]),
    "doubles": (lambda x: [torch.softmax(x, -1)], [ROWS.double()]),
    "long rows": (lambda x: [x.amax(-1)], [torch.empty(64, 50304)]),
    "narrow rows": (lambda x: [x.sum(-1)], [torch.empty(4096, 24)]),
    "few columns": (lambda x: [(x * x).sum(-1).sqrt()], [torch.empty(131072, 3)]),
    "total": (lambda x: [(x * x).sum()], [ROWS]),
    "columns": (lambda x: [x.sin().sum(0)], [ROWS]),
    "rows and columns": (lambda x: [x - x.mean(-1, keepdim=True), x.sum(0)], [ROWS]),
    "scatter": (lambda h, i, m: [h.index_add(0, i, m)], [ROWS, PLACES, ROWS]),
    "gather": (lambda x, i, y: [x[i] * y], [ROWS, PLACES, ROWS]),
    "integers": (lambda x: [x.sum(-1), (x // 3) % 5], [torch.zeros(512, 96, dtype=torch.int64)]),
    "transpose": (lambda x: [x.t().contiguous()], [ROWS]),
    "transposed halves": (lambda x: [x.t().contiguous()], [HALF]),
    "transposed truth": (
        lambda x: [(~x.t()).contiguous()],
        [torch.zeros(2047, 1999, dtype=torch.bool)],
    ),
    "transposed in part": (lambda x, y: [y.sin() + x.t()], [ROWS.double(), WIDE.double()]),
    "several transposed": (
        lambda x, y, z: [z * x.t() + y.t(), z.exp()],
        [HALF, ROWS, WIDE],
    ),
    "channels last": (
        lambda x: [x.contiguous(memory_format=torch.channels_last)],
        [torch.empty(16, 64, 57, 57)],
    ),
    "draws": (
        lambda s, x: [x * random_bits(s, 0, x.shape, x.stride(), 24).float()],
        [torch.zeros(2, dtype=torch.int64), ROWS],
    ),
    "long draws": (
        lambda s, x: [x * random_bits(s, 0, x.shape, x.stride(), 53).double()],
        [torch.zeros(2, dtype=torch.int64), ROWS],
    ),
    "truth": (lambda x: [x.any(-1), x.all()], [torch.zeros(512, 96, dtype=torch.bool)]),
}


def kernels(name: str) -> list[str]:
    """LLVM text of each kernel."""
    function, inputs = CASES[name]
    plan = lower(graph_of(function, inputs), GRID)
    return [emit_module([launch.kernel], GRID) for launch in launches(plan)]


def code(name: str) -> str:
    return "".join(assemble(text, HOPPER).decode() for text in kernels(name))


@pytest.mark.parametrize("name", CASES)
def test_kernels_become_assembly(name: str) -> None:
    assert ".visible .entry kernel" in code(name)


@pytest.mark.skipif(ASSEMBLER is None, reason="there is no ptxas on this machine")
@pytest.mark.parametrize("name", CASES)
def test_the_assembler_finds_registers_for_all(name: str, tmp_path: Path) -> None:
    for each in kernels(name):
        assert "0 bytes spill stores" in said_of(assemble(each, HOPPER), "sm_90", tmp_path)


def test_neighbours_have_numbers_of_one_counter() -> None:
    """A round multiplies two words; a thread has eight elements, and four are drawn together."""
    elements = 8
    assert code("draws").count("mul.hi.u32") <= 2 * ROUNDS * elements // 4
    assert 2 * ROUNDS * 1 <= code("long draws").count("mul.hi.u32") <= 2 * ROUNDS * elements // 2
