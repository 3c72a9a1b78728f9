"""What each pass costs and gains: `python tools/passes.py [share|ablation|gpu] [workload ...]`.

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
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.utils.checkpoint import checkpoint

from adjoint import stage_runner
from adjoint.bench import workloads, zoo
from adjoint.bench.problems import training_step
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

Run = Callable[[], object]
Options = Mapping[str, Any]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# The rounds of an ablation; the first two warm up.
ROUNDS = 12 if DEVICE == "cpu" else 60

FIRST = {passes[0].name for passes in (primal(()), JOINT, POST, FORWARD)} | {"join-writes"}

FAMILIES = (
    *("bert", "gpt2", "llama", "t5", "vit", "swin", "clip", "bloom", "gpt-neox", "gemma2"),
    *("mamba", "deberta-v2"),
)


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


class RecurrentRows(nn.Module):
    """A recurrent network that reads one step of a sequence after another."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inputs, self.cell = nn.Linear(width, width), nn.GRUCell(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inputs(x)
        hidden = x.new_zeros(x.shape[0], x.shape[2])
        states = []
        for step in range(x.shape[1]):
            hidden = self.cell(x[:, step], hidden)
            states.append(hidden)
        return torch.stack(states, 1).square().mean()


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


class Dropped(nn.Module):
    """Two layers with dropout between them, in a checkpoint."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def inside(self, x: Tensor) -> Tensor:
        return self.second(F.dropout(self.first(x).relu(), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inside, x, use_reentrant=False).square().mean()


class Perceptron(nn.Module):
    """The second half of a transformer's layer, with dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first, self.second = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        inside = F.dropout(F.gelu(self.first(self.norm(x))), 0.1)
        return (x + F.dropout(self.second(inside), 0.1)).square().mean()


class WrittenSoftmax(nn.Module):
    """The loss of a classifier, with the softmax written out."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.linear(x)
        powers = (scores - scores.amax(-1, keepdim=True)).exp()
        return (powers / powers.sum(-1, keepdim=True)).square().mean()


class Mixed(nn.Module):
    """Attention weights in bfloat16, as autocast computes them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            weights = (self.query(x) @ self.key(x).mT).softmax(-1)
            return (weights * weights).sum()


