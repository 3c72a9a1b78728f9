"""A soak: random programs, sizes, threads and deletions in one process, for as long as asked.

    python -m tests.soak --minutes 30

Each thread keeps a few compiled functions alive, calls them with sizes that change, through
`torch.compile` and through the transforms, compares every result and gradient with eager, and
drops functions for new ones.  Resident memory is sampled; after a warm-up it must stay flat.  A
program that differs is printed whole, with the sizes and the seed that it was called with.
"""

from __future__ import annotations

import argparse
import functools
import gc
import linecache
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo
from torch import Tensor
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo.guards import CheckFunctionManager

import adjoint
from adjoint.torch_private.dynamo import COMPILING

COLUMNS = 4

# How many functions a thread keeps alive, and how many calls it makes for each new one: so few that
# all have been replaced within the first minutes.
ALIVE = 3
CALLS = 5

# What a line computes of earlier values {0} and {1}, both of shape (n, 4), n = 0 included.  Each is
# bounded and smooth, so that derivatives of long programs neither overflow nor meet a kink.
LINES = (
    "torch.sin({0})",
    "torch.tanh({0})",
    "torch.exp({0}.tanh())",
    "torch.log({0} * {0} + 1.5)",
    "torch.rsqrt({0} * {0} + 0.5)",
    "F.gelu({0})",
    "F.silu({0})",
    "{0}.softmax(-1)",
    "F.layer_norm({0}, (4,)) * 0.5",
    "{0} - {0}.sum(0) / 7",
    "{0}.cumsum(1).tanh()",
    "{0}.flip(0)",
    "{0}.t().contiguous().t() * 1.5",
    "torch.cat([{0}, {1}], 1)[:, 2:6]",
    "torch.zeros_like({0}).index_add(0, torch.arange({0}.shape[0]), {1})",
    "torch.where({1}.detach() > 0.1234, {0}.sin(), {1}.cos())",
    "{0}.clone().mul_(0.5).add_({1})",
    "({0} @ {1}.t()).tanh() @ {1}.sin()",
    "{0} @ ({1}.t() @ {0}).tanh()",
    "{0} + {1}",
    "{0}.tanh() * {1}.tanh()",
    "{0} / ({1} * {1} + 1)",
    "{0} * {1}.sum().sin()",
    "torch.atan2({0}, {1} * {1} + 1)",
    "{0} * {0}.detach().sin()",
    "torch.stack([row * k for k, row in enumerate({0}.unbind(1), 1)], 1).sin()",
)

# How far from eager's results in float64 ours may be, relative to 1 + the largest of them; and how
# many times as far as eager's own in the same precision: some programs amplify rounding.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4}
ROUNDING = 10

# Inputs are changed by this many roundings, to see how much that changes results.
SHAKE = 4


@dataclass(frozen=True)
class Program:
    """A random function of two tensors, as source and as the function itself."""

    source: str
    function: Callable[..., list[Tensor]]
    dtype: torch.dtype
    file: str

    @classmethod
    def drawn(cls, draw: random.Random) -> Program:
        lines, names = ["def f(a, b):"], ["a", "b"]
        for place in range(draw.randint(2, 10)):
            one, other = draw.choice(names[-3:]), draw.choice(names)
            lines.append(f"    v{place} = {draw.choice(LINES).format(one, other)}")
            names.append(f"v{place}")
        lines.append(f"    return [{', '.join(names[-draw.randint(1, 3) :])}]")
        source = "\n".join(lines) + "\n"
        file = f"<soak {id(draw)}.{draw.random()}>"
        # Dynamo reads source lines from here.
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        exec(compile(source, file, "exec"), scope)
        return cls(source, scope["f"], draw.choice(list(TOLERANCE)), file)

    def forget(self) -> None:
        """Dynamo refers to all code that it has compiled, and to what became of it."""
        with COMPILING:
            reset_code(self.function.__code__)
        linecache.cache.pop(self.file, None)
        drop_guards_of_code_that_is_gone()


def drop_guards_of_code_that_is_gone() -> None:
    """Free what Dynamo would keep of each frame for as long as the process runs.

    The guards of a frame are to be dropped with the objects that they compare by identity, such as
    the module torch, which never go: some 50 kB of each frame stay, with any backend.
    """
    for finalizer, known in weakref.finalize._registry.copy().items():  # type: ignore[attr-defined]
        called = getattr(known.func, "func", None)
        frame = getattr(called, "__self__", None)
        if isinstance(frame, CheckFunctionManager) and frame.guard_manager.cache_entry is None:
            finalizer.detach()


def scalar_of(results: list[Tensor]) -> Tensor:
    return torch.stack([(one.sin() * one).sum() for one in results]).sum()


def gradients(function: Callable[..., Any], order: int, *inputs: Tensor) -> list[Tensor]:
    """Results, and what a loss on the gradients of them leaves in the inputs."""
    leaves = [one.detach().requires_grad_() for one in inputs]
    results = function(*leaves)
    made: list[Tensor | None] = [*results]
    loss = scalar_of(results)
    for remaining in range(order, 0, -1):
        if remaining < order:
            # With the results, so that it depends on the leaves where gradients do not.
            loss = scalar_of([*results, *(one for one in made[-2:] if one is not None)])
        made += torch.autograd.grad(loss, leaves, create_graph=remaining > 1, allow_unused=True)
    return [torch.zeros(()) if one is None else one.detach() for one in made]


def through_transforms(module: Any, program: Program, *inputs: Tensor) -> list[Tensor]:
    """Value and gradient by `module`'s transforms, of a function made anew in each call."""
    gradient, value = module.grad_and_value(
        lambda a, b: scalar_of(program.function(a, b)), argnums=(0, 1)
    )(*inputs)
    return [value, *gradient]


