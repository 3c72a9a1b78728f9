from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adjoint.bisecting import Bisection
from adjoint.passes import graph_pass
from adjoint.rewrite.passes import rules_pass
from adjoint.rewrite.patterns import Wildcard, call
from adjoint.rewrite.rules import rewrites

aten = torch.ops.aten
x, y = Wildcard("x"), Wildcard("y")


@rewrites(call(aten.mul.Tensor, x, y))
def nudge(x: Any, y: Any) -> Any:
    """x * 3 = x * 2, which is wrong, and right for every other number"""
    if y == 3.0:
        return call(aten.mul.Tensor, x, 2.0)
    return call(aten.mul.Scalar, x, y) if isinstance(y, float) else None


@graph_pass("negate", "post")
def negate(graph_module: Any) -> Any:
    for node in graph_module.graph.nodes:
        if node.target is aten.sin.default:
            node.target = aten.cos.default
    return graph_module


@graph_pass("nothing", "post")
def nothing(graph_module: Any) -> Any:
    return graph_module


def function(a: Tensor) -> Tensor:
    b = (a * 5.0).tanh()
    c = (b * 3.0).tanh()
    return (c * 7.0).tanh() * 9.0


INPUTS = [torch.linspace(0.1, 0.2, 3)]


def test_passes_that_change_nothing_are_not_found() -> None:
    assert Bisection(function, INPUTS, {}, 1, [nothing]).find() is None


def test_the_match_is_found() -> None:
    wrong = rules_pass("nudging", [nudge], "primal")
    found = Bisection(function, INPUTS, {}, 1, [nothing, wrong]).find()
    assert found is not None
    assert found.graph_pass == "nudging"
    assert found.number == 2
    assert found.match is not None
    assert "rule 'nudge' at mul" in found.match
    assert "3.0" in found.match
    assert "test_bisecting.py" in found.match
    assert "match 2, rule 'nudge'" in str(found)


def test_a_pass_that_is_not_made_of_rules_is_found() -> None:
    found = Bisection(lambda a: a.sin(), INPUTS, {}, 0, [nothing, negate]).find()
    assert found is not None
    assert (found.graph_pass, found.match) == ("negate", None)
    assert "changes a result by" in str(found)


def written(a: Tensor) -> Tensor:
    a.mul_(2)
    return a.sin()


def test_a_function_that_writes_to_its_arguments_gets_the_same_in_every_run() -> None:
    given = torch.linspace(0.1, 0.2, 3)
    before = given.clone()
    for order in (0, 1):
        assert Bisection(written, [given], {}, order, [nothing]).find() is None
        found = Bisection(written, [given], {}, order, [negate]).find()
        assert found is not None
        assert found.graph_pass == "negate"
    assert torch.equal(given, before)


@graph_pass("negate-if-dynamic", "post")
def negate_if_dynamic(graph_module: Any) -> Any:
    if any(isinstance(each.meta.get("val"), torch.SymInt) for each in graph_module.graph.nodes):
        return negate(graph_module)
    return graph_module


def test_sizes_that_are_symbols() -> None:
    def halved(a: Tensor) -> Tensor:
        return a.sin()[: a.shape[0] // 2]

    given = [torch.linspace(0.1, 0.2, 6)]
    for dynamic in (False, True):
        found = Bisection(halved, given, {}, 0, [negate_if_dynamic], dynamic).find()
        assert (found is not None) is dynamic
