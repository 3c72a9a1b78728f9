"""The workloads of `tools/passes.py`: programs in each of which some pass has something to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from adjoint.bench import workloads, zoo
from adjoint.bench.problems import training_step

Run: TypeAlias = Callable[[], object]
Options: TypeAlias = Mapping[str, Any]

# Makes what runs one step with these options; and what makes a workload, when it is chosen.
Workload: TypeAlias = Callable[[Options], Run]
Make: TypeAlias = Callable[[], Workload]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# Families of transformers in `tests/models`.
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


def _evaluated(function: Callable[..., object], *given: Tensor) -> Workload:
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


def _in_kernels(made: Workload) -> Workload:
    """The same with random numbers that kernels draw, as on a GPU."""
    return lambda options: made({**options, "eager_rng": False})


def _trained(net: nn.Module, *batch: Tensor) -> Workload:
    def made(options: Options) -> Run:
        compiled = torch.compile(net, backend="adjoint", options=dict(options))

        def run() -> None:
            net.zero_grad()
            compiled(*batch).backward()

        return run

    return made


def _benchmark(name: str, system: str) -> Workload:
    def made(options: Options) -> Run:
        problem = getattr(workloads, name)("cpu", False)
        step = training_step(problem, system, options=options)
        return lambda: step.run(*problem.batch)

    return made


def _of_the_zoo(name: str, system: str) -> Workload:
    def made(options: Options) -> Run:
        problem = zoo.MODELS[name].problem(DEVICE, False)
        step = training_step(problem, system, options=options)
        return lambda: step.run(*problem.batch)

    return made


WORKLOADS: dict[str, Make] = {
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


def of_the_zoo() -> dict[str, Make]:
    return {
        f"zoo {name}{' inside' * (system != 'adjoint')}": lambda name=name, system=system: (
            _of_the_zoo(name, system)
        )
        for name, model in zoo.MODELS.items()
        for system in ("adjoint", "func_adjoint")
        if system in model.systems
    }


def of_family(name: str) -> Workload:
    from tests.models.test_transformers import FAMILIES as KNOWN
    from tests.models.test_transformers import MORE_FAMILIES, loss, tensors

    # Tests run most of them in float64, in which a softmax in float32 cannot be fused.
    family = replace({**KNOWN, **MORE_FAMILIES}[name], dtype=torch.float32)
    model, inputs = family.make(attn_implementation="eager")

    def made(options: Options) -> Run:
        compiled = torch.compile(model, backend="adjoint", options=dict(options))
        return lambda: loss(dict(tensors(compiled(**inputs)))).backward()

    return made


def _images(normalized: bool, half: bool, channels: int = 64) -> Workload:
    net: nn.Module = Blocks(channels, 4, normalized=normalized)
    net = UnderAutocast(net) if half else net
    return _trained(net.to(DEVICE), torch.randn(32, 3, 56, 56, device=DEVICE))


def _attention_with_dropout(length: int, half: bool) -> Workload:
    net: nn.Module = DroppedAttention(512, 8, 4)
    net = UnderAutocast(net) if half else net
    return _trained(net.to(DEVICE), torch.randn(8, length, 512, device=DEVICE))


# What only changes graphs on a GPU, and the workloads that show it.
ONLY_ON_A_GPU = ("choose-memory-format", "split-convolution-bias", "fuse-attention")
ON_A_GPU: dict[str, Make] = {
    "images, bfloat16": lambda: _images(False, True),
    "images with batch norm, bfloat16": lambda: _images(True, True),
    "images, float32": lambda: _images(False, False),
    "images, bfloat16, 128 channels": lambda: _images(False, True, 128),
    "images with batch norm, bfloat16, 128 channels": lambda: _images(True, True, 128),
    "dropout, 128 keys, bfloat16": lambda: _attention_with_dropout(128, True),
    "dropout, 1024 keys, bfloat16": lambda: _attention_with_dropout(1024, True),
    "dropout, 512 keys, float32": lambda: _attention_with_dropout(512, False),
}
