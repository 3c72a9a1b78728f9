from __future__ import annotations

import pytest
import torch
from torch import Tensor

from adjoint.torch_private.fake import make_fake, new_fake_mode
from adjoint.trace import aliasing
from adjoint.trace.scope import Scope
from adjoint.trace.tracer import Tracer


@pytest.fixture
def tracer() -> Tracer:
    return Tracer(new_fake_mode(), lambda tensor: tensor)


def fake(tracer: Tracer) -> Tensor:
    return make_fake(tracer.fake_mode, torch.randn(3), False, "x")


def test_a_tensor_is_lifted_when_it_is_first_read(tracer: Tracer) -> None:
    x = fake(tracer)
    tracer.root.input(x, "x")
    inner = Scope(tracer.untraced, tracer.root)
    alias = inner.lift(x)
    assert inner.lifted == []
    node = aliasing.read(inner.emitter, alias)
    assert node.op == "placeholder"
    assert [each is x for each in inner.lifted] == [True]


def test_a_lifted_value_is_one_input(tracer: Tracer) -> None:
    x, size = fake(tracer), tracer.unknown_number()
    inner = Scope(tracer.untraced, tracer.root)
    for value in (x, size):
        assert inner.lifted_node(value) is inner.lifted_node(value)
    assert len(inner.lifted) == 2
    assert len(inner.emitter.graph.find_nodes(op="placeholder")) == 2


def test_a_scope_knows_the_tensors_of_outer_scopes(tracer: Tracer) -> None:
    x, y = fake(tracer), fake(tracer)
    tracer.root.input(x, "x")
    inner = Scope(tracer.untraced, tracer.root)
    inner.input(y, "y")
    assert inner.knows(x)
    assert not tracer.root.knows(y)
    assert [
        alias.tensor is each for alias, each in zip(inner.all_aliases(), (y, x), strict=True)
    ] == [True] * 2
