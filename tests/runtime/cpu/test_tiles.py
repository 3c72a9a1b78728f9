from __future__ import annotations

import platform

import pytest
import torch
from torch import Tensor

from adjoint.loops.plan import RowTiles
from adjoint.runtime.cpu import products
from adjoint.runtime.cpu.products import has_blas
from adjoint.runtime.cpu.program import CpuHost
from adjoint.runtime.cpu.tiles import tile_runner
from tests.lowering import program_of

ROWS = 1237


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def step(x: Tensor, w: Tensor, v: Tensor) -> list[Tensor]:
    """Products of rows and over rows, sums of both kinds, offsets, and both ways to lie."""
    y = torch.tanh(x @ w)
    z = torch.tanh(y[:, 3:33] @ v.t()[5:35])
    return [z, x.t() @ y, z.t() @ y[:, 2:], z.sum(0), (y * y).sum(), y.sum(1), x @ w[:, 1:30]]


INPUTS = [random(ROWS, 24), random(24, 90, seed=1) / 5, random(31, 90, seed=2) / 6]


def test_torch_brings_a_blas() -> None:
    assert has_blas()
    assert tile_runner() == tile_runner() != 0


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("block", [1, 7, 16, 618, 619, ROWS, 5000])
def test_blocks_of_any_size(block: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuHost, "tile_rows", lambda host, tiles: host.code.constant(block))
    program = program_of(step, INPUTS)
    assert any(isinstance(each, RowTiles) for each in program.plan.steps)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(2):
            for ours, eager in zip(program(list(INPUTS)), step(*INPUTS), strict=True):
                torch.testing.assert_close(ours, eager, rtol=1e-11, atol=1e-11)
    finally:
        torch.set_num_threads(before)


def test_the_same_number_of_threads_gives_the_same_bits() -> None:
    program = program_of(step, INPUTS)
    first = program(list(INPUTS))
    for _ in range(3):
        assert all(map(torch.equal, first, program(list(INPUTS))))


def test_other_inputs_in_the_same_memory() -> None:
    program = program_of(step, INPUTS)
    for seed in range(3):
        inputs = [random(*x.shape, seed=seed) / 4 for x in INPUTS]
        for ours, eager in zip(program(list(inputs)), step(*inputs), strict=True):
            torch.testing.assert_close(ours, eager, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiny_numbers_count_as_zero_in_products_only(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny / 8
    x = torch.full((20000, 8), tiny, dtype=dtype)
    w = torch.ones(8, 16, dtype=dtype)

    def function(x: Tensor, w: Tensor) -> list[Tensor]:
        return [(x @ w) * 2, (x * 0.5)]

    program = program_of(function, [x, w])
    assert any(isinstance(each, RowTiles) for each in program.plan.steps)
    product, half = program([x, w])
    if platform.machine() in ("x86_64", "AMD64"):
        assert not product.any()
    assert torch.equal(half, torch.full_like(x, tiny / 2))
    # The mode of the processor is as it was.
    assert (x * 0.5).all()


def test_other_processors_have_no_such_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ("mxcsr" in products._gemm_text("sgemm_", "float", True)) == (
        platform.machine() in ("x86_64", "AMD64")
    )
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    text = products._gemm_text("sgemm_", "float", True)
    assert "mxcsr" not in text
    assert "call void @sgemm_(" in text
