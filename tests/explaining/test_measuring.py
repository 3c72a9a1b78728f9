from __future__ import annotations

import torch
from torch import Tensor

from adjoint.explaining import explain


def test_traffic_and_work_of_symbolic_sizes_are_those_of_the_call() -> None:
    def product(x: Tensor, w: Tensor) -> Tensor:
        return x @ w

    explained = explain(product, torch.rand(64, 32), torch.rand(32, 48), order=0, dynamic=True)
    call = max(explained.timings, key=lambda each: each.flops, default=None)
    # Without an operator to fuse there is no program of ours.
    assert call is None

    def activated(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(x @ w).cumsum(0)

    explained = explain(activated, torch.rand(64, 32), torch.rand(32, 48), order=0, dynamic=True)
    kinds = {each.kind: each for each in explained.timings}
    kernel = kinds["kernel"]
    assert kernel.name == "relu"
    assert kernel.bytes == 2 * 4 * 64 * 48
    assert kernel.flops >= 64 * 48
    assert kernel.intensity == kernel.flops / kernel.bytes
    assert kinds["product"].flops == 2 * 64 * 32 * 48
    assert any("relu(x @ w)" in line for line in kinds["product"].lines)
    assert "cumsum" in kinds["call"].name
    assert any("relu(x @ w)" in line for line in kinds["call"].lines)
