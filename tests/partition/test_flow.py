from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st

from adjoint.partition.flow import UNBOUNDED, Network

SOURCE, SINK = 0, 1
MOST = 6

Edge = tuple[int, int, int]

EDGES = st.lists(
    st.tuples(st.integers(0, MOST - 1), st.integers(0, MOST - 1), st.integers(0, 9)), max_size=20
)


def cost(edges: list[Edge], near: set[int]) -> int:
    return sum(capacity for tail, head, capacity in edges if tail in near and head not in near)


def cuts(edges: list[Edge]) -> list[set[int]]:
    """Every set of vertices with the source and without the sink."""
    inner = sorted({v for tail, head, _ in edges for v in (tail, head)} - {SOURCE, SINK})
    subsets = chain.from_iterable(combinations(inner, n) for n in range(len(inner) + 1))
    return [{SOURCE, *subset} for subset in subsets]


def network_of(edges: list[Edge]) -> Network[int]:
    network: Network[int] = Network()
    for tail, head, capacity in edges:
        network.add(tail, head, capacity)
    return network


@given(EDGES)
def test_the_cut_is_minimum_and_nearest_to_the_sink(edges: list[Edge]) -> None:
    near = network_of(edges).reachable_without(SOURCE, SINK)
    least = min(cost(edges, cut) for cut in cuts(edges))
    assert SOURCE in near
    assert SINK not in near
    assert cost(edges, near) == least
    for other in cuts(edges):
        if cost(edges, other) == least:
            assert other <= near


def test_unbounded_edges_are_not_cut() -> None:
    edges = [(SOURCE, 2, UNBOUNDED), (2, 3, 5), (2, 3, 6), (3, SINK, UNBOUNDED)]
    assert network_of(edges).reachable_without(SOURCE, SINK) == {SOURCE, 2}


def test_flow_is_rerouted_through_residual_edges() -> None:
    """The shortest path through the middle would block both others."""
    edges = [(SOURCE, 2, 1), (SOURCE, 3, 1), (2, 3, 1), (2, 4, 1), (3, 5, 1), (4, SINK, 1)]
    edges += [(5, SINK, 1)]
    near = network_of(edges).reachable_without(SOURCE, SINK)
    assert cost(edges, near) == 2


def test_without_a_path_nothing_is_cut() -> None:
    near = network_of([(SOURCE, 2, 3), (3, SINK, 3)]).reachable_without(SOURCE, SINK)
    assert near == {SOURCE, 2}


def test_a_long_chain() -> None:
    length = 5000
    network: Network[int] = Network()
    for place in range(length):
        network.add(place, place + 1, 2 if place == 4321 else 3)
    assert network.reachable_without(0, length) == set(range(4322))
