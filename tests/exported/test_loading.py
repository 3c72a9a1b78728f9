from __future__ import annotations

from pathlib import Path

import torch

import adjoint
from tests.exports import assert_as_eager, exported, in_another_process


def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (torch.sin(x @ w) * torch.exp(-x.sum())).tanh()


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.rand(5, 4, dtype=torch.float64), torch.rand(4, 3, dtype=torch.float64)


def test_it_computes_what_was_exported(tmp_path: Path) -> None:
    args = arguments()
    loaded = exported(layer, args, tmp_path)
    for wrt in ((0, 1), (0,), (1,), ()):
        assert_as_eager(layer, loaded, args, 1, wrt)


LOADING = """
import json, time, torch
begun = time.perf_counter()
import adjoint
program = adjoint.load(sys.argv[1])
torch.manual_seed(0)
x, w = torch.rand(5, 4, dtype=torch.float64), torch.rand(4, 3, dtype=torch.float64)
x.requires_grad_()
result = program(x, w)
gradient = torch.autograd.grad(result.sum(), x)[0]
print(json.dumps({
    "result": result.tolist(), "gradient": gradient.tolist(),
    "modules": [name for name in ("llvmlite", "torch._dynamo") if name in sys.modules],
}))
"""


def test_it_needs_neither_llvm_nor_dynamo(tmp_path: Path) -> None:
    x, w = arguments()
    path = adjoint.export(layer, (x, w), tmp_path / "layer.adjoint")
    found = in_another_process(LOADING, path)
    x.requires_grad_()
    result = layer(x, w)
    (gradient,) = torch.autograd.grad(result.sum(), x)
    assert found["modules"] == []
    torch.testing.assert_close(torch.tensor(found["result"], dtype=x.dtype), result.detach())
    torch.testing.assert_close(torch.tensor(found["gradient"], dtype=x.dtype), gradient)
