"""Two processes; the derivative of the sum of what they compute, against finite differences."""

from __future__ import annotations

import tempfile
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from adjoint.rules.registry import VJPS

ops = torch.ops._c10d_functional
RANKS = 2


def calls(group: str) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    # The means are for NCCL only.
    reductions = ["sum", "max", "min", "product"]
    return {
        **{f"all-reduce-{r}": (ops.all_reduce.default, (r, group)) for r in reductions},
        "all-gather": (ops.all_gather_into_tensor.default, (RANKS, group)),
        "scatter-sum": (ops.reduce_scatter_tensor.default, ("sum", RANKS, group)),
        "all-to-all": (ops.all_to_all_single.default, ([1, 3], [1, 3], group)),
        "broadcast": (ops.broadcast.default, (1, group)),
    }


def work(rank: int, folder: str) -> None:
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    assert dist.group.WORLD is not None
    group = dist.group.WORLD.group_name
    generator = torch.Generator().manual_seed(rank)
    for name, (op, rest) in calls(group).items():
        if name == "all-to-all":
            rest = ([1, 1] if rank == 0 else [3, 3], [1, 3], group)
        x = torch.randn(4, 2, dtype=torch.float64, generator=generator)
        out = ops.wait_tensor.default(op(x, *rest))
        g = torch.randn(out.shape, dtype=torch.float64, generator=generator)
        (slope,) = VJPS[op](g, out, x, *rest)
        way = torch.randn(x.shape, dtype=torch.float64, generator=generator)
        sides = [
            (ops.wait_tensor.default(op(x + step * way, *rest)) * g).sum() for step in (1e-6, -1e-6)
        ]
        totals = torch.stack([(sides[0] - sides[1]) / 2e-6, (slope * way).sum()])
        dist.all_reduce(totals)
        torch.testing.assert_close(totals[0], totals[1], rtol=1e-5, atol=1e-5, msg=name)
    dist.destroy_process_group()


def test_two_processes_agree_with_finite_differences() -> None:
    with tempfile.TemporaryDirectory() as folder:
        spawn(work, (folder,), nprocs=RANKS)


@pytest.mark.parametrize(
    ("op", "rest", "what"),
    [
        (ops.all_reduce.default, ("bxor", "group"), "all_reduce by bxor"),
        (ops.reduce_scatter_tensor.default, ("max", RANKS, "group"), "reduce_scatter by max"),
    ],
)
def test_reductions_without_a_derivative_are_refused(
    op: Any, rest: tuple[Any, ...], what: str
) -> None:
    x = torch.ones(2)
    with (
        mock.patch("adjoint.rules.collective._all_reduce", lambda x, *_: x),
        pytest.raises(NotImplementedError, match=what),
    ):
        VJPS[op](x, x, x, *rest)
