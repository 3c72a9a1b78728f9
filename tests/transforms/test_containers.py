"""Arguments and results in containers of any kind that torch knows."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree

import adjoint
from tests.parity import plain


class Unkeyed:
    """A node as most are registered."""

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b


@dataclass
class Registered:
    """A dataclass."""

    a: Any
    b: Any


Named = namedtuple("Named", ["a", "b"])

_pytree.register_pytree_node(
    Unkeyed, lambda node: ([node.a, node.b], None), lambda leaves, _: Unkeyed(*leaves)
)
_pytree.register_dataclass(Registered)


@pytest.mark.parametrize("kind", [Unkeyed, Registered, Named])
def test_containers_of_any_kind(kind: Any) -> None:
    def energy(given: Any) -> Tensor:
        return (given.a.sin() * given.b["x"][0]).sum()  # type: ignore[no-any-return]

    def both(given: Any) -> Any:
        return kind(given.a * given.b["x"][0], {"y": given.a.sin()})

    given = kind(plain(3), {"x": [plain(3)]})
    along = kind(plain(3), {"x": [plain(3)]})
    calls: list[Callable[[Any], Any]] = [
        lambda f: f.grad(energy)(given),
        lambda f: f.vjp(both, given)[1](kind(given.a, {"y": given.a})),
        lambda f: f.jvp(both, (given,), (along,)),
        lambda f: f.jacrev(both)(given),
        lambda f: f.jacfwd(both)(given),
    ]
    for call in calls:
        mine, theirs = (_pytree.tree_flatten(call(each)) for each in (adjoint, torch.func))
        assert mine[1] == theirs[1]
        torch.testing.assert_close(mine[0], theirs[0])
