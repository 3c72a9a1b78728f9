from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from adjoint.graph.metadata import value_of
from adjoint.rewrite.engine import rewrite
from adjoint.rewrite.patterns import Match, Wildcard, call
from adjoint.rewrite.recording import Untraceable
from adjoint.rewrite.rules import Rule, Traced
from adjoint.rewrite.tracing import pattern_of
from tests.rewriting import graph_of, matched

MATRIX = torch.ones(2, 3)


def test_writes_to_what_the_function_has_made_are_new_values() -> None:
    def pattern(x: Any) -> Any:
        return torch.relu_(x + 1).mul_(2)

    def pure(x: Any) -> Any:
        return torch.relu(x + 1) * 2

    assert matched(pattern, [MATRIX], pattern, MATRIX) == 1
    assert matched(pattern, [MATRIX], pure, MATRIX) == 1
    assert matched(pure, [MATRIX], pattern, MATRIX) == 1


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x.detach().view(-1).mul_(2), "which writes to its argument"),
        (lambda x: (y := x + 1, y[0].mul_(2), y)[-1], "reads a tensor after a write"),
        (lambda x: (y := x + 1, z := y.t(), y.mul_(2), z)[-1].sin(), "reads a tensor after"),
        (
            lambda x: (y := x + 1, y.mul_(2), z := y.t(), y.mul_(2), z)[-1].sin(),
            "reads a tensor after a write",
        ),
    ],
)
def test_writes_to_shared_memory_are_refused(function: Any, why: str) -> None:
    with pytest.raises(Untraceable, match=why):
        pattern_of(function, [MATRIX])


def test_a_write_without_history_is_refused() -> None:
    with pytest.raises(Untraceable, match="requires grad, without its history"):
        pattern_of(lambda x, y: F.cosine_similarity(x, y), [MATRIX, MATRIX])


ATTEND = torch.ops.aten._scaled_dot_product_efficient_attention.default


@pytest.mark.parametrize("told", [(False,), (True,)], ids=["by torch without grad", "with grad"])
def test_a_replacement_returns_what_its_derivative_reads(told: tuple[bool]) -> None:
    """Fake values of a graph require no grad, so torch would leave the logsumexp out."""
    query = torch.ones(2, 3, 8, 4)

    def plain(match: Match) -> Traced:
        return Traced(lambda q: ATTEND(q, q, q, None, *told)[0], (match.bound["q"],))

    rule = Rule("attend", (call(torch.ops.aten.sin.default, Wildcard("q")),), plain)
    made = rewrite(graph_of(lambda q: q.sin().sum(), query), [rule], "test")
    (node,) = made.graph.find_nodes(op="call_function", target=ATTEND)
    assert node.args[4] is True
    assert value_of(node)[1].shape == (2, 3, 32)
