"""What packages set for the whole process lasts no longer than their test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo import config

from tests.packages.steps import Compilations


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    """Double precision by default, and torch's own functions and settings after the test."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    # torch_geometric replaces these by its own, which refuse tensors without dims.
    functions = {name: getattr(torch, name) for name in ("index_select", "select")}
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(dtype)
    torch.set_default_device(None)
    torch.set_num_threads(threads)
    for name, function in functions.items():
        setattr(torch, name, function)


# Where a model that calls autograd is differentiated: Dynamo takes the call into its graph, or it
# breaks the graph there, and autograd differentiates one compiled graph between two.  Of the two
# sizes that a model is trained on, the first is static, or none is.
DERIVED: dict[str, tuple[bool, bool | None]] = {"inside": (True, None), "between": (False, True)}


@pytest.fixture(params=DERIVED)
def derived(request: pytest.FixtureRequest) -> Iterator[bool | None]:
    """Both ways to compile a model that calls autograd: what `torch.compile` takes as `dynamic`."""
    traced, dynamic = DERIVED[request.param]
    with config.patch(trace_autograd_ops=traced):
        yield dynamic


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compilations]:
    """What the backend compiles while the test lasts."""
    compilations = Compilations()
    monkeypatch.setattr("adjoint.backend.compile_graph", compilations.compile)
    torch.compiler.reset()
    with config.patch(suppress_errors=False):
        yield compilations
    torch.compiler.reset()
