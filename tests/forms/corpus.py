"""Programs whose graphs and plans are written and read: each uses another part of the forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Case = tuple[Callable[..., Any], tuple[Any, ...]]


def _rows(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).tanh().softmax(-1).sum(0)


def _normalized(x: Tensor, scale: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x, x.shape[-1:], scale)) * 0.5


def _gathered(x: Tensor, places: Tensor) -> Tensor:
    taken = x[places]
    return torch.zeros_like(x).index_add(0, places, taken * taken)


def _dropped(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5).exp()


def _viewed(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin().t()
    return y[1:], y.reshape(-1)


def _constant(x: Tensor) -> Tensor:
    return x * torch.tensor([1.0, 2.0, 3.0])


def _branches(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


def _mixed(x: Tensor) -> Tensor:
    return (x.half() * 3).float().cumsum(0) + x.to(torch.float64).sqrt()


def _checkpointed(x: Tensor) -> Any:
    return torch.utils.checkpoint.checkpoint(
        lambda x: x.sin().exp().cos(), x * 2, use_reentrant=False
    )


def _written(x: Tensor) -> Tensor:
    y = x.clone()
    y[0] = 1.0
    y.mul_(2)
    return y.exp()


def _grad_inside(x: Tensor) -> Tensor:
    with torch.enable_grad():
        y = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(y.sin().prod(), y, create_graph=True)
    return slope * x


def _attended(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x, is_causal=True)


def _folded(x: Tensor) -> Tensor:
    y = x.reshape(-1, 2, x.shape[1]).transpose(0, 1)
    return (y.contiguous().view(2, -1, 3) * y.sum()).cumsum(1)


def _network() -> Case:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 2), nn.LayerNorm(2))
    return net, (torch.randn(5, 3),)


X = torch.linspace(-1, 2, 12).reshape(4, 3)

CASES: dict[str, Case] = {
    "pointwise": (lambda x: (x * 2 + 1).tanh(), (X,)),
    "rows": (_rows, (X, torch.randn(3, 5))),
    "normalized": (_normalized, (X, torch.ones(3))),
    "gathered": (_gathered, (X, torch.tensor([0, 2, 2, 3]))),
    "dropped": (_dropped, (X,)),
    "viewed": (_viewed, (X,)),
    "constant": (_constant, (X,)),
    "branches": (_branches, (X,)),
    "mixed": (_mixed, (X,)),
    "checkpointed": (_checkpointed, (X,)),
    "written": (_written, (X,)),
    "derivative inside": (_grad_inside, (X,)),
    "attended": (_attended, (torch.randn(1, 2, 8, 4),)),
    "folded": (_folded, (X,)),
    "network": _network(),
}
