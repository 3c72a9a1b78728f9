from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch

from adjoint.torch_private import trees

TREE = {"a": [1, (2, None)], "b": 3}


def test_leaves_go_back_where_they_were() -> None:
    leaves, spec = trees.flatten(TREE)
    assert leaves == trees.leaves(TREE) == [1, 2, None, 3]
    assert trees.unflatten(leaves, spec) == TREE


def test_paths_are_python() -> None:
    found, _ = trees.flatten_with_paths(TREE)
    assert [path for path, _ in found] == ["['a'][0]", "['a'][1][0]", "['a'][1][1]", "['b']"]


def test_a_function_of_each_leaf() -> None:
    assert trees.map_leaves(str, TREE) == {"a": ["1", ("2", "None")], "b": "3"}


class Point(NamedTuple):
    x: Any
    y: Any


def test_containers_stay_what_they_are() -> None:
    named: Any = torch.return_types.max
    tree = [Point(1, [2]), OrderedDict(a=3), named((4, 5)), None]
    mapped = trees.map_leaves(lambda leaf: [leaf], tree)
    assert mapped[0] == Point([1], [[2]])
    assert mapped[1] == OrderedDict(a=[3])
    assert (mapped[2].values, mapped[2].indices) == ([4], [5])
    assert mapped[3] == [None]
    assert [type(each) for each in mapped[:3]] == [type(each) for each in tree[:3]]


def test_sizes_stay_sizes() -> None:
    tree = {"a": torch.Size([2, 3]), "b": [(4, 5), torch.Size([])]}
    leaves, spec = trees.flatten(tree)
    assert leaves == [2, 3, 4, 5]
    assert trees.unflatten(leaves, spec) == tree
    paths, other = trees.flatten_with_paths(tree)
    assert [path for path, _ in paths] == ["['a'][0]", "['a'][1]", "['b'][0][0]", "['b'][0][1]"]
    for found in (
        trees.unflatten(leaves, spec),
        trees.unflatten([leaf for _, leaf in paths], other),
        trees.map_leaves(lambda leaf: leaf, tree),
    ):
        kinds = [type(each) for each in (found["a"], *found["b"])]
        assert kinds == [torch.Size, tuple, torch.Size]
    assert type(trees.map_leaves(str, tree)["a"]) is tuple


class Pair(NamedTuple):
    one: Any
    other: Any


TREES: list[Any] = [
    3,
    None,
    (),
    [],
    {},
    (1, [2, {"b": 3, "a": (4,)}], None),
    [1, [2, {"b": 3, "a": (4,)}], None],
    [1, [2, {"a": 3, "b": (4,)}], None],
    [1, [2, {"b": 3, "a": [4]}], None],
    {"x": torch.Size([2, 3]), "y": Pair(1, [2])},
    {"x": (2, 3), "y": Pair(1, [2])},
    {"x": torch.Size([2, 3]), "y": (1, [2])},
    OrderedDict(b=1, a=[2]),
    {"b": 1, "a": [2]},
]


@pytest.mark.parametrize("tree", TREES)
def test_taken_apart_as_flattened(tree: Any) -> None:
    leaves, form = trees.leaves_and_structure(tree)
    expected, spec = trees.flatten(tree)
    assert leaves == expected
    hash(form)
    for other in TREES:
        assert (trees.leaves_and_structure(other)[1] == form) == (trees.flatten(other)[1] == spec)
