from __future__ import annotations

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
