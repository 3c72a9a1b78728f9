"""Every op that a rule emits has a derivative in turn, and shapes may be symbols."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from adjoint.compiler import Compiler
from adjoint.differentiate.sweep import Sweep
from adjoint.graph.metadata import outputs_of
from adjoint.graph.operations import with_data
from adjoint.graph.purity import remove_dead_code
from adjoint.options import Options
from adjoint.rules.registry import COMPOSITIONS, NON_DIFFERENTIABLE, VJPS
from tests.differentiation import bridged
from tests.rules import (
    test_contraction,
    test_indexing,
    test_pointwise,
    test_reduction,
    test_scan,
    test_view,
)
from tests.rules.rows import Row

FAMILIES = [
    test_contraction,
    test_indexing,
    test_pointwise,
    test_reduction,
    test_scan,
    test_view,
]
ROWS: list[Row] = [row for family in FAMILIES for row in family.ROWS]


def joint(row: Row, dynamic: bool = False) -> Any:
    """The joint graph of the row's second derivative."""
    inputs = row.inputs()
    module = bridged(row.function, *inputs, dynamic=dynamic).captured.graph_module
    for _ in range(2):
        outputs = outputs_of(module.graph)
        values = [getattr(each, "meta", {}).get("val") for each in outputs]
        of = [
            i for i, v in enumerate(values) if isinstance(v, torch.Tensor) and v.is_floating_point()
        ]
        module = Sweep(module, of[-1:], range(len(inputs))).run()
        remove_dead_code(module.graph)
    return module


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_rules_emit_can_be_differentiated(row: Row) -> None:
    assert joint(row)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_sizes_may_be_symbols(row: Row) -> None:
    if row.name == "cat-empty":
        pytest.skip("an empty tensor fits only where its size is known")
    inputs = row.inputs()
    compiled = bridged(row.function, *inputs, dynamic=True)
    wanted, found = row.function(*inputs), compiled(*inputs)
    for mine, theirs in zip(_listed(found), _listed(wanted), strict=True):
        ones = torch.ones_like(theirs)
        torch.testing.assert_close(
            torch.autograd.grad(mine, inputs, ones, retain_graph=True, allow_unused=True),
            torch.autograd.grad(theirs, inputs, ones, retain_graph=True, allow_unused=True),
        )


def _listed(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


def test_compositions_are_for_ops_without_a_rule() -> None:
    assert not COMPOSITIONS.keys() & (VJPS.keys() | NON_DIFFERENTIABLE)


def cost(row: Row) -> tuple[int, int]:
    """Of the first derivative: nodes of the backward graph, and values saved for it."""
    inputs = row.inputs()
    module = bridged(row.function, *inputs).captured.graph_module
    recorded = Compiler(Options()).derivative(module, range(len(inputs)))
    assert recorded is not None
    nodes = recorded.first_backward.graph_module.graph.nodes
    saved = len(recorded.saved_inputs) + len(recorded.saved_outputs)
    return sum(node.op == "call_function" for node in nodes), saved


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_rule_costs_no_more_than_torchs_formula(
    row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, saved = cost(row)
    for op in list(VJPS):
        if op is not with_data:
            monkeypatch.delitem(VJPS, op)
    derived_nodes, derived_saved = cost(row)
    if row.name == "polar":
        return  # Torch's formula is wrong where the length is not positive: it has no say.
    assert nodes <= derived_nodes
    assert saved <= derived_saved
