from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from adjoint.errors import CaptureError
from adjoint.graph.evaluation import evaluate
from adjoint.graph.metadata import Mode
from adjoint.torch_private.fake import make_fake, new_fake_mode
from adjoint.trace.subgraph import Body, finish_graph, match_lifted, opaque
from adjoint.trace.tracer import Tracer


@pytest.fixture
def tracer() -> Tracer:
    return Tracer(new_fake_mode(), lambda tensor: tensor)


def outer(tracer: Tracer, count: int) -> list[Tensor]:
    fakes = [make_fake(tracer.fake_mode, torch.randn(3), False, f"x{i}") for i in range(count)]
    for fake in fakes:
        tracer.scope.input(fake, "x")
    return fakes


def inputs(module: torch.fx.GraphModule) -> int:
    return len(module.graph.find_nodes(op="placeholder"))


def test_a_body_takes_what_it_uses_from_outside(tracer: Tracer) -> None:
    x, y, _ = outer(tracer, 3)
    body = Body(tracer)
    with tracer.fake_mode, tracer:
        result = body.run(lambda a: a * y, [x])
    module = body.close(result)
    assert body.scope.lifted == [y]
    assert not body.written()
    assert inputs(module) == 2
    two, three = torch.full((3,), 2.0), torch.full((3,), 3.0)
    assert torch.equal(evaluate(module, [two, three]), torch.full((3,), 6.0))


@pytest.mark.parametrize("operand", [True, False])
def test_a_body_knows_what_it_wrote_to(operand: bool, tracer: Tracer) -> None:
    x, y = outer(tracer, 2)
    body = Body(tracer)
    with tracer.fake_mode, tracer:
        body.run(lambda a: (a if operand else y).add_(1), [x])
    assert body.written() == [x if operand else y]


def test_bodies_are_made_to_take_the_same_values(tracer: Tracer) -> None:
    x, y, z = outer(tracer, 3)
    bodies = [Body(tracer), Body(tracer)]
    functions: list[Any] = [lambda a: a * y, lambda a: a + z * y]
    with tracer.fake_mode, tracer:
        results = [body.run(f, [x]) for body, f in zip(bodies, functions, strict=True)]
    lifted = match_lifted(bodies, results)
    modules = [body.close(result) for body, result in zip(bodies, results, strict=True)]
    assert [inputs(module) for module in modules] == [3, 3]
    assert [each is y or each is z for each in lifted] == [True, True]
    values = {id(y): torch.full((3,), 5.0), id(z): torch.full((3,), 7.0)}
    given = [torch.ones(3), *(values[id(each)] for each in lifted)]
    assert torch.equal(evaluate(modules[0], given), torch.full((3,), 5.0))
    assert torch.equal(evaluate(modules[1], given), torch.full((3,), 36.0))


def test_opaque_results_depend_on_inputs() -> None:
    x = torch.ones(3, requires_grad=True)
    result, number = opaque([torch.ones(2), 5], [x, 3], "cond")
    assert result.requires_grad
    assert number == 5
    with pytest.raises(CaptureError, match="a derivative of cond") as raised:
        result.sum().backward()
    assert "opaque([torch.ones(2), 5]" in str(raised.value)


def test_a_finished_graph_has_its_attributes(tracer: Tracer) -> None:
    constant = torch.arange(3.0)
    node = tracer.emitter.attribute("constant", constant)
    tracer.emitter.graph.output((node,))
    module = finish_graph(tracer.emitter, Mode(grad_enabled=False))
    assert evaluate(module, [])[0] is constant
    assert module.meta["entry_mode"] == Mode(grad_enabled=False)
