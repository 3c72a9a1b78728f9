from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import fx

import adjoint
from adjoint.graph.sizes import NotResizable, Sizing, assuming
from adjoint.runtime import specializations
from adjoint.runtime.specializations import Full, SizeSpecializations, Specializations, shown


def test_a_full_table_forgets_what_was_used_longest_ago() -> None:
    table: Specializations[str, int] = Specializations(2)
    assert table.add("a", 1) is None
    assert table.add("b", 2) is None
    assert table.get("a") == 1
    assert table.add("c", 3) == 2
    assert list(table) == ["a", "c"]
    assert table.get("b") is None
    assert "c" in table
    assert table.is_full
    table.clear()
    assert len(table) == 0


def test_or_refuses_and_says_why() -> None:
    table: Specializations[str, int] = Specializations(1, evicts=False, what="its backward graph")
    table.add("a", 1)
    table.add("a", 2)
    assert table.values() == [2]
    with pytest.raises(Full, match="its backward graph was made 1 times for calls of different"):
        table.add("b", 1)


def graph() -> fx.GraphModule:
    return adjoint.capture(lambda x: x.sin(), torch.rand(6), dynamic=True).graph_module


def even(graph_module: fx.GraphModule) -> int:
    """Branches on the parity of the first size."""
    (x,) = graph_module.graph.find_nodes(op="placeholder")
    size = x.meta["val"].shape[0]
    with assuming(graph_module):
        return int(size % 2)


def test_a_version_for_each_kind_of_sizes() -> None:
    first = graph()
    versions = SizeSpecializations(first, even, 2, "it")
    sizing, sizes = Sizing(first), dict[Any, int]()
    for size, expected, count in ((6, 0, 1), (8, 0, 1), (5, 1, 2), (9, 1, 2), (6, 0, 2)):
        sizes = sizing.of([torch.rand(size)])
        version = versions.find(sizes) or versions.make(sizes)
        assert version is not None
        assert version.value == expected
        assert list(version.own(sizes).values()) == [size]
        assert version.fitted(sizes) == version.own(sizes)
        others = [each for each in versions.versions if each is not version]
        assert all(each.fitted(sizes) is None for each in others)
        assert len(versions.versions) == count
    assert "= 6" not in shown(sizes)
    assert shown(sizes).endswith("=6")


def test_no_more_than_the_bound_and_none_that_cannot_be_resized() -> None:
    first = graph()
    sizing = Sizing(first)
    six, five = (sizing.of([torch.rand(size)]) for size in (6, 5))
    versions = SizeSpecializations(first, even, 1, "its derivative")
    versions.make(six)
    with pytest.raises(Full, match="its derivative was made 1 times for sizes of different kinds"):
        versions.make(five)
    versions = SizeSpecializations(first, even, 2, "its derivative")
    versions.make(six)
    stiff = mock.patch.object(specializations, "resized", side_effect=NotResizable("it is stiff"))
    with stiff, pytest.raises(Full, match=r"its derivative assumes .* and it is stiff"):
        versions.make(five)


def test_what_is_declined_is_not_kept() -> None:
    versions: SizeSpecializations[int] = SizeSpecializations(graph(), lambda _: None, 2, "it")
    assert versions.make({}) is None
    assert versions.versions == []
