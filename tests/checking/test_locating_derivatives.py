from __future__ import annotations

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint.checking.locating_derivatives import DerivativeSearch, backward_of
from adjoint.compiler import Compiler
from adjoint.graph.evaluation import evaluate
from adjoint.options import Options
from tests.checking.planting import wrong_kernel, wrong_rule

aten = torch.ops.aten
X = torch.linspace(0.1, 1.0, 5, dtype=torch.float64)
COTANGENT = torch.full((5,), 2.0, dtype=torch.float64)
OPTIONS = Options(target="native")


def program(x: Tensor) -> Tensor:
    return x.exp() * x.cos()


def slope(x: Tensor) -> Tensor:
    return x.exp() * (x.cos() - x.sin())


def differentiation() -> DerivativeSearch:
    graph_module = adjoint.capture(program, X.clone().requires_grad_()).graph_module
    derivative = Compiler(OPTIONS).derivative(graph_module, [0])
    assert derivative is not None
    return DerivativeSearch(derivative, [0], [X], [(0, COTANGENT)], [COTANGENT * slope(X)], OPTIONS)


def test_nothing_is_blamed_for_what_is_right() -> None:
    assert differentiation().culprit() is None


@pytest.mark.parametrize("op", [aten.cos.default, aten.exp.default])
def test_a_wrong_rule_is_told_from_others(op: torch._ops.OpOverload) -> None:
    with wrong_rule(op, lambda x: 3 * x):
        found = differentiation().culprit()
    assert found is not None
    assert found.op == str(op)
    assert f"the derivative of {op} is wrong" in found.why
    assert found.source is not None
    assert "x.exp() * x.cos()" in found.source.text


def test_a_wrong_kernel_of_the_backward_is_found_first() -> None:
    with wrong_kernel(aten.sin.default):
        found = differentiation().culprit()
    assert found is not None
    assert found.op == "aten.sin.default"
    assert "kernel" in found.why


def test_a_backward_graph_with_what_it_is_given() -> None:
    graph_module = adjoint.capture(program, X.clone().requires_grad_()).graph_module
    backward, given = backward_of(graph_module, [X], [0], {0: COTANGENT}, Compiler(OPTIONS))
    with torch.no_grad():
        (gradient,) = evaluate(backward, given)
    torch.testing.assert_close(gradient, COTANGENT * slope(X))
