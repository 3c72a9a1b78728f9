"""`vmap` and linear maps: what `torch.func` takes and refuses is taken and refused here."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint

func: Any = torch.func

X = torch.linspace(0.1, 1, 5, dtype=torch.float64)
ROWS = torch.linspace(-1, 1, 15, dtype=torch.float64).view(3, 5)

BATCHED: dict[str, Callable[[Any], Any]] = {
    "one": lambda f: f.vmap(torch.sin)(ROWS),
    "some": lambda f: f.vmap(torch.dot, in_dims=(0, None))(ROWS, X),
    "by columns": lambda f: f.vmap(torch.sin, in_dims=1, out_dims=1)(ROWS),
    "a tree": lambda f: f.vmap(lambda d: {"y": d["x"] * d["z"]}, ({"x": 0, "z": None},))(
        {"x": ROWS, "z": X}
    ),
    "chunks": lambda f: f.vmap(torch.sin, chunk_size=2)(ROWS),
    "keywords": lambda f: f.vmap(lambda x, y: x * y)(ROWS, y=X),
    "the same draws": lambda f: f.vmap(lambda x: x + torch.rand(5).ge(2), randomness="same")(ROWS),
}


@pytest.mark.parametrize("name", BATCHED)
def test_batches(name: str) -> None:
    torch.testing.assert_close(BATCHED[name](adjoint), BATCHED[name](func))


UNBATCHED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no such axis": (
        lambda f: f.vmap(torch.sin, in_dims=3)(X),
        "Got in_dim=3 for some input",
    ),
    "no axis": (
        lambda f: f.vmap(torch.sin, in_dims=None)(X),
        "expected `in_dims` to be int",
    ),
    "sizes differ": (
        lambda f: f.vmap(torch.add)(X, ROWS),
        "the same size in the mapped dimension",
    ),
    "draws": (
        lambda f: f.vmap(lambda x: x + torch.rand(()))(X),
        "called random operation while in randomness error mode",
    ),
    "no such randomness": (
        lambda f: f.vmap(torch.sin, randomness="some"),
        "Only allowed values for randomness are",
    ),
    "chunks of nothing": (
        lambda f: f.vmap(torch.sin, chunk_size=0),
        "chunk_size should be None or greater than 0",
    ),
    "no tensor": (
        lambda f: f.vmap(lambda x: 1)(X),
        "must only return Tensors, got type <class 'int'>",
    ),
    "tangent of another dtype": (
        lambda f: f.linearize(torch.sin, X)[1](X.float()),
        "in flattened pytree doesn't match the dtype torch.float64 of the corresponding primal",
    ),
    "tangent of another shape": (
        lambda f: f.linearize(torch.sin, X)[1](X[:2]),
        "in flattened pytree doesn't match the shape torch.Size([5]) of the corresponding primal",
    ),
    "tangents missing": (
        lambda f: f.linearize(torch.dot, X, X)[1](X),
        "to have the same argspec as the primals",
    ),
}


@pytest.mark.parametrize("name", UNBATCHED)
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr")
def test_batches_and_linear_maps_refused_with_the_same_error(name: str) -> None:
    call, says = UNBATCHED[name]
    with pytest.raises((RuntimeError, ValueError, TypeError), match=re.escape(says)) as theirs:
        call(func)
    with pytest.raises(theirs.type, match=re.escape(says)) as mine:
        call(adjoint)
    assert mine.type is theirs.type


def test_a_linear_map_for_many_tangents() -> None:
    def function(x: Tensor, tree: Any) -> Any:
        return {"a": x.sin() * tree["w"], "b": (x.sum(), torch.ones(2))}

    given = (X, {"w": X.exp()})
    value, push_forward = adjoint.linearize(function, *given)
    torch.testing.assert_close(value, function(*given))
    for along in ((X, {"w": X}), (X.cos(), {"w": X * 0})):
        wanted = func.jvp(function, given, along)[1]
        torch.testing.assert_close(push_forward(*along), wanted)
