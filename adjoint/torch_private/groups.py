"""Process groups, by the names that functional collectives use."""

from __future__ import annotations

from typing import Any

import torch


def rank_in(group_name: str) -> int:
    """This process's rank in the group."""
    from torch.distributed import distributed_c10d

    groups: Any = distributed_c10d
    return torch.distributed.get_rank(groups._resolve_process_group(group_name))