class Classifier(nn.Module):
    """Logits in bfloat16 and their loss in float32, as autocast computes them."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(self.head(self.body(x).tanh()), target)


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return cotangent * (s + x * s * (1 - s))


class Custom(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return (Swish.apply(self.linear(x)) * 2).square().mean()


class DroppedAttention(nn.Module):
    """Layers of attention written out with dropout of the weights."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.results = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        for inputs, result in zip(self.inputs, self.results, strict=True):
            parts = inputs(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            query, key, value = parts.unbind(0)
            scores = query @ key.mT * (width // self.heads) ** -0.5
            weights = F.dropout(scores.softmax(-1), 0.1, self.training)
            x = x + result((weights @ value).transpose(1, 2).reshape(x.shape))
        return x.float().square().mean()


class Blocks(nn.Module):
    """Residual blocks of convolutions with biases."""

    def __init__(self, channels: int, blocks: int, *, normalized: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        norm = nn.BatchNorm2d if normalized else nn.Identity
        self.blocks = nn.ModuleList(
            nn.Sequential(
                *(nn.Conv2d(channels, channels, 3, padding=1), norm(channels), nn.ReLU()),
                *(nn.Conv2d(channels, channels, 3, padding=1), norm(channels)),
            )
            for _ in range(blocks)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = (x + block(x)).relu()
        return x.mean((2, 3)).float().square().mean()


class UnderAutocast(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            return self.net(x)


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu()).square().mean()


def _evaluated(function: Callable[..., object], *given: Tensor) -> Callable[[Options], Run]:
    def made(options: Options) -> Run:
        compiled = torch.compile(function, backend="adjoint", options=dict(options))

        def run() -> None:
            with torch.no_grad():
                compiled(*given)

        return run

    return made


def decode(query: Tensor, keys: Tensor, values: Tensor, new: Tensor, at: Tensor) -> Tensor:
    """A step of decoding with key-value caches."""
    keys.index_copy_(2, at, new)
    values.index_copy_(2, at, new * 2)
    return F.scaled_dot_product_attention(query, keys[:, :, :64], values[:, :, :64]).sin()


def quantized(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, weight.to(x.dtype)) * scale


def _adversarial(options: Options) -> Run:
    """The gradient of a convolutional classifier with respect to images, and no other."""
    torch.manual_seed(0)
    hidden = nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()
    net = nn.Sequential(*hidden, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    images, target = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
    compiled = torch.compile(net, backend="adjoint", options=dict(options))

    def run() -> object:
        attacked = images.clone().requires_grad_()
        return torch.autograd.grad(F.cross_entropy(compiled(attacked), target), attacked)

    return run


def _in_kernels(made: Callable[[Options], Run]) -> Callable[[Options], Run]:
    """The same with random numbers that kernels draw, as on a GPU."""
    return lambda options: made({**options, "eager_rng": False})


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
        step = training_step(problem, system, options=options)
        return lambda: step.run(*problem.batch)

    return made


def _of_the_zoo(name: str, system: str) -> Callable[[Options], Run]:
    def made(options: Options) -> Run:
        problem = zoo.MODELS[name].problem(DEVICE, False)
        step = training_step(problem, system, options=options)
        return lambda: step.run(*problem.batch)

    return made


WORKLOADS: dict[str, Callable[[], Callable[[Options], Run]]] = {
    "pinn": lambda: _benchmark("pinn", "adjoint"),
    "pinn inside": lambda: _benchmark("pinn", "func_adjoint"),
    "forces": lambda: _benchmark("forces", "adjoint"),
    "forces inside": lambda: _benchmark("forces", "func_adjoint"),
    "gp": lambda: _benchmark("gp", "adjoint"),
    "gp inside": lambda: _benchmark("gp", "func_adjoint"),
    "gpt": lambda: _benchmark("gpt", "adjoint"),
    "attention": lambda: _trained(WrittenOut(128, 4), torch.randn(4, 256, 128)),
    "lstm": lambda: _trained(Recurrent(128), torch.randn(12, 16, 128, requires_grad=True)),
    "gru": lambda: _trained(RecurrentRows(64), torch.randn(16, 24, 64)),
    "adversarial": lambda: _adversarial,
    "dropout": lambda: _in_kernels(_trained(Perceptron(256), torch.randn(1024, 256))),
    "classifier": lambda: _trained(
        Classifier(64, 4000), torch.randn(1024, 64), torch.randint(0, 4000, (1024,))
    ),
    "pooled": lambda: _trained(Pooled(256), torch.randn(4096, 256)),
    "checkpoint": lambda: _trained(Dropped(512), torch.randn(2048, 512)),
    "softmax": lambda: _trained(WrittenSoftmax(128, 1000), torch.randn(1024, 128)),
    "mixed": lambda: _trained(Mixed(64), torch.randn(4, 512, 64)),
    "custom": lambda: _trained(Custom(256), torch.randn(2048, 256)),
    "convolution": lambda: _trained(Convolved(), torch.randn(4, 3, 64, 64)),
    "decode": lambda: _evaluated(
        decode,
        torch.randn(4, 8, 1, 64),
        torch.zeros(4, 8, 2048, 64),
        torch.zeros(4, 8, 2048, 64),
        torch.randn(4, 8, 1, 64),
        torch.tensor([5]),
    ),
    "int8": lambda: _evaluated(
        quantized,
        torch.randn(4, 1024).bfloat16(),
        torch.randint(-127, 128, (1024, 1024), dtype=torch.int8),
        torch.rand(1024).bfloat16(),
    ),
    "head": lambda: _trained(
        Head(256, 20000), torch.randn(1024, 256), torch.randint(0, 20000, (1024,))
    ),
}


def _zoo() -> dict[str, Callable[[], Callable[[Options], Run]]]:
    return {
        f"zoo {name}{' inside' * (system != 'adjoint')}": lambda name=name, system=system: (
            _of_the_zoo(name, system)
        )
        for name, model in zoo.MODELS.items()
        for system in ("adjoint", "func_adjoint")
        if system in model.systems
    }


def _family(name: str) -> Callable[[Options], Run]:
    from tests.models.test_transformers import FAMILIES as KNOWN
    from tests.models.test_transformers import MORE_FAMILIES, loss, tensors

    # Tests run most of them in float64, in which a softmax in float32 cannot be fused.
    family = replace({**KNOWN, **MORE_FAMILIES}[name], dtype=torch.float32)
    model, inputs = family.make(attn_implementation="eager")

    def made(options: Options) -> Run:
        compiled = torch.compile(model, backend="adjoint", options=dict(options))
        return lambda: loss(dict(tensors(compiled(**inputs)))).backward()

    return made


def _images(normalized: bool, half: bool) -> Callable[[Options], Run]:
    net: nn.Module = Blocks(64, 4, normalized=normalized)
    net = UnderAutocast(net) if half else net
    return _trained(net.to(DEVICE), torch.randn(32, 3, 56, 56, device=DEVICE))


def _attention_with_dropout(length: int, half: bool) -> Callable[[Options], Run]:
    net: nn.Module = DroppedAttention(512, 8, 4)
    net = UnderAutocast(net) if half else net
    return _trained(net.to(DEVICE), torch.randn(8, length, 512, device=DEVICE))


# What only changes graphs on a GPU, and the workloads that show it.
ONLY_ON_A_GPU = ("choose-memory-format", "split-convolution-bias", "fuse-attention")
ON_A_GPU: dict[str, Callable[[], Callable[[Options], Run]]] = {
    "images, bfloat16": lambda: _images(False, True),
    "images with batch norm, bfloat16": lambda: _images(True, True),
    "images, float32": lambda: _images(False, False),
    "dropout, 128 keys, bfloat16": lambda: _attention_with_dropout(128, True),
    "dropout, 1024 keys, bfloat16": lambda: _attention_with_dropout(1024, True),
    "dropout, 512 keys, float32": lambda: _attention_with_dropout(512, False),
}


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


def share(name: str, made: Callable[[Options], Run]) -> None:
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


def ablation(
    name: str, made: Callable[[Options], Run], passes: Collection[str] = PASS_NAMES
) -> None:
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
    every: dict[str, Callable[[], Callable[[Options], Run]]] = dict(WORKLOADS)
    if what == "gpu":
        every = dict(ON_A_GPU)
        print("| off | workload | step | memory | saved | steps of plans |\n" + "|---" * 6 + "|")
    families = {name: lambda name=name: _family(name) for name in FAMILIES}
    every.update({**families, **_zoo()} if chosen else families if what == "share" else {})
    for name in chosen or every:
        modes = {"share": share, "ablation": ablation}
        modes["gpu"] = partial(ablation, passes=ONLY_ON_A_GPU)
        modes[what](name, every[name]())
        torch._dynamo.reset()
        gc.collect()


if __name__ == "__main__":
    main()
