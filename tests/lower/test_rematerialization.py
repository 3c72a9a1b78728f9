from __future__ import annotations

from torch import Tensor

from tests.lower.test_recomputation import BYTES, WIDE, W, X, both, middle, planned, with_late_call
from tests.lowering import calls, graph_of, launches


def test_before_a_late_call_a_twin_is_made() -> None:
    plain, plan, less = both(with_late_call, X, W, WIDE)
    assert less == BYTES
    assert len(launches(plan)) == len(launches(plain)) + 1
    assert len(calls(plan)) == len(calls(plain))


def test_a_twin_has_the_name_of_the_value() -> None:
    """By that it is known if its kernel is refused."""
    graph_module = graph_of(with_late_call, (X, W, WIDE))
    names = {node.name for node in graph_module.graph.nodes}
    plan = planned(with_late_call, X, W, WIDE)
    made = [name for each in launches(plan) for name in each.nodes]
    assert set(made) <= names
    assert made.count("mul_1") == 2


def test_views_of_twins_are_as_those_of_the_value() -> None:
    def function(x: Tensor, w: Tensor, wide: Tensor) -> list[Tensor]:
        y = x @ w
        a = y * (1 - x * x)
        d = middle(a, w, wide)
        one, other = a.split(16, 1)
        return [one.t() @ d, d.t() @ other, (y * d).sum()]

    assert both(function, X, W, WIDE)[2] == BYTES
