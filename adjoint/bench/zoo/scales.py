"""How large a model of the zoo is: full on a GPU, small on a CPU, tiny to try it out."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def choose(device: str, small: bool, *, full: T, cpu: T, tiny: T) -> T:
    """The size for a device."""
    return tiny if small else full if device == "cuda" else cpu


def tokens(count: int, shape: tuple[int, ...], device: str) -> Tensor:
    """Random text."""
    return torch.randint(0, count, shape, device=device)
