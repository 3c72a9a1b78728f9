"""What tests of the cache share: functions compiled as in a new process, and what that compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adjoint import compiler
from adjoint.capture import dynamo
from adjoint.runtime.cpu import engine
from adjoint.store.keeping import Store


class Compilations:
    """Counts what is compiled, not read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        for owner, name in (
            (dynamo, "_captured"),
            (compiler, "lower"),
            (compiler, "differentiate"),
            (compiler, "differentiate_where_possible"),
            (engine, "compile_object"),
        ):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.made.append(function.__name__)
            return function(*args, **kwargs)

        return counted

    def take(self) -> list[str]:
        taken, self.made = self.made, []
        return taken


def options(store: Store, **more: Any) -> dict[str, Any]:
    return {"cache": str(store.folder.path), **more}


def fresh(function: Callable[..., Any], store: Store, **more: Any) -> Any:
    """Compiled as in a new process: nothing of the last compilation is left."""
    store.flush()
    torch.compiler.reset()
    dynamic = more.pop("dynamic", None)
    return torch.compile(
        function, backend="adjoint", dynamic=dynamic, options=options(store, **more)
    )


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(torch.tanh(self.first(x)))
        return y


def penalty(net: Any, x: Tensor) -> Tensor:
    """The second derivative of a network, and what a training step does with it."""
    at = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(net(at).sum(), at, create_graph=True)
    return (slope**2).mean()


def gradients(net: Any, of: nn.Module, x: Tensor) -> list[Tensor]:
    of.zero_grad(set_to_none=True)
    penalty(net, x).backward()
    return [each.grad for each in of.parameters() if each.grad is not None]
