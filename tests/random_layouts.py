"""Random programs over tensors that lie in memory in every way, in the dtypes that autocast mixes.

`program(seed)` writes one, by running it as it writes it, so that each line fits what it meets.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.versions import TORCH

# Which dtypes meet in one program: that of the first inputs, and that of the others.
DTYPES = (
    (torch.float64, torch.float64),
    (torch.float64, torch.float64),
    (torch.float32, torch.float32),
    (torch.float32, torch.float64),
    (torch.bfloat16, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.float16, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.complex128, torch.float64),
)
HALVES = (torch.bfloat16, torch.float16)

SHAPES = (
    (2, 4, 3, 5),
    (3, 2, 4, 4),
    (2, 4, 2, 3, 3),
    (2, 4, 6),
    (4, 6),
    (3, 1, 4),
    (1, 4, 4, 1),
    (5,),
)

# How far results may be apart, relative to the largest number of the tensor: sums are taken in
# other orders, and halves are rounded at other places.
ROUNDED = {torch.bfloat16: 0.1, torch.float16: 0.02, torch.float32: 1e-3, torch.float64: 1e-7}

# What is less is zero but for rounding.
ZERO = 1e-6


# Layouts ------------------------------------------------------------------------------------------


def _turned(x: Tensor) -> Tensor:
    dims = tuple(reversed(range(x.dim())))
    return x.permute(dims).contiguous().permute(dims)


def _swapped(x: Tensor) -> Tensor:
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def _strided(x: Tensor) -> Tensor:
    wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1] + 1, dtype=x.dtype)
    return wide[..., 1::2].copy_(x)


def _offset(x: Tensor) -> Tensor:
    return torch.cat([x[:1], x])[1:]


def _channels_last(x: Tensor) -> Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats[x.dim()]) if x.dim() in formats else _turned(x)


def _expanded(x: Tensor) -> Tensor:
    return x[:1].expand(x.shape)


def _expanded_last(x: Tensor) -> Tensor:
    return x[..., :1].expand(x.shape)


def _overlapping(x: Tensor) -> Tensor:
    if x.dim() < 2:
        return x
    flat = x.reshape(-1)
    strides = [1] * x.dim()
    return flat.as_strided(x.shape, strides)


def _negative(x: Tensor) -> Tensor:
    return torch._neg_view(-x)


def _conjugate(x: Tensor) -> Tensor:
    return x.conj().resolve_conj().conj()


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "channels last": _channels_last,
    "turned": _turned,
    "swapped": _swapped,
    "strided": _strided,
    "offset": _offset,
    "expanded": _expanded,
    "expanded along the last": _expanded_last,
    "overlapping": _overlapping,
    "negative": _negative,
    "conjugate": _conjugate,
}

# Lines --------------------------------------------------------------------------------------------

# Torch 2.11 computes this loss in the memory of one less the target, and so in the target's dtype.
LOGITS = (
    ("F.binary_cross_entropy_with_logits({x}, {y}.detach().sigmoid())",) if TORCH >= (2, 13) else ()
)

# On a CPU, torch 2.11 reads memory that was never written where these overlap themselves.
ATTENTION = (
    (
        "F.scaled_dot_product_attention({x}, {x}, {x})",
        "F.scaled_dot_product_attention({x}, {y}, {y})",
    )
    if TORCH >= (2, 13)
    else (
        "F.scaled_dot_product_attention(*[{x}.contiguous()] * 3)",
        "F.scaled_dot_product_attention({x}.contiguous(), *[{y}.contiguous()] * 2)",
    )
)

# What a line may compute of {x}, another tensor {y} and a vector {w} with an entry for a channel.
LINES: dict[str, tuple[str, ...]] = {
    "any": (
        "{x} + {y}",
        "{x} * {y}",
        "{x} - 2 * {y}",
        "{x}.sin()",
        "{x} * 0.5 + 1",
        "{x}.exp() * 0.1",
        "torch.tanh({x})",
        "{x}.square()",
        "{x}.transpose(0, -1)",
        "{x}.transpose(-1, -2)",
        "{x}.movedim(0, -1)",
        "{x}.contiguous()",
        "{x}.flip(0)",
        "{x}.roll(1, -1)",
        "{x}[..., ::2]",
        "{x}[1:]",
        "{x}[..., -1:]",
        "{x}.sum(-1, keepdim=True)",
        "{x}.mean(0, keepdim=True)",
        "{x}.sum(0, keepdim=True) * {x}",
        "{x} / (2 + {x}.abs().sum(-1, keepdim=True))",
        "{x}.cumsum(-1)",
        "{x}.cumsum(0)",
        "torch.cat([{x}, {x} * 2], 0)",
        "torch.cat([{x}, {x} * 2], -1)",
        "torch.stack([{x}, {x} * 3]).sum(0)",
        "{x}.reshape(-1).reshape({x}.shape)",
        "{x}.reshape({x}.shape[0], -1)",
        "{x}.flatten(0, 1)",
        "{x}.repeat_interleave(2, 0)",
        "{x}.index_select(0, torch.tensor([0, -1 % {x}.shape[0], 0]))",
        "{x}.expand(2, *{x}.shape).sum(0)",
        "{x}.unsqueeze(0).squeeze(0)",
        "{x}.to(torch.float32)",
        "{x}.to(torch.float64)",
        "{x}.clone(memory_format=torch.contiguous_format)",
        "torch.where({y}.abs() > 0.3, {x}, {y})",
        "{x}.prod(-1)",
        "{x}.diagonal(0, 0, -1)",
        "{x}.tril()",
        "{x}.unfold(-1, 2, 1)",
        "torch.einsum('...i,...j->...ij', {x}, {x}).sum(-1)",
        "{x} @ {x}.mT",
        "{x}.mT @ {y}",
        "torch.linalg.vector_norm({x}, dim=-1, keepdim=True) + {x}",
    ),
    "real": (
        "F.silu({x})",
        "F.gelu({x})",
        "F.softplus({x})",
        "F.elu({x})",
        "F.logsigmoid({x})",
        "{x}.sigmoid()",
        "{x}.softmax(-1)",
        "{x}.softmax(0)",
        "{x}.log_softmax(1 % {x}.dim())",
        "{x}.logsumexp(0, keepdim=True)",
        "{x}.var(-1, keepdim=True) + {x}",
        "{x}.std(0, keepdim=True, correction=0) * {x}",
        "F.layer_norm({x}, {x}.shape[-1:])",
        "F.layer_norm({x}, {x}.shape[1:])",
        "F.layer_norm({x}, {w}.shape, {w}, {w})",
        "F.layer_norm({x}.transpose(1, -1), {w}.shape, {w}).transpose(1, -1)",
        "F.rms_norm({x}, {x}.shape[-1:])",
        "F.group_norm({x}, 2)",
        "F.group_norm({x}, 2, {w}, {w})",
        "F.group_norm({x}, 1, {w})",
        "F.batch_norm({x}, None, None, {w}, {w}, True)",
        "F.batch_norm({x}, None, None, training=True)",
        "F.batch_norm({x}, {w}.detach(), {w}.detach().square() + 1, {w}, {w})",
        "F.instance_norm({x}, weight={w}, bias={w})",
        "F.normalize({x}, dim=-1)",
        "F.mse_loss({x}, {y}, reduction='none')",
        "F.mse_loss({x}, {y})",
        "F.smooth_l1_loss({x}, {y})",
        "F.huber_loss({x}, {x}.detach() * 0.5, reduction='none')",
        *LOGITS,
        "F.soft_margin_loss({x}, {y}.detach())",
        "F.kl_div({x}, {y}.sigmoid(), reduction='sum')",
        "F.cosine_similarity({x}, {y}, dim=-1)",
        "F.glu({x}, -1)",
        "F.dropout({x}, 0.5, False)",
        *ATTENTION,
        "torch.cdist({x}, {x} + 1)",
        "torch.logaddexp({x}, {y})",
        "torch.atan2({x}, 2 + {y}.abs())",
        "torch.nn.functional.pdist({x}.reshape({x}.shape[0], -1))",
    ),
    "kinked": (
        "F.relu({x})",
        "F.leaky_relu({x})",
        "F.prelu({x}, {w})",
        "{x}.abs()",
        "{x}.clamp(-0.5, 0.5)",
        "{x}.max(-1).values",
        "{x}.amax(0, keepdim=True) + {x}",
        "{x}.sort(-1).values",
        "torch.maximum({x}, {y})",
        "{x}.topk(1, -1).values",
        "{x}.median(-1).values",
        "F.l1_loss({x}, {y})",
        "F.hardswish({x})",
        "F.cross_entropy({x}, {x}.detach().argmin(1))",
        "F.nll_loss({x}, {x}.detach().argmin(1))",
    ),
    "image": (
        "F.avg_pool2d({x}, 2)",
        "F.adaptive_avg_pool2d({x}, 2)",
        "F.interpolate({x}, scale_factor=2)",
        "F.interpolate({x}, size=(4, 3), mode='bilinear')",
        "F.interpolate({x}, size=(4, 3), mode='bicubic')",
        "F.pad({x}, (1, 1))",
        "F.pad({x}, (1, 1, 0, 1), mode='reflect')",
        "F.pad({x}, (1, 1, 1, 1), mode='replicate')",
        "F.pixel_shuffle({x}, 2)",
        "F.channel_shuffle({x}, 2)",
        "F.unfold({x}, 2)",
        "F.conv2d({x}, {x}[:2, :, :2, :2])",
        "F.conv2d({x}, {x}[:2, :, :2, :2].contiguous(memory_format=torch.channels_last))",
        "F.conv2d({x}, {x}[:1, :1].expand({x}.shape[1], 1, -1, -1), groups={x}.shape[1])",
        "F.conv_transpose2d({x}, {x}[:1].transpose(0, 1)[:, :, :2, :2])",
        "{x}.contiguous(memory_format=torch.channels_last)",
        "{x}.to(memory_format=torch.channels_last) * 2",
        "F.local_response_norm({x}, 2)",
        "F.grid_sample({x}, {x}.permute(0, 2, 3, 1)[..., :2].sin())",
        "F.fold(F.unfold({x}, 2), {x}.shape[-2:], 2)",
    ),
    "pools": (
        "F.max_pool2d({x}, 2)",
        "F.adaptive_max_pool2d({x}, 2)",
        "F.max_pool2d({x}, 2, stride=1, padding=1)",
        "F.max_unpool2d(*F.max_pool2d({x}, 2, return_indices=True), 2)",
    ),
    "volume": (
        "F.avg_pool3d({x}, 2)",
        "F.adaptive_avg_pool3d({x}, 2)",
        "F.interpolate({x}, scale_factor=2)",
        "F.interpolate({x}, size=(2, 4, 3), mode='trilinear')",
        "F.pad({x}, (1, 1, 0, 0, 1, 0), mode='replicate')",
        "F.conv3d({x}, {x}[:2, :, :2, :2, :2])",
        "{x}.contiguous(memory_format=torch.channels_last_3d)",
    ),
    "volume pools": ("F.max_pool3d({x}, 2)", "F.adaptive_max_pool3d({x}, 2)"),
    "line": (
        "F.conv1d({x}, {x}[:2, :, :2])",
        "F.avg_pool1d({x}, 2)",
        "F.interpolate({x}, size=5, mode='linear')",
        "F.pad({x}, (1, 1), mode='circular')",
        "F.embedding(torch.tensor([[0, 1], [1, 0]]), {x}[0])",
    ),
    "complex": (
        "{x}.conj()",
        "{x}.conj_physical()",
        "{x}.real + {x}.imag",
        "{x}.conj() * {y}",
        "torch.view_as_real({x}).sum(-1)",
        "torch.view_as_real({x}.conj())[..., 1]",
        "{x}.abs() + {y}",
        "-{x}.conj().imag",
        "torch.fft.fft({x}.real)",
        "{x}.mH @ {x}",
        "torch.complex({x}.real, {x}.imag.cos())",
    ),
}


def _lines(x: Tensor, smooth: bool) -> tuple[str, ...]:
    """Which lines are for a tensor like `x`."""
    if x.is_complex():
        return LINES["any"] + LINES["complex"] * 3
    found = LINES["any"] + LINES["real"]
    found += LINES[{3: "line", 4: "image", 5: "volume"}.get(x.dim(), "real")] * 2
    if not smooth:
        found += LINES["kinked"]
        found += LINES[{4: "pools", 5: "volume pools"}.get(x.dim(), "kinked")]
    return found


@dataclass(frozen=True)
class Program:
    """A function of its inputs, and how they lie."""

    seed: int
    lines: tuple[str, ...]
    layouts: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    smooth: bool

    @property
    def text(self) -> str:
        names = ", ".join(f"v{place}" for place in range(len(self.inputs)))
        last = len(self.inputs) + len(self.lines) - 1
        body = "".join(
            f"    v{place} = {line}\n" for place, line in enumerate(self.lines, len(self.inputs))
        )
        return f"def function({names}):\n{body}    return v{last}\n"

    def function(self) -> Callable[..., Any]:
        namespace: dict[str, Any] = {"torch": torch, "F": F}
        exec(compile(self.text, f"<program {self.seed}>", "exec"), namespace)
        found: Callable[..., Any] = namespace["function"]
        return found

    def __str__(self) -> str:
        given = "".join(
            f"  v{place}: {tuple(x.shape)} {x.dtype} {layout} {x.stride()}\n"
            for place, (x, layout) in enumerate(zip(self.inputs, self.layouts, strict=True))
        )
        return f"program {self.seed}\n{given}{self.text}"


def program(seed: int) -> Program:
    """The program of a seed."""
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    first, second = draw.choice(DTYPES)
    # Where halves are rounded otherwise, another element may be the largest.
    smooth = first in HALVES or second in HALVES
    shape = draw.choice(SHAPES)
    channels = (shape[1],) if len(shape) > 1 else shape
    inputs, layouts = [], []
    for place, size in enumerate((shape, shape, channels)):
        dtype = first if place == 0 else second
        values = torch.randn(size, generator=generator, dtype=torch.float64)
        if dtype.is_complex:
            values = torch.complex(values, values.roll(1, 0).cos())
        layout = draw.choice([*LAYOUTS])
        inputs.append(LAYOUTS[layout](values.to(dtype)))
        layouts.append(layout)
    lines: list[str] = []
    values_of: list[Any] = list(inputs)
    wanted = draw.randint(1, 5)
    for _ in range(40):
        if len(lines) == wanted:
            break
        x = len(values_of) - 1 if lines and draw.random() < 0.7 else draw.choice([0, 1])
        y = draw.choice([0, 1, max(0, len(values_of) - 1)])
        line = draw.choice(_lines(values_of[x], smooth)).format(x=f"v{x}", y=f"v{y}", w="v2")
        scope = {f"v{place}": value for place, value in enumerate(values_of)}
        try:
            value = eval(line, {"torch": torch, "F": F, **scope})
        except (RuntimeError, ValueError, IndexError, TypeError, ZeroDivisionError):
            continue
        if not isinstance(value, Tensor) or value.numel() > 4000 or not value.isfinite().all():
            continue
        if value.numel() and float(value.detach().abs().max()) < ZERO:
            continue  # A norm of equal elements is rounding: a maximum of that may be any of them.
        lines.append(line)
        values_of.append(value)
    return Program(seed, tuple(lines or ["v0 * 2"]), tuple(layouts), tuple(inputs), smooth)
