from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from adjoint.errors import RewriteError
from adjoint.graph.show import show
from adjoint.rewrite.engine import MATCHES, rewrite, rewriting
from adjoint.rewrite.patterns import Wildcard, call
from adjoint.rewrite.rules import Edit, Rule, Traced, equation, rewrites
from tests.rewriting import calls, graph_of, rewritten, targets

aten = torch.ops.aten
x, y, n = Wildcard("x"), Wildcard("y"), Wildcard("n")
NEG, SIN, COS, MUL = aten.neg.default, aten.sin.default, aten.cos.default, aten.mul.Tensor
NEGATIONS = equation("negations", call(NEG, call(NEG, x, shared=True)), x)
CLONES = equation("clones", call(aten.clone.default, x, ...), x)
ALIASES = equation("aliases", call((aten.alias.default, aten.view.default), x, ...), x)


def test_rules_are_applied_until_none_does() -> None:
    made = rewritten([NEGATIONS], lambda a: a.neg().neg().neg().neg().neg() * 2, torch.randn(3))
    assert targets(made.graph_module) == [NEG, MUL]
    assert made.matches == {"negations": 2}
    assert made.graph_module.meta[MATCHES] == {"negations": 2}


def test_one_rule_makes_room_for_another() -> None:
    absolute = aten.abs.default
    rules = [
        equation("abs-of-neg", call(absolute, call(NEG, x)), call(absolute, x)),
        equation("abs-of-abs", call(absolute, call(absolute, x)), call(absolute, x)),
    ]
    made = rewritten(rules, lambda a: a.abs().neg().abs() + 1, torch.randn(4))
    assert targets(made.graph_module) == [absolute, aten.add.Tensor]


def test_a_graph_in_which_nothing_matches_is_returned_itself() -> None:
    module = graph_of(lambda a: a.neg() + 1, torch.ones(2))
    assert rewrite(module, [NEGATIONS], "tested") is module


def test_rules_that_undo_each_other_are_named() -> None:
    rules = [
        equation("to-cos", call(SIN, x), call(COS, x)),
        equation("to-sin", call(COS, x), call(SIN, x)),
        NEGATIONS,
    ]
    with pytest.raises(RewriteError, match="'to-cos', 'to-sin' undo what they did") as caught:
        rewriting(graph_of(lambda a: a.sin().neg().neg(), torch.ones(2)), rules, "circles")
    assert caught.value.graph_pass == "circles"


def test_a_replacement_that_contains_its_pattern_is_named_with_node_and_line() -> None:
    rule = equation("more", call(SIN, x), call(SIN, call(NEG, x)))
    module = graph_of(lambda a: a.sin(), torch.ones(2))
    before = show(module)
    with pytest.raises(RewriteError) as caught:
        rewriting(module, [rule], "growing")
    assert show(module) == before
    message = str(caught.value)
    assert "rule 'more' of pass 'growing' at sin" in message
    assert "contains what it replaces" in message
    assert "test_engine.py" in message


def test_an_error_names_rule_pass_node_and_line_and_leaves_the_graph() -> None:
    @rewrites(call(COS, x))
    def summed(x: Any) -> Any:
        return Traced(torch.sum, [x])

    module = graph_of(lambda a: a.neg().neg().sin().cos(), torch.ones(2))
    before = show(module)
    with pytest.raises(RewriteError) as caught:
        rewriting(module, [NEGATIONS, summed], "broken")
    # The other rule had been applied.
    assert show(module) == before
    message = str(caught.value)
    assert "rule 'summed' of pass 'broken' at cos" in message
    assert "aten.cos.default(" in message
    assert "test_engine.py" in message


def test_other_strides_are_passed_on_to_users() -> None:
    dense = equation("dense", call(aten.clone.default, x, memory_format=torch.contiguous_format), x)
    inputs = torch.randn(3, 4)
    made = rewritten([dense], lambda a: a.sin().t().contiguous().cos().sum(1), inputs)
    assert made.matches == {"dense": 1}
    assert made.refreshed == 2
    # A result of the program keeps its strides.
    made = rewritten([dense], lambda a: a.sin().t().contiguous().cos(), inputs)
    assert made.matches == {}
    # So does what is viewed in a way that only those strides allow.
    made = rewritten([dense], lambda a: a.sin().t().contiguous().view(-1).cos().sum(), inputs)
    assert made.matches == {}


def test_one_change_computes_few_values_anew() -> None:
    """Torch computes nearly all values anew after any change."""

    def function(a: Tensor) -> Tensor:
        b = a.neg().neg()
        for _ in range(20):
            b = b.sin()
        return b

    made = rewritten([NEGATIONS], function, torch.ones(2, 3))
    assert made.refreshed == 0


def test_an_edit_in_place() -> None:
    @rewrites(call(MUL, x, 2))
    def doubled(x: Any) -> Any:
        return Edit(aten.add.Tensor, [x, x])

    made = rewritten([doubled], lambda a: (a * 2).sin(), torch.randn(2))
    assert calls(made.graph_module, MUL) == 0
    assert calls(made.graph_module, aten.add.Tensor) == 1

    @rewrites(call(MUL, x, 2))
    def summed(x: Any) -> Any:
        return Edit(aten.sum.default, [x])

    with pytest.raises(RewriteError, match=r"the replacement computes f32\[\], the"):
        rewritten([summed], lambda a: (a * 2).sin(), torch.randn(2))


def test_outputs_in_between_which_something_is_computed_are_left_alone() -> None:
    @rewrites(call(SIN, x), call(COS, y))
    def both(x: Any, y: Any) -> Any:
        return call(SIN, x), call(COS, y)

    # The argument of `cos` is computed from `sin`.
    module = graph_of(lambda a: a.sin().exp().cos(), torch.ones(2))
    assert rewriting(module, [both], "tested").matches == {}


def test_rules_cost_nothing_where_they_cannot_match() -> None:
    looked: list[Any] = []

    def look(node: Any) -> bool:
        looked.append(node)
        return False

    rule = Rule("r", (call(NEG, x, where=look),), lambda _: None)
    rewriting(graph_of(lambda a: a.sin().cos().neg().exp(), torch.ones(2)), [rule], "tested")
    assert len(looked) == 1