class _Ours:
    """adjoint under the names of `torch.func`."""

    @staticmethod
    def grad_and_value(function: Callable[..., Any], argnums: Any) -> Callable[..., Any]:
        both = adjoint.value_and_grad(function, argnums=argnums)

        def swapped(*inputs: Tensor) -> Any:
            value, gradient = both(*inputs)
            return gradient, value

        return swapped


@dataclass
class Tally:
    """What all threads did so far."""

    programs: int = 0
    calls: int = 0
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def worker(seed: int, backend: str, until: float, tally: Tally) -> None:
    # Called with many sizes and layouts, a program needs more than Dynamo's default of 8, after
    # which it would run in eager torch.  Each thread has options of its own.
    torch._dynamo.config.recompile_limit = 64
    draw = random.Random(seed)
    live: list[tuple[Program, Any]] = []
    while time.monotonic() < until and len(tally.wrong) < 10:
        if len(live) >= ALIVE:
            live.pop(draw.randrange(ALIVE))[0].forget()
        program = Program.drawn(draw)
        live.append((program, torch.compile(program.function, backend=backend)))
        tally.programs += 1
        for _ in range(CALLS):
            chosen, compiled = draw.choice([live[-1], draw.choice(live)])
            try:
                seen = list(one_call(draw, chosen, compiled, backend))
            except Exception as error:
                raise RuntimeError(f"{chosen.dtype}\n{chosen.source}") from error
            with tally.lock:
                tally.calls += 1
                tally.wrong += seen


def one_call(draw: random.Random, program: Program, compiled: Any, backend: str) -> Iterator[str]:
    """What differs from eager in one call with sizes drawn anew."""
    rows, dtype = draw.choice([0, 1, 2, 3, 5, 8, 17, 64]), program.dtype
    order, seed = draw.randint(0, 2), draw.randrange(10**6)
    inputs = [made(draw, rows, dtype, seed + place) for place in range(2)]
    transforms = order == 1 and backend == "adjoint" and draw.random() < 0.3
    if transforms:
        call = functools.partial(through_transforms, torch.func, program)
        ours = through_transforms(_Ours, program, *inputs)
    else:
        call = functools.partial(gradients, program.function, order)
        ours = gradients(compiled, order, *inputs)
    wide = [each.double() for each in inputs]
    eager, exact = call(*inputs), call(*wide)
    # Eager may have rounded well by chance where the program is badly conditioned.
    shaken = call(*(each * (1 + SHAKE * torch.finfo(dtype).eps) for each in wide))
    compared = enumerate(zip(ours, eager, exact, shaken, strict=True))
    for place, (one, other, true, near) in compared:
        far = allowed = 0.0
        if one.shape == other.shape and one.numel():
            scale = 1 + float(true.abs().max())
            far = float((one - true).abs().max()) / scale
            rounding = max(float((each - true).abs().max()) for each in (other, near))
            allowed = TOLERANCE[dtype] + ROUNDING * rounding / scale
        if (one.shape, one.dtype) != (other.shape, other.dtype) or not far <= allowed:
            yield (
                f"{program.source}rows={rows} {dtype} order={order} seed={seed} "
                f"transforms={transforms}: result {place} differs by {far}"
            )


def made(draw: random.Random, rows: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Numbers of shape (rows, 4) in one of several layouts."""
    generator = torch.Generator().manual_seed(seed)
    layout = draw.randrange(4)
    if layout == 0:
        return torch.randn(COLUMNS, rows, dtype=dtype, generator=generator).t()
    if layout == 1:
        return torch.randn(rows, 2 * COLUMNS, dtype=dtype, generator=generator)[:, ::2]
    return torch.randn(rows, COLUMNS, dtype=dtype, generator=generator)


def resident() -> float:
    """Resident memory in MB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def soak(
    seconds: float, backend: str, threads: int, seed: int, sample: float
) -> tuple[Tally, list[tuple[float, float]]]:
    """Run for so long; returns what was done, and (seconds, MB) samples of resident memory."""
    tally, start = Tally(), time.monotonic()
    until = start + seconds
    samples: list[tuple[float, float]] = []
    # Torch's registry of backends fails if two threads look one up for the first time.
    torch._dynamo.lookup_backend(backend)
    pool = ThreadPoolExecutor(threads)
    running = [pool.submit(worker, seed + n, backend, until, tally) for n in range(threads)]
    while not all(future.done() for future in running):
        wait(running, timeout=sample, return_when=FIRST_EXCEPTION)
        for future in running:
            if future.done():
                future.result()  # Raises what the thread raised.
        gc.collect()
        samples.append((time.monotonic() - start, resident()))
        sys.stderr.write(
            f"{samples[-1][0]:6.0f} s  {samples[-1][1]:7.0f} MB  {tally.programs} programs  "
            f"{tally.calls} calls  {len(tally.wrong)} differ\n"
        )
    return tally, samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--backend", default="adjoint", help="`eager`: what Dynamo itself keeps")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    tally, samples = soak(given.minutes * 60, given.backend, given.threads, given.seed, 30)
    warm = [mb for at, mb in samples if at >= min(300, given.minutes * 10)]
    sys.stdout.write("\n".join([*tally.wrong, ""]))
    sys.stdout.write(
        f"{tally.programs} programs, {tally.calls} calls, {len(tally.wrong)} differ; resident "
        f"after warm-up {warm[0]:.0f} MB, at the end {warm[-1]:.0f}, most {max(warm):.0f}\n"
    )
    return int(bool(tally.wrong))


if __name__ == "__main__":
    sys.exit(main())
