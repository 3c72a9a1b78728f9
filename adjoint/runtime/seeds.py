"""The Philox key and first counter of a call's random numbers, from torch's default generator.

Each call advances the generator, so `torch.manual_seed` and `torch.random.fork_rng` affect compiled
programs as they affect eager torch.
"""

from __future__ import annotations

import threading

import torch

from adjoint.torch_private.cuda import is_capturing

# A CUDA generator's offset counts single numbers; one Philox counter yields four.
OFFSETS_PER_COUNTER = 4

_LOCK = threading.Lock()


def new_seeds(streams: int, device: torch.device) -> torch.Tensor:
    """The key and first counter for `streams` streams that no other call draws from."""
    if device.type == "cpu":
        return torch.empty(2, dtype=torch.int64, device=device).random_()
    key, start = reserve_streams(torch.cuda.default_generators[device.index], streams)
    # Passed as kernel arguments: a copy from the host would wait for the device.
    seeds = torch.full((2,), key, dtype=torch.int64, device=device)
    seeds[1:].fill_(start)
    return seeds


def reserve_streams(generator: torch.Generator, streams: int) -> tuple[int, int]:
    """Advance a CUDA generator past `streams` counters; its key, and the first of them.

    Torch's own kernels draw with the same key.  The low word of their counters is the generator's
    offset, in whatever thread they run; our streams are told apart by that word, so that they
    never meet torch's.
    """
    with _LOCK:
        offset = generator.get_offset()
        generator.set_offset(offset + streams * OFFSETS_PER_COUNTER)
    seed = generator.initial_seed()
    return seed - (1 << 64) if seed >> 63 else seed, offset // OFFSETS_PER_COUNTER


def draws_are_captured(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured, whose replays would repeat the same draws."""
    return device.type == "cuda" and is_capturing()
