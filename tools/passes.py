"""What each pass costs and gains: `python -m tools.passes [share|ablation|gpu] [workload ...]`.

`share`: the part of the CPU time of the first call that all passes take, the nodes of joint graphs
and of graphs after the split, before and after their passes, and how many of these graphs are
larger afterwards, for the workloads of `adjoint bench` and for families of transformers.
`ablation`: the step, the largest predicted memory of a program, the bytes that are saved for
backward programs, and the steps of all plans, relative to all passes on, with each pass off in turn
that changes a graph of the workload; the runs alternate.
`gpu`: the same on a GPU, of the passes that only change graphs there, in less than two minutes.

Families of transformers, with attention written out, and models of the zoo (`zoo laplacian`) can be
named, too.  Those of the zoo run on a GPU if there is one.
"""

from __future__ import annotations

import gc
import sys
import time
import warnings
from collections import Counter
from collections.abc import Collection
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx

from adjoint import stage_runner
from adjoint.graph.derivative import Derivative
from adjoint.loops.footprint import Processor, footprint
from adjoint.loops.plan import Plan
from adjoint.memory.values import explained
from adjoint.observing import watching
from adjoint.pipeline import FORWARD, JOINT, PASS_NAMES, POST, primal
from adjoint.runtime.cpu.memory import cache_bytes
from adjoint.runtime.cpu.program import MIN_TILE_ROWS
from adjoint.runtime.plans.layout import bytes_of_layout
from tests.rewriting import Growth
from tools.pass_workloads import (
    DEVICE,
    FAMILIES,
    ON_A_GPU,
    ONLY_ON_A_GPU,
    WORKLOADS,
    Make,
    Run,
    Workload,
    of_family,
    of_the_zoo,
)

# The rounds of an ablation; the first two warm up.
ROUNDS = 12 if DEVICE == "cpu" else 60

FIRST = {passes[0].name for passes in (primal(()), JOINT, POST, FORWARD)} | {"join-writes"}


class Watcher:
    """Seconds of passes, nodes of graphs before and after them, and the memory of plans."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.growth = Growth()
        self.effective: set[str] = set()
        """The passes that changed a graph."""
        self.steps = 0
        """The steps of all plans."""
        self.saved = 0
        """The bytes that forward programs keep for backward programs, at every order."""
        self._text = ""
        self.peak = 0
        here = Processor(torch.get_num_threads(), cache_bytes() * 3 // 4, MIN_TILE_ROWS)
        self._processor = here if DEVICE == "cpu" else None

    def __call__(self, event: Any) -> None:
        stage = getattr(event, "stage", None)
        if stage == "lower" and isinstance(event.value, Plan):
            made = footprint(event.value, {}, bytes_of_layout, self._processor)
            self.peak = max(self.peak, made.peak)
            self.steps += len(event.value.steps)
        if stage == "partition" and isinstance(event.value, Derivative):
            kept = explained(event.value)
            self.saved += sum(each.bytes for each in kept if not each.exists_anyway)
        if isinstance(getattr(event, "value", None), fx.GraphModule):
            before, self._text = self._text, str(event.value.graph)
            if stage in PASS_NAMES and event.nodes is not None:
                # What came before the first pass of a place may be another graph.
                is_same = stage in FIRST or self._text == before
                if stage == "join-writes":
                    is_same = "partial_writes.written" not in self._text
                if event.matches or event.nodes[0] != event.nodes[1] or not is_same:
                    self.effective.add(stage)
        if stage not in PASS_NAMES or event.nodes is None:
            return
        self.seconds[stage] += event.seconds
        self.growth(event)


def share(name: str, made: Workload) -> None:
    watcher = Watcher()
    run = made({"cache": False, "unsupported": "raise"})
    # Stages are timed by the process, not by the clock: others may use the machine.
    stage_runner.time = SimpleNamespace(perf_counter=time.process_time)  # type: ignore[assignment]
    with watching(watcher):
        begun = time.process_time()
        run()
        seconds = time.process_time() - begun
    spent = watcher.seconds.total()
    most = ", ".join(f"{each} {1e3 * s:.0f} ms" for each, s in watcher.seconds.most_common(3))
    nodes = []
    for place in ("joint", "post"):
        graphs = [each for each in watcher.growth.graphs if each[0] == place]
        nodes.append(f"{sum(each[1] for each in graphs)} to {sum(each[2] for each in graphs)}")
    counts = " | ".join((*nodes, str(len(watcher.growth.larger))))
    print(f"| {name} | {seconds:.1f} s | {spent / seconds:.1%} | {most} | {counts} |", flush=True)


def _now() -> float:
    """Seconds of the process, not of the clock: others may use the machine.  A GPU is ours."""
    if DEVICE == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def ablation(name: str, made: Workload, passes: Collection[str] = PASS_NAMES) -> None:
    """Of `passes` alone."""
    runs: dict[str, Run] = {}
    watchers: dict[str, Watcher] = {}
    names = ["nothing"]
    while names:
        off = names.pop(0)
        watchers[off] = watcher = Watcher()
        runs[off] = made({"cache": False, "skip_passes": [] if off == "nothing" else [off]})
        with watching(watcher):
            runs[off]()
        if off == "nothing":
            names = sorted(watcher.effective & {*passes})
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(ROUNDS):
        for off, run in runs.items():
            begun = _now()
            run()
            best[off] = min(best[off], _now() - begun)
    every = watchers["nothing"]
    for off, watcher in watchers.items():
        pairs = [
            (best[off], best["nothing"]),
            (watcher.peak, every.peak),
            (watcher.saved, every.saved),
            (watcher.steps, every.steps),
        ]
        figures = " | ".join(f"{mine / theirs:.2f}" if theirs else "-" for mine, theirs in pairs)
        print(f"| {off} | {name} | {figures} |", flush=True)


def main() -> None:
    warnings.simplefilter("ignore")
    # One function is compiled once for each pass.
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1000
    what, *chosen = sys.argv[1:] or ["share"]
    every: dict[str, Make] = dict(WORKLOADS)
    if what == "gpu":
        every = dict(ON_A_GPU)
        print("| off | workload | step | memory | saved | steps of plans |\n" + "|---" * 6 + "|")
    families = {name: lambda name=name: of_family(name) for name in FAMILIES}
    every.update({**families, **of_the_zoo()} if chosen else families if what == "share" else {})
    for name in chosen or every:
        modes = {"share": share, "ablation": ablation}
        modes["gpu"] = partial(ablation, passes=ONLY_ON_A_GPU)
        modes[what](name, every[name]())
        torch._dynamo.reset()
        gc.collect()


if __name__ == "__main__":
    main()
