"""Time, memory and error of one step in this process."""

from __future__ import annotations

import itertools
import math
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from adjoint.bench.problems import Expected, Step

# Steps between the first call and the timed ones.
WARM_UP_STEPS = 3

# In relative errors a tensor counts as no smaller than this fraction of the largest of all.
RELATIVE_ERROR_FLOOR = 1e-4


@dataclass(frozen=True)
class Timed:
    """Seconds of the first call and of a later one (median), and the tensors they computed."""

    cold: float
    step: float
    first: dict[str, Tensor]
    last: dict[str, Tensor]


def timed(step: Step, reps: int, cuda: bool) -> Timed:
    """Run `step` once cold, `WARM_UP_STEPS` times to warm up, and `reps` times for the median."""
    cold, returned = timed_call(step.run, cuda)
    first = kept(step, returned)
    for _ in range(WARM_UP_STEPS):
        step.run()
    taken: list[float] = []
    for _ in range(reps):
        seconds, returned = timed_call(step.run, cuda)
        taken.append(seconds)
    return Timed(cold, statistics.median(taken), first, step.computed(returned))


def timed_call(
    run: Callable[..., object], cuda: bool, args: Sequence[object] = ()
) -> tuple[float, object]:
    """The seconds of one call, until the device has finished, and what it returned."""
    finish = torch.cuda.synchronize if cuda else _do_nothing
    finish()
    start = time.perf_counter()
    returned = run(*args)
    finish()
    return time.perf_counter() - start, returned


def _do_nothing() -> None:
    pass


def timed_calls(
    run: Callable[..., object], argument_sets: Sequence[Sequence[object]], count: int
) -> float:
    """The seconds of one short call on the CPU, with each set of arguments in turn.

    Each call is timed by itself, and the tenth percentile is taken: interruptions of the process
    lengthen some calls, and shorten none.
    """
    clock = time.perf_counter_ns
    taken: list[int] = []
    for args in itertools.islice(itertools.cycle(argument_sets), count):
        start = clock()
        run(*args)
        taken.append(clock() - start)
    return sorted(taken)[count // 10] / 1e9


def kept(step: Step, returned: object) -> dict[str, Tensor]:
    """Copies of what a step computed, since a later one may overwrite it; on the CPU, so that they
    do not count as memory of the step."""
    return {name: x.detach().cpu().clone() for name, x in step.computed(returned).items()}


class PeakMemory:
    """Growth of peak memory in bytes: of torch's allocator on CUDA, else of the process."""

    def __init__(self, cuda: bool) -> None:
        self.cuda = cuda
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        self.start = None if cuda else _peak_resident()

    def grown(self) -> int | None:
        if self.cuda:
            return torch.cuda.max_memory_allocated()
        peak = _peak_resident()
        return None if peak is None or self.start is None else peak - self.start


def _peak_resident() -> int | None:
    """The peak resident set of this process; None where Linux does not report it.

    `getrusage` cannot be used: a new process inherits the peak of its parent.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE)
    return None if found is None else int(found.group(1)) * 1024


def largest_error(
    computed: Sequence[Mapping[str, Tensor]], expected: Callable[[], Expected]
) -> tuple[float | None, bool]:
    """The largest error, and whether it is relative to eager in float64."""
    try:
        right = expected()
    except torch.OutOfMemoryError:
        return None, True
    if not right.tensors:
        return None, True
    error = max(relative_error(found, right.tensors) for found in computed)
    return error, right.in_float64


def relative_error(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """The largest difference in a tensor relative to its largest element, maximized over tensors.

    A tensor is taken to be no smaller than RELATIVE_ERROR_FLOOR times the largest of all: where a
    gradient is zero by symmetry, its rounding errors have nothing to be relative to. Other tensors
    or shapes than expected, and an unexpected NaN or infinity, are an infinite error.
    """
    if actual.keys() != expected.keys():
        return math.inf
    floor = RELATIVE_ERROR_FLOOR * max(map(_largest, expected.values()), default=0.0)
    errors = (_error(actual[name], right, floor) for name, right in expected.items())
    return max(errors, default=0.0)


def _largest(x: Tensor) -> float:
    return torch.where(x.isfinite(), x, 0).abs().max().item() if x.numel() else 0.0


def _error(actual: Tensor, expected: Tensor, floor: float) -> float:
    if actual.shape != expected.shape:
        return math.inf
    wide = torch.complex128 if expected.is_complex() else torch.float64
    found, right = actual.detach().cpu().to(wide), expected.detach().cpu().to(wide)
    same = (found == right) | (found.isnan() & right.isnan())
    differences = (found - right)[~same].abs()
    if differences.numel() == 0:
        return 0.0
    difference, scale = differences.max().item(), max(_largest(right), floor)
    return difference / scale if math.isfinite(difference) and scale else math.inf
