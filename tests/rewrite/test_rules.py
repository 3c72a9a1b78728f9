from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from adjoint.errors import RewriteError
from adjoint.rewrite.patterns import Rest, Wildcard, call, one_of
from adjoint.rewrite.rules import Rule, equation, rewrites, roots_of, traced_rules
from tests.rewriting import calls, rewritten

aten = torch.ops.aten
x, y = Wildcard("x"), Wildcard("y")
NEG = aten.neg.default


def test_an_equation() -> None:
    rule = equation("merge-negations", call(NEG, call(NEG, x)), x)
    made = rewritten([rule], lambda a: a.sin().neg().neg() + 1, torch.randn(3))
    assert made.matches == {"merge-negations": 1}
    assert calls(made.graph_module, NEG) == 0


def test_a_function_of_what_the_wildcards_match() -> None:
    inner, outer = Wildcard("inner"), Wildcard("outer")

    @rewrites(call(aten.permute.default, call(aten.permute.default, x, inner), outer))
    def merge_permutes(x: Any, inner: list[int], outer: list[int]) -> Any:
        """permute(permute(x, p), q) = permute(x, p[q])"""
        return call(aten.permute.default, x, [inner[axis] for axis in outer])

    assert merge_permutes.name == "merge-permutes"
    assert merge_permutes.meaning == "permute(permute(x, p), q) = permute(x, p[q])"
    made = rewritten(
        [merge_permutes], lambda a: a.permute(1, 2, 0).permute(2, 1, 0).sin(), torch.randn(2, 3, 4)
    )
    assert calls(made.graph_module, aten.permute.default) == 1


def test_a_function_that_returns_none_does_not_apply() -> None:
    @rewrites(call(NEG, x))
    def never(match: Any) -> None:
        assert match.root.target is NEG

    assert rewritten([never], lambda a: a.neg(), torch.randn(3)).matches == {}


def test_two_torch_functions() -> None:
    rules = traced_rules(
        lambda x, y: torch.neg(x) + torch.neg(y),
        lambda x, y: -(x + y),
        [torch.ones(2)] * 2,
        name="r",
    )
    for dynamic in (False, True):
        made = rewritten(rules, lambda a: (-a + -(a * 2)) * 2, torch.ones(3, 4), dynamic=dynamic)
        assert made.matches == {"r": 1}
        assert calls(made.graph_module, NEG) == 1


def test_the_operators_that_a_pattern_ends_in() -> None:
    assert roots_of(one_of(call(NEG, x), call(aten.sin.default, x))) == [NEG, aten.sin.default]
    assert roots_of(one_of(call(NEG, x), x)) == []


MALFORMED: list[tuple[Any, str]] = [
    (lambda: Rule("r", (x,), lambda match: None), "not a call of an operator"),
    (lambda: equation("r", call(NEG, x), y), "its pattern has no wildcard 'y'"),
    (lambda: equation("r", call(NEG, x, y), x), "takes 1 arguments, not 2"),
    (lambda: equation("r", call(NEG, x, alpha=y), x), "neg.default has no parameter 'alpha'"),
    (lambda: equation("r", call(NEG, Wildcard("")), 1), "a wildcard has no name"),
    (
        lambda: equation("r", call(aten.add_.Tensor, x, y), x),
        "writes to its argument, and graphs have no such operator",
    ),
    (lambda: equation("r", call(NEG, call("add", x)), x), "'add' is not an operator"),
    (lambda: equation("r", call(NEG, x, commutes=True), x), "does not commute"),
    (lambda: equation("r", call(aten.cat.default, [Rest("a"), x]), x), "after a rest of elements"),
    (lambda: equation("r", call(aten.add.Tensor, Rest("a"), x), x), "after a rest of arguments"),
    (lambda: equation("r", call(NEG, one_of()), x), "one of nothing"),
    (lambda: equation("r", call(NEG, fx.Graph().placeholder("n")), 1), "the node n of some graph"),
    (lambda: rewrites(call(NEG, x))(lambda z: z), "its pattern has no wildcard 'z'"),
    (lambda: rewrites(call(NEG, x))(lambda *z: z), "any number of arguments"),
    (lambda: equation("r", call(aten.bernoulli.default, x), x), "draws random numbers"),
    (
        lambda: traced_rules(
            lambda x: x if x.sum() > 0 else -x, lambda x: x, [torch.ones(2)], name="r"
        ),
        "(?s)its pattern raised GuardOnDataDependent.*test_rules.py",
    ),
    (
        lambda: traced_rules(lambda x: x, lambda x: x, [torch.ones(2)], name="r"),
        "none of its operators computed",
    ),
    (
        lambda: traced_rules(lambda x: x.sin(), lambda y: y.sin(), [torch.ones(2)], name="r"),
        "does not use a parameter 'y'",
    ),
]


@pytest.mark.parametrize(("make", "why"), MALFORMED)
def test_what_is_malformed_is_refused_when_it_is_written(make: Any, why: str) -> None:
    with pytest.raises(RewriteError, match=why):
        make()
