from __future__ import annotations

import operator

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint.errors import CaptureError
from adjoint.graph.metadata import tensor_of
from adjoint.graph.operations import in_order
from adjoint.torch_private.fake import make_fake, new_fake_mode
from adjoint.torch_private.operators import OpOverload, is_composite
from adjoint.trace.tracer import Tracer, current_tracer

aten = torch.ops.aten


@pytest.fixture
def tracer() -> Tracer:
    return Tracer(new_fake_mode(), lambda tensor: tensor)


def traced_input(tracer: Tracer, *shape: int, requires_grad: bool = False) -> Tensor:
    fake = make_fake(tracer.fake_mode, torch.randn(shape), False, "x")
    fake.requires_grad_(requires_grad)
    tracer.scope.input(fake, "x")
    return fake


def targets(tracer: Tracer) -> list[object]:
    return [node.target for node in tracer.emitter.graph.nodes if node.op == "call_function"]


def test_an_op_becomes_a_node_with_its_fake_value(tracer: Tracer) -> None:
    x = traced_input(tracer, 3)
    with tracer.fake_mode, tracer:
        y = x.sin()
    assert targets(tracer) == [aten.sin.default]
    assert tensor_of(tracer.node(y)).shape == (3,)


def test_a_paused_tracer_records_nothing(tracer: Tracer) -> None:
    x = traced_input(tracer, 3)
    with tracer.fake_mode, tracer, tracer.paused():
        assert current_tracer() is None
        x.sin()
    assert targets(tracer) == []


def test_the_current_tracer_is_found(tracer: Tracer) -> None:
    assert current_tracer() is None
    with tracer:
        assert current_tracer() is tracer


def test_a_query_of_metadata_is_no_node(tracer: Tracer) -> None:
    x = traced_input(tracer, 3, 4)
    with tracer.fake_mode, tracer:
        assert x.is_contiguous()
        assert x.size() == (3, 4)
    assert targets(tracer) == []


def test_a_saved_output_is_the_output_it_was_detached_from(tracer: Tracer) -> None:
    x = traced_input(tracer, 3, requires_grad=True)
    with tracer.fake_mode, tracer:
        y = x.exp()
        assert y.grad_fn is not None
        saved = y.grad_fn._saved_result  # type: ignore[attr-defined]
        assert tracer.node(saved) is tracer.node(y)


def test_a_write_is_seen_through_every_alias(tracer: Tracer) -> None:
    x = traced_input(tracer, 3, 4)
    with tracer.fake_mode, tracer:
        y = x * 2
        row = y[0]
        y.add_(1)
        assert tracer.node(row).target is aten.select.int
        assert tracer.node(row).args[0] is tracer.node(y)


def test_a_tensor_from_nowhere_is_refused(tracer: Tracer) -> None:
    unknown = make_fake(tracer.fake_mode, torch.randn(3), False, "x")
    with pytest.raises(CaptureError, match="in a way that capture cannot see"):
        tracer.alias(unknown)


def test_ops_with_effects_are_chained_by_a_token(tracer: Tracer) -> None:
    traced_input(tracer, 3)
    tracer._in_order(aten.sin.default, (), {}, None)
    tracer._in_order(aten.cos.default, (), {}, None)
    first, second = (n for n in tracer.emitter.graph.nodes if n.target is in_order)
    token = second.args[0]
    assert token.target is operator.getitem
    assert token.args == (first, 0)


def test_composite_operators_are_decomposed_below_autograd_too() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.einsum("ij,kj->ik", x.to(torch.float64), x.double()).reshape(-1)

    graphs = []
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            graph = adjoint.capture(function, torch.ones(3, 4)).graph_module.graph
        graphs.append([n.target for n in graph.nodes if isinstance(n.target, OpOverload)])
    assert graphs[0] == graphs[1]
    assert not any(map(is_composite, graphs[1]))
