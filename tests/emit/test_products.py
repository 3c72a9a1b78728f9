from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import silu

from adjoint.emit.nvptx import emit_module
from adjoint.loops.statements import Kernel
from adjoint.runtime.gpu.assembly import assemble
from tests.assembler import ASSEMBLER, said_of
from tests.lowering import GRID, HOPPER, graph_of, launches, lower

X, W, B = torch.empty(131072, 128), torch.empty(128, 128), torch.empty(128)
NARROW, PLACES = torch.empty(131072, 20), torch.zeros(131072, dtype=torch.int64)

CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "plain": (lambda x, w: [-(x @ w)], [X, W]),
    "transposed": (lambda x, w: [-(x @ w.t())], [X, W]),
    "computed before": (lambda x, w: [silu(x) @ w], [X, W]),
    "computed after": (lambda x, w, b, y: [silu(x @ w + b) * y], [X, W, B, X]),
    "short sum": (lambda x, w: [x @ w], [NARROW, torch.empty(20, 128)]),
    "few columns": (lambda x, w: [-(x @ w)], [X, torch.empty(128, 20)]),
    "more columns": (lambda x, w: [-(x @ w)], [X, torch.empty(128, 64)]),
    "two tiles": (lambda x, w: [-(x @ w)], [X, torch.empty(128, 256)]),
    "rows left over": (lambda x, w, y: [(x @ w) * y], [X[:-5], W, X[:-5]]),
    "few rows": (lambda x, w, b, y: [silu(x @ w.t() + b) * y], [X[:4096], W, B, X[:4096]]),
    "fewer rows than tiles have": (lambda x, w: [-(x @ w)], [X[:333, :36].contiguous(), W[:36]]),
    "scattered": (
        lambda x, w, i: [torch.zeros(64, 128).index_add(0, i, x @ w)],
        [X, W, PLACES],
    ),
    "gathered": (lambda x, w, h, i: [(x @ w) * h[i]], [X, W, torch.empty(64, 128), PLACES]),
}


def kernel(name: str) -> Kernel:
    function, inputs = CASES[name]
    launch = launches(lower(graph_of(function, inputs), GRID))[-1]
    assert launch.kernel.tile is not None
    return launch.kernel


def code(name: str) -> str:
    return assemble(emit_module([kernel(name)], GRID), HOPPER).decode()


def test_one_row_of_the_tile_at_a_time_is_multiplied() -> None:
    text = code("plain")
    # A thread has eight rows and eight columns; two iterations are unrolled, once in the loop over
    # k, and once for the last k-step.
    assert text.count("fma.rn.f32") == 2 * 2 * 8 * 8
    assert text.count("ld.shared.v4") == 2 * 2 * 4


def test_quads_are_stored_as_vectors() -> None:
    text = code("computed after")
    assert text.count("st.global.v4") == 16
    assert "st.global.f32" not in text


def test_a_whole_number_of_tiles_is_not_checked() -> None:
    stores = code("plain").split("st.global.v4")
    assert not any("bra" in between for between in stores[1:-1])
    stores = code("rows left over").split("st.global.v4")
    assert any("bra" in between for between in stores[1:-1])


def test_quads_are_added_to_memory_at_once() -> None:
    text = code("scattered")
    assert text.count("red.relaxed.gpu.global.add.v4.f32") == 16
    assert "red.global.add.f32" not in text


def test_indices_are_checked() -> None:
    assert "__assertfail" in code("gathered")


@pytest.mark.parametrize("name", CASES)
def test_kernels_become_assembly(name: str) -> None:
    assert ".visible .entry kernel" in code(name)


@pytest.mark.skipif(ASSEMBLER is None, reason="there is no ptxas on this machine")
@pytest.mark.parametrize("name", CASES)
def test_the_assembler_finds_registers_for_all(name: str, tmp_path: Path) -> None:
    said = said_of(assemble(emit_module([kernel(name)], GRID), HOPPER), "sm_90", tmp_path)
    assert "0 bytes spill stores" in said
    # Two teams fit on a multiprocessor.
    assert int(re.findall(r"Used (\d+) registers", said)[0]) <= 128
