"""Pytrees: nested containers of leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils import _pytree

TreeSpec = _pytree.TreeSpec


def flatten(tree: Any) -> tuple[list[Any], TreeSpec]:
    """The leaves of `tree` and how to put them back."""
    return _pytree.tree_flatten(tree)


def flatten_with_paths(tree: Any) -> tuple[list[tuple[str, Any]], TreeSpec]:
    """As `flatten`, each leaf with its path in Python spelling, such as `[0]['x']`."""
    keyed, spec = _pytree.tree_flatten_with_path(tree)
    return [(_pytree.keystr(path), leaf) for path, leaf in keyed], spec


def unflatten(leaves: list[Any], spec: TreeSpec) -> Any:
    """Put `leaves` back into the containers that `spec` describes."""
    return _pytree.tree_unflatten(leaves, spec)


def leaves(tree: Any) -> list[Any]:
    """The leaves of `tree`."""
    return _pytree.tree_leaves(tree)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """`tree` with `function` applied to each leaf."""
    return _pytree.tree_map(function, tree)
