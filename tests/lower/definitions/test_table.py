from __future__ import annotations

from typing import Any

import pytest
import torch

from adjoint.loops.pointwise import TABLE
from adjoint.lower.definitions.table import CONSTANTS, FAMILIES, RULES, definition_of
from tests.lowering import calls, graph_of, lower


@pytest.mark.parametrize(
    ("call", "inputs"),
    [
        (lambda x: x.to(torch.complex64), [torch.ones(3)]),
        (lambda x: torch.arange(0, 1, 0.3) + x, [torch.ones(4)]),
        (lambda x, i: x.half().index_add(0, i, x.half()), [torch.ones(1), torch.tensor([0])]),
    ],
)
def test_declined(call: Any, inputs: list[torch.Tensor]) -> None:
    """What has no definition is called."""
    assert calls(lower(graph_of(call, inputs)))


def test_each_operator_is_of_one_family() -> None:
    assert len(RULES) == sum(len(family.RULES) for family in FAMILIES)
    assert not RULES.keys() & TABLE.keys()


def test_constants_read_nothing_that_is_computed() -> None:
    graph = graph_of(lambda x: [torch.full_like(x, 2.0), torch.ones(3) + x], [torch.ones(3)]).graph
    made = [node.target for node in graph.nodes if definition_of(node) is not None]
    assert [target in CONSTANTS for target in made] == [True, True, False]
