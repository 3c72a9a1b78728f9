from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from adjoint.graph.metadata import CheckpointRegion, set_region, tensor_of
from adjoint.rewrite.matching import match_at
from adjoint.rewrite.patterns import Each, Match, NoMatch, Rest, Size, Wildcard, call, one_of
from tests.rewriting import graph_of

aten = torch.ops.aten
x, y, z = map(Wildcard, "xyz")
ADD, MUL, SIN, SUM = aten.add.Tensor, aten.mul.Tensor, aten.sin.default, aten.sum.dim_IntList


def matches(
    pattern: Any, function: Callable[..., Any], *inputs: Any, **options: Any
) -> list[Match]:
    patterns = pattern if isinstance(pattern, tuple) else (pattern,)
    graph = graph_of(function, *inputs, **options).graph
    return [match for node in graph.nodes for match in match_at(patterns, node)]


def count(pattern: Any, function: Callable[..., Any]) -> int:
    return len(matches(pattern, function, torch.ones(3, 3)))


def test_wildcards_bind_what_they_match() -> None:
    (match,) = matches(call(MUL, x, y), lambda a: a.sin() * 2.5, torch.ones(3))
    assert match.bound["x"].target is SIN
    assert match.bound["y"] == 2.5
    assert list(match.nodes) == [match.root]


def test_a_name_that_occurs_twice_is_one_value() -> None:
    twice = call(MUL, x, x)
    assert count(twice, lambda a: a * a) == 1
    assert count(twice, lambda a: a * a.sin()) == 0


def test_a_pattern_that_occurs_twice_is_one_node() -> None:
    shared = call(SIN, x)
    pattern = call(MUL, shared, call(ADD, shared, 1))
    assert count(pattern, lambda a: (s := a.sin()) * (s + 1)) == 1
    assert count(pattern, lambda a: a.sin() * (a.sin() + 1)) == 0


def test_constants_have_type_and_sign() -> None:
    assert count(call(ADD, x, 1), lambda a: a + 1) == 1
    assert count(call(ADD, x, 1.0), lambda a: a + 1) == 0
    assert count(call(ADD, x, True), lambda a: a + 1) == 0
    assert count(call(MUL, x, 0.0), lambda a: a * -0.0) == 0
    assert count(call(MUL, x, float("nan")), lambda a: a * float("nan")) == 1


def test_arguments_are_compared_by_name_with_defaults() -> None:
    kept = call(SUM, x, [0], keepdim=True)
    assert count(kept, lambda a: a.sum([0], True)) == 1
    assert count(kept, lambda a: a.sum([0])) == 0
    assert count(call(SUM, x, [0]), lambda a: a.sum([0], keepdim=False)) == 1
    assert count(call(SUM, x, [0], ...), lambda a: a.sum([0], keepdim=True)) == 1
    assert count(call(SUM, x, dim=[0], dtype=None, keepdim=y), lambda a: a.sum([0], True)) == 1


def test_the_rest_of_arguments_and_of_a_list() -> None:
    (match,) = matches(call(SUM, x, Rest("others")), lambda a: a.sum([1], True), torch.ones(2, 3))
    assert match.bound["others"] == [[1], True, None]
    pattern = call(aten.cat.default, [x, Rest("others")], ...)
    (match,) = matches(pattern, lambda a: torch.cat([a, a + 1, a + 2]), torch.ones(2))
    assert [each.target for each in match.bound["others"]] == [ADD, ADD]
    assert count(call(aten.cat.default, [x, y], ...), lambda a: torch.cat([a, a, a])) == 0


def test_every_element_of_a_list() -> None:
    pattern = call(aten.cat.default, Each(call(ADD, x, y)), ...)
    (match,) = matches(pattern, lambda a: torch.cat([a + 1, a.sin() + 2]), torch.ones(2))
    assert match.bound["y"] == [1, 2]
    assert len(match.nodes) == 3
    assert count(pattern, lambda a: torch.cat([a + 1, a])) == 0
    # Each element of the list is a part of the match, with no user outside.
    assert count(pattern, lambda a: (torch.cat([(b := a + 1), a + 2]), b)) == 0


def test_alternatives_are_tried_in_turn() -> None:
    pattern = call(MUL, one_of(call(SIN, x), call(aten.cos.default, x)), y)
    assert count(pattern, lambda a: a.sin() * 2 + a.cos() * 3) == 2
    assert count(pattern, lambda a: a.tan() * 2) == 0
    # The first alternative binds y, too; the second argument decides.
    pattern = call(MUL, one_of(call(ADD, x, y), call(ADD, y, x)), y)
    assert count(pattern, lambda a: (a + a.sin()) * a) == 1


