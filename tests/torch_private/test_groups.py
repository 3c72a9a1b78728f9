"""Process groups by name."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from adjoint.torch_private.groups import rank_in


def test_the_rank_in_a_group_of_one() -> None:
    if dist.is_initialized():
        pytest.fail("another test left a process group behind")
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        world = dist.group.WORLD
        assert world is not None
        assert rank_in(world.group_name) == 0
    finally:
        dist.destroy_process_group()
