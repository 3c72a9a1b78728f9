"""Where the random numbers of a call begin: a key and a counter, from torch's default generator.

So `torch.manual_seed`, `fork_rng` and the like do to programs what they do to eager: the generator
says which numbers come, and is further on afterwards.
"""

from __future__ import annotations

import threading

import torch

from adjoint.torch_private.cuda import is_recording

# Of what a GPU's generator counts, a counter of four numbers is four.
STEP = 4

_LOCK = threading.Lock()


def new_seeds(streams: int, device: torch.device) -> torch.Tensor:
    """For a call that draws so many streams: none of their numbers is drawn before or after."""
    if device.type == "cpu":
        return torch.empty(2, dtype=torch.int64, device=device).random_()
    key, start = taken(torch.cuda.default_generators[device.index], streams)
    # Nothing here waits for the device: numbers are arguments of what is launched.
    seeds = torch.full((2,), key, dtype=torch.int64, device=device)
    seeds[1:].fill_(start)
    return seeds


def taken(generator: torch.Generator, streams: int) -> tuple[int, int]:
    """The key of a generator that counts, and where streams begin that it will not come to again.

    Its own numbers have the same key, and the low part of their counters is the number of those
    taken so far, whichever thread they are for; that is the part that tells streams apart.
    """
    with _LOCK:
        offset = generator.get_offset()
        generator.set_offset(offset + streams * STEP)
    seed = generator.initial_seed()
    return seed - (1 << 64) if seed >> 63 else seed, offset // STEP


def is_written_down(device: torch.device) -> bool:
    """What is launched on `device` now is done later, perhaps often."""
    return device.type == "cuda" and is_recording()
