from __future__ import annotations

import random

from adjoint.lower.transitive_closure import TransitiveClosure


def test_what_is_needed_through_others() -> None:
    reached = TransitiveClosure()
    for unit in "abc":
        reached.add(unit, 0)
    reached.add("b", reached.row("a"))
    reached.add("c", reached.row("b"))
    assert reached.row("c") == reached.bit("a") | reached.bit("b") | reached.bit("c")
    assert reached.row("a") == reached.bit("a")
    assert "a" in reached
    assert "d" not in reached
    assert reached.bit("d") == 0


def test_what_needed_a_unit_needs_what_that_comes_to_need() -> None:
    reached = TransitiveClosure()
    for unit in "abcd":
        reached.add(unit, 0)
    reached.add("c", reached.row("b"))
    reached.add("b", reached.row("a"))
    assert reached.row("c") & reached.bit("a")
    assert not reached.row("d") & reached.bit("a")


def test_random_edges_in_any_order() -> None:
    chance = random.Random(0)
    edges = [(v, u) for u in range(12) for v in range(u + 1, 12) if chance.random() < 0.2]
    needs: dict[int, set[int]] = {unit: {unit} for unit in range(12)}
    for v, u in sorted(edges):
        needs[v] |= needs[u]
    reached = TransitiveClosure()
    for unit in range(12):
        reached.add(unit, 0)
    chance.shuffle(edges)
    for v, u in edges:
        reached.add(v, reached.row(u))
    for unit, expected in needs.items():
        found = {each for each in range(12) if reached.row(unit) & reached.bit(each)}
        assert found == expected
