"""Process groups by the names that functional collectives have for them."""

from __future__ import annotations

import torch


def rank_in(group_name: str) -> int:
    """This process's rank in the group."""
    from torch.distributed.distributed_c10d import _resolve_process_group

    group = _resolve_process_group(group_name)
    return torch.distributed.get_rank(group)
