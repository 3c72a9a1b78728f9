from pathlib import Path

import torch.distributed as dist

from adjoint.torch_private.groups import rank_in


def test_a_group_is_known_by_its_name(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        assert dist.group.WORLD is not None
        assert rank_in(dist.group.WORLD.group_name) == 0
    finally:
        dist.destroy_process_group()
