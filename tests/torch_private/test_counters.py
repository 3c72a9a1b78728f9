from __future__ import annotations

import torch
from torch import Tensor
from torch._dynamo.utils import counters

from adjoint.observing import Fallback, tell


def test_events_are_counted_where_dynamo_counts() -> None:
    counters.clear()

    @torch.compile(backend="adjoint", dynamic=False)
    def counted(x: Tensor) -> Tensor:
        return x.neg().neg().sin().sum()

    for size in (3, 4):
        counted(torch.rand(size, requires_grad=True)).backward()
    found = counters["adjoint"]
    assert (found["compilations"], found["recompilations"]) == (1, 1)
    assert found["capture"] == found["differentiate"] == 2
    assert found["simplify-algebra"] >= 2
    assert sum(times for what, times in found.items() if ": " in what) > 0
    tell(Fallback("an op", None))
    assert found["fallbacks"] == 1