def test_either_order() -> None:
    pattern = call(ADD, call(SIN, x), y, commutes=True)
    assert count(pattern, lambda a: a + a.sin()) == 1
    assert count(call(ADD, call(SIN, x), y), lambda a: a + a.sin()) == 0


def test_several_overloads() -> None:
    assert count(call(aten.sum, x, ...), lambda a: a.sum() + a.sum([0])) == 2
    assert count(call((SIN, aten.cos.default), x), lambda a: a.sin() + a.cos()) == 2


def test_guards_see_values() -> None:
    def is_wide(node: Any) -> bool:
        return isinstance(node, fx.Node) and tensor_of(node).shape[-1] > 2

    pattern = call(SIN, Wildcard("x", is_wide))
    assert len(matches(pattern, torch.sin, torch.ones(2, 3))) == 1
    assert len(matches(pattern, torch.sin, torch.ones(3, 2))) == 0
    assert count(call(SIN, x, where=lambda node: len(node.users) == 2), lambda a: a.sin() * 2) == 0


def test_sizes_are_numbers_or_symbols() -> None:
    pattern = call(aten.view.default, x, [Size("n"), Size("n")])
    for dynamic in (False, True):
        square = matches(
            pattern, lambda a: a.view(len(a), len(a)).sin(), torch.ones(3, 3), dynamic=dynamic
        )
        assert len(square) == 1
    other = matches(pattern, lambda a: a.view(*a.shape).sin(), torch.ones(3, 4), dynamic=True)
    assert other == []


def test_an_inner_value_with_other_users_is_not_replaced() -> None:
    def shares(a: Tensor) -> Any:
        b = a.sin()
        return b * 2, b + 1

    assert count(call(MUL, call(SIN, x), 2), shares) == 0
    assert count(call(MUL, call(SIN, x, shared=True), 2), shares) == 1
    assert count(call(MUL, call(SIN, x, shared=True, users=2), 2), shares) == 1
    assert count(call(MUL, call(SIN, x, shared=True, users=3), 2), shares) == 0


def test_several_outputs() -> None:
    pattern = (call(SIN, x), call(aten.cos.default, x))
    (match,) = matches(pattern, lambda a: a.sin() * a.cos(), torch.ones(2))
    assert [each.target for each in match.roots] == [SIN, aten.cos.default]
    assert count(pattern, lambda a: a.sin() * (a + 1).cos()) == 0
    inner = call(aten.exp.default, x)
    pattern = (call(MUL, inner, 2), call(ADD, inner, 1))
    assert len(matches(pattern, lambda a: (b := a.exp()) * 2 - (b + 1), torch.ones(2))) == 1


def test_results_of_an_operator_with_several() -> None:
    pattern = call(operator.getitem, call(aten.max.dim, x, 0, ..., shared=True), 1)
    assert count(pattern, lambda a: a.max(0).indices) == 1
    assert count(pattern, lambda a: a.max(0).values) == 0


def test_draws_and_other_modes_are_never_part_of_a_match() -> None:
    assert (
        count(call(MUL, call(aten.rand_like.default, x, ...), 2), lambda a: torch.rand_like(a) * 2)
        == 0
    )

    def half(a: Tensor) -> Tensor:
        with torch.no_grad():
            b = a.sin()
        return b * 2

    pattern = call(MUL, call(SIN, x), 2)
    assert count(pattern, half) == 0
    assert count(pattern, lambda a: a.sin() * 2) == 1


def test_checkpointed_regions_are_not_mixed() -> None:
    graph = graph_of(lambda a: a.sin() * 2, torch.ones(2)).graph
    sine, product = (node for node in graph.nodes if node.op == "call_function")
    pattern = call(MUL, call(SIN, x), 2)
    set_region(sine, CheckpointRegion(0))
    assert not list(match_at([pattern], product))
    set_region(product, CheckpointRegion(0))
    assert list(match_at([pattern], product))


def test_a_rule_that_walks_by_itself_is_held_to_the_same() -> None:
    def walked(function: Callable[..., Any]) -> fx.Node:
        (match,) = matches(call(MUL, x, 2), function, torch.ones(2))
        return match.absorb(match.bound["x"], SIN)

    assert walked(lambda a: a.sin() * 2).target is SIN
    for function in (lambda a: a.cos() * 2, lambda a: (b := a.sin()) * 2 - b, lambda a: a * 2):
        with pytest.raises(NoMatch):
            walked(function)
