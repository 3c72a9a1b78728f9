"""Pytrees: nested containers of leaves.

Unlike torch's functions, these restore a `torch.Size`, which torch unflattens as a tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch.utils import _pytree

from adjoint.open_types import TorchValue

TreeSpec = _pytree.TreeSpec


class _Size(tuple[object, ...]):
    """Marks a `torch.Size` in a pytree."""

    __slots__ = ()


def _size_of(leaves: Iterable[TorchValue]) -> object:
    """A `torch.Size`, or a tuple if the leaves are no numbers."""
    numbers = tuple(leaves)
    known = all(isinstance(each, (int, torch.SymInt)) for each in numbers)
    return torch.Size(numbers) if known else numbers


_pytree.register_pytree_node(
    _Size,
    lambda size: (list(size), None),
    lambda leaves, _: _size_of(leaves),
    flatten_with_keys_fn=lambda size: (
        [(_pytree.SequenceKey(index), each) for index, each in enumerate(size)],
        None,
    ),
)


def _is_size(value: object) -> bool:
    return isinstance(value, torch.Size)


def _marked(tree: object) -> object:
    return _pytree.tree_map(
        lambda leaf: _Size(leaf) if _is_size(leaf) else leaf, tree, is_leaf=_is_size
    )


def flatten(tree: object) -> tuple[list[TorchValue], TreeSpec]:
    """The leaves of `tree`, and the spec to unflatten them."""
    return _pytree.tree_flatten(_marked(tree))


def flatten_with_paths(tree: object) -> tuple[list[tuple[str, object]], TreeSpec]:
    """As `flatten`, each leaf with its path in Python spelling, such as `[0]['x']`."""
    marked = _marked(tree)
    leaves, spec = _pytree.tree_flatten(marked)
    return list(zip(_paths(marked, ""), leaves, strict=True)), spec


def _paths(tree: object, path: str) -> Iterator[str]:
    """The paths of the leaves.  Children of containers registered without keys are numbered."""
    kind = _pytree._get_node_type(tree)
    node = _pytree.SUPPORTED_NODES.get(kind)
    if node is None:
        yield path
        return
    if node.flatten_with_keys_fn is not None:
        keyed, _ = node.flatten_with_keys_fn(tree)
    else:
        children, _ = node.flatten_fn(tree)
        keyed = [(_pytree.SequenceKey(index), child) for index, child in enumerate(children)]
    for key, child in keyed:
        yield from _paths(child, path + _pytree.keystr((key,)))


def unflatten(leaves: Iterable[object], spec: TreeSpec) -> TorchValue:
    """Put `leaves` back into the containers that `spec` describes."""
    return _pytree.tree_unflatten(leaves, spec)


def leaves(tree: object) -> list[TorchValue]:
    """The leaves of `tree`."""
    return _pytree.tree_leaves(tree)


def map_leaves(function: Callable[[TorchValue], object], tree: TorchValue) -> TorchValue:
    """`tree` with `function` applied to each leaf."""
    # Most trees are arguments of ops, and many are mapped: torch's function is much slower.
    kind = type(tree)
    if kind is tuple:
        return tuple([map_leaves(function, each) for each in tree])
    if kind is list:
        return [map_leaves(function, each) for each in tree]
    if kind is dict:
        return {key: map_leaves(function, each) for key, each in tree.items()}
    if not issubclass(kind, tuple) and kind not in _pytree.SUPPORTED_NODES:
        return function(tree)
    return _pytree.tree_map(
        lambda leaf: _size_of(map(function, leaf)) if _is_size(leaf) else function(leaf),
        tree,
        is_leaf=_is_size,
    )


def leaves_and_structure(tree: object) -> tuple[list[object], object]:
    """The leaves of `tree`, and a hashable key of its structure.  Faster than `flatten`."""
    leaves: list[object] = []
    return leaves, _structure(tree, leaves)


def _structure(tree: TorchValue, leaves: list[object]) -> object:
    kind = type(tree)
    if kind is tuple or kind is list:
        return kind, tuple([_structure(each, leaves) for each in tree])
    if kind is dict:
        return tuple(tree), tuple([_structure(each, leaves) for each in tree.values()])
    if issubclass(kind, tuple) or kind in _pytree.SUPPORTED_NODES:
        found, spec = flatten(tree)
        leaves += found
        return spec
    leaves.append(tree)
    return None
