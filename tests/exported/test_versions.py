from __future__ import annotations

from pathlib import Path

import pytest
import torch

from adjoint.errors import LoadError
from tests.exports import assert_as_eager, exported


def centred(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(0)).square().sum()


def test_a_call_is_for_the_version_that_its_sizes_fit(tmp_path: Path) -> None:
    x = torch.rand(4, 3, dtype=torch.float64)
    loaded = exported(centred, (x,), tmp_path, dynamic={"x": [0]}, orders=2)
    assert len(loaded._versions) > 1
    used = []
    for size in (4, 1, 7, 1, 2):
        args = (torch.rand(size, 3, dtype=torch.float64),)
        assert_as_eager(centred, loaded, args, 2)
        used.append(loaded._fitting(list(args))[0])
    assert used[0] is used[2] is used[4]
    assert used[1] is used[3] is not used[0]


def test_parameters_are_those_of_all_versions(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3)).double()

    class Centred(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return centred(self.inner(x))

    x = torch.rand(4, 3, dtype=torch.float64)
    loaded = exported(
        Centred(), (x,), tmp_path, dynamic={"x": [0]}, orders=2, wrt=["x", "inner.0.weight"]
    )
    assert len(loaded._versions) > 1
    weight = loaded.state["inner.0.weight"].requires_grad_()
    for size in (5, 1):
        loaded(torch.rand(size, 3, dtype=torch.float64)).backward()
        assert weight.grad is not None
        weight.grad = None


def test_bounds_are_kept_by_all_versions(tmp_path: Path) -> None:
    x = torch.rand(4, 3)
    loaded = exported(centred, (x,), tmp_path, dynamic={"x": {0: (2, 9)}}, orders=2)
    assert len(loaded._versions) == 1
    with pytest.raises(LoadError, match="exported for 2 to 9"):
        loaded(x[:1])


def test_nothing_to_normalize_is_refused(tmp_path: Path) -> None:
    """Kernels of batch norms would divide by the number of elements."""
    norm = torch.nn.BatchNorm1d(3).eval()
    loaded = exported(norm, (torch.rand(4, 3),), tmp_path, dynamic={"input": [0]})
    loaded(torch.rand(1, 3))
    with pytest.raises(LoadError, match=r"its sizes do not fit: .* = input.shape\[0\] = 0"):
        loaded(torch.rand(0, 3))
