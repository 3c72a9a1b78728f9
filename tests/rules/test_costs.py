from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

import adjoint
from adjoint.loops.pointwise import TABLE
from adjoint.rules.costs import (
    FUNCTION_COST_IN_OPERATORS,
    Cost,
    cost_of,
    effort,
    functions_in,
    is_quick,
    seconds_of,
)
from adjoint.target import Rates
from adjoint.torch_private.fake import new_fake_mode
from adjoint.torch_private.operators import OpOverload

aten = torch.ops.aten

# What is saved rather than recomputed.
LONG = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cos",
    "cosh",
    "digamma",
    "elu",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "gelu",
    "gelu_backward",
    "igamma",
    "igammac",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "logaddexp",
    "logit",
    "mish",
    "polygamma",
    "pow",
    "sigmoid",
    "silu",
    "silu_backward",
    "sin",
    "sinc",
    "sinh",
    "softplus",
    "softplus_backward",
    "tan",
    "tanh",
    "xlogy",
]


def call(op: Any, *args: Any, device: str = "cpu", dtype: torch.dtype = torch.float32) -> fx.Node:
    graph = fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(op, tuple(x if arg is Ellipsis else arg for arg in args))
    with new_fake_mode():
        node.meta["val"] = torch.empty(3, device=device, dtype=dtype)
    return node


def arguments(op: Any) -> list[Any]:
    """As few as it takes; each number is one that makes nothing simple."""
    found: list[Any] = []
    for argument in op._schema.arguments:
        if argument.has_default_value():
            break
        kind = str(argument.type)
        found.append(... if "Tensor" in kind else 0.3 if kind in ("number", "float") else None)
    return found


POINTWISE = [e for e in TABLE if isinstance(e, OpOverload) and torch.Tag.pointwise in e.tags]


@pytest.mark.parametrize("op", POINTWISE, ids=str)
def test_what_applies_a_function_is_saved(op: Any) -> None:
    assert is_quick(call(op, *arguments(op))) == (op.overloadpacket.__name__ not in LONG)


def test_what_has_no_formula_is_listed_or_found_by_another_overload() -> None:
    assert not is_quick(call(aten.lgamma.default, ...))
    assert not is_quick(call(aten.igamma.default, ..., ...))
    assert not is_quick(call(aten.xlogy.Scalar_Self, 2.0, ...))
    assert not is_quick(call(aten.xlogy.Scalar_Other, ..., 2.0))
    assert is_quick(call(aten.hypot.default, ..., ...))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -0.5, -1, -2])
def test_a_power_that_is_a_few_products_is_quick(exponent: float) -> None:
    assert is_quick(call(aten.pow.Tensor_Scalar, ..., exponent))


@pytest.mark.parametrize("exponent", [4, 1.5, 2j])
def test_other_powers_are_not(exponent: complex) -> None:
    assert not is_quick(call(aten.pow.Tensor_Scalar, ..., exponent))


def test_a_gpu_computes_activations_of_halves_while_it_loads() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        assert is_quick(call(aten.gelu.default, ..., device="cuda", dtype=dtype))
        assert not is_quick(call(aten.exp.default, ..., device="cuda", dtype=dtype))
        assert not is_quick(call(aten.gelu.default, ..., dtype=dtype))
    assert not is_quick(call(aten.gelu.default, ..., device="cuda"))


def test_a_function_counts_for_several_operators() -> None:
    assert functions_in(["add", "exp", "fmod", "philox", "mul"]) == 3
    assert effort(5, 0) == 5
    assert effort(5, 2) == 5 + 2 * (FUNCTION_COST_IN_OPERATORS - 1)


def test_the_cost_of_a_node() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((x @ w).exp() * 2).t().sin()

    graph = adjoint.capture(function, torch.rand(4, 8), torch.rand(8, 16)).graph_module.graph
    product, function_, scaled, view, _ = (n for n in graph.nodes if n.op == "call_function")
    assert cost_of(product) == Cost(2 * 4 * 8 * 16, 4 * (4 * 8 + 8 * 16 + 4 * 16))
    assert cost_of(function_) == Cost(FUNCTION_COST_IN_OPERATORS * 64, 4 * 2 * 64)
    assert cost_of(scaled) == Cost(64, 4 * 2 * 64)
    assert cost_of(view) == Cost()
    assert (cost_of(scaled) + cost_of(view)).seconds(Rates(512.0, 1e9)) == 1


def test_fused_results_are_not_stored() -> None:
    """The product is stored, and the last of two pointwise ops after it, which a sum reads."""
    captured = adjoint.capture(
        lambda x, w: (x @ w).neg().abs().sum(), *map(torch.ones, [(8, 8)] * 2)
    )
    graph = captured.graph_module.graph
    traffic_alone = Rates(bytes_per_second=1, operators_per_second=1e30)
    matrix = 8 * 8 * 4
    expected = 3 * matrix + matrix + (matrix + 4)
    assert seconds_of(graph, traffic_alone) == expected
    assert sum(cost_of(node).bytes for node in graph.nodes) == expected + 3 * matrix
