"""Process groups, by the names that functional collectives use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def rank_in(group_name: str) -> int:
    """This process's rank in the group."""
    from torch.distributed import distributed_c10d

    group_of: Callable[[str], ProcessGroup] = vars(distributed_c10d)["_resolve_process_group"]
    return torch.distributed.get_rank(group_of(group_name))
