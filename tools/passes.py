"""What each pass costs and gains: `python tools/passes.py [share|ablation] [workload ...]`.

`share`: the part of the first call that all passes take, the nodes of joint graphs and of graphs
after the split, before and after their passes, and how many of these graphs are larger afterwards,
for the workloads of `adjoint bench` and for families of transformers.  `ablation`: the
step and the largest predicted memory of a program, with each pass off in turn; steps alternate.
"""

from __future__ import annotations

import gc
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adjoint.bench import workloads
from adjoint.loops.footprint import Processor, footprint
from adjoint.loops.plan import Plan
from adjoint.observing import watching
from adjoint.pipeline import PASS_NAMES
from adjoint.runtime.cpu.memory import cache_bytes
from adjoint.runtime.cpu.program import MIN_TILE_ROWS
from adjoint.runtime.plans.layout import bytes_of_layout
from tests.rewriting import Growth

Run = Callable[[], object]
Options = Mapping[str, Any]

# The rounds of an ablation; the first two warm up.
ROUNDS = 8

FAMILIES = ("bert", "gpt2", "llama", "t5", "vit", "swin", "clip", "bloom", "gpt-neox", "gemma2")


class Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(width, width)
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        hidden = cell = x.new_zeros(x.shape[1], self.width)
        for step in x.unbind(0):
            hidden, cell = self.cell(step, (hidden, cell))
        return hidden.square().sum()


class WrittenOut(nn.Module):
    """Attention as matrix products and a softmax."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs, self.result = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.inputs(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        weights = (query @ key.mT * (width // self.heads) ** -0.5).softmax(-1)
        return self.result((weights @ value).transpose(1, 2).reshape(x.shape)).square().mean()


class Pooled(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).sum(0, keepdim=True).tanh().sum()


class Head(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.body(x).tanh()), target)


def _trained(net: nn.Module, *batch: Tensor) -> Callable[[Options], Run]:
    def made(options: Options) -> Run:
        compiled = torch.compile(net, backend="adjoint", options=dict(options))

        def run() -> None:
            net.zero_grad()
            compiled(*batch).backward()

        return run

    return made


def _benchmark(name: str, system: str) -> Callable[[Options], Run]:
    def made(options: Options) -> Run:
        problem = getattr(workloads, name)("cpu", False)
        step = workloads.training_step(problem, system, options=options)
        return lambda: step.run(*problem.batch)

    return made


WORKLOADS: dict[str, Callable[[], Callable[[Options], Run]]] = {
    "pinn": lambda: _benchmark("pinn", "adjoint"),
    "pinn inside": lambda: _benchmark("pinn", "func_adjoint"),
    "forces": lambda: _benchmark("forces", "adjoint"),
    "forces inside": lambda: _benchmark("forces", "func_adjoint"),
    "gp inside": lambda: _benchmark("gp", "func_adjoint"),
    "gpt": lambda: _benchmark("gpt", "adjoint"),
    "attention": lambda: _trained(WrittenOut(128, 4), torch.randn(4, 256, 128)),
    "lstm": lambda: _trained(Recurrent(128), torch.randn(12, 16, 128, requires_grad=True)),
    "pooled": lambda: _trained(Pooled(256), torch.randn(4096, 256)),
    "head": lambda: _trained(
        Head(256, 20000), torch.randn(1024, 256), torch.randint(0, 20000, (1024,))
    ),
}


def _family(name: str) -> Callable[[Options], Run]:
    from tests.models.test_transformers import FAMILIES as KNOWN
    from tests.models.test_transformers import MORE_FAMILIES, loss, tensors

    model, inputs = {**KNOWN, **MORE_FAMILIES}[name].make(attn_implementation="eager")

    def made(options: Options) -> Run:
        compiled = torch.compile(model, backend="adjoint", options=dict(options))
        return lambda: loss(dict(tensors(compiled(**inputs)))).backward()

    return made


class Watcher:
    """Seconds of passes, nodes of graphs before and after them, and the memory of plans."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.growth = Growth()
        self.peak = 0
        self._processor = Processor(torch.get_num_threads(), cache_bytes() * 3 // 4, MIN_TILE_ROWS)

    def __call__(self, event: Any) -> None:
        stage = getattr(event, "stage", None)
        if stage == "lower" and isinstance(event.value, Plan):
            made = footprint(event.value, {}, bytes_of_layout, self._processor)
            self.peak = max(self.peak, made.peak)
        if stage not in PASS_NAMES or event.nodes is None:
            return
        self.seconds[stage] += event.seconds
        self.growth(event)


def share(name: str, made: Callable[[Options], Run]) -> None:
    watcher = Watcher()
    run = made({"cache": False, "unsupported": "raise"})
    with watching(watcher):
        begun = time.perf_counter()
        run()
        seconds = time.perf_counter() - begun
    spent = watcher.seconds.total()
    most = ", ".join(f"{each} {1e3 * s:.0f} ms" for each, s in watcher.seconds.most_common(3))
    nodes = []
    for place in ("joint", "post"):
        graphs = [each for each in watcher.growth.graphs if each[0] == place]
        nodes.append(f"{sum(each[1] for each in graphs)} to {sum(each[2] for each in graphs)}")
    counts = " | ".join((*nodes, str(len(watcher.growth.larger))))
    print(f"| {name} | {seconds:.1f} s | {spent / seconds:.1%} | {most} | {counts} |", flush=True)


def ablation(name: str, made: Callable[[Options], Run]) -> None:
    runs: dict[str, Run] = {}
    peaks: dict[str, int] = {}
    names = sorted(PASS_NAMES - {"decompose", "merge-equal-values", "draw-in-kernels"})
    for off in ("nothing", *names):
        watcher = Watcher()
        skipped = [] if off == "nothing" else [off]
        runs[off] = made({"cache": False, "skip_passes": skipped})
        with watching(watcher):
            runs[off]()
        peaks[off] = watcher.peak
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(ROUNDS):
        for off, run in runs.items():
            begun = time.perf_counter()
            run()
            best[off] = min(best[off], time.perf_counter() - begun)
    for off in runs:
        step, peak = best[off] / best["nothing"], peaks[off] / max(1, peaks["nothing"])
        print(f"| {name} | {off} | {step:.2f} | {peak:.2f} |", flush=True)


def main() -> None:
    warnings.simplefilter("ignore")
    # One function is compiled once for each pass.
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1000
    what, *chosen = sys.argv[1:] or ["share"]
    every: dict[str, Callable[[], Callable[[Options], Run]]] = dict(WORKLOADS)
    if what == "share":
        every.update({name: lambda name=name: _family(name) for name in FAMILIES})
    for name in chosen or every:
        {"share": share, "ablation": ablation}[what](name, every[name]())
        torch._dynamo.reset()
        gc.collect()


if __name__ == "__main__":
    main()
