"""The outputs of a graph under capture, each returned once, with their descriptors."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import fx

from adjoint.graph.descriptors import (
    IntermediateBase,
    MetadataMutation,
    Output,
    Result,
    ViewArgument,
    ViewValue,
)
from adjoint.graph.metadata import value_of
from adjoint.trace.aliasing import Alias

Wanted: TypeAlias = Result | MetadataMutation
"""What a tensor is made for outside the graph: a result, or the new metadata of an input."""


class Outputs:
    """Collects what a graph returns."""

    def __init__(self) -> None:
        self.nodes: list[fx.Node] = []
        self._descriptors: list[Output | None] = []
        """None for a base until all results that are views of it are known."""
        self._bases: dict[Alias, int] = {}
        self._wanted_for: dict[int, list[Wanted]] = {}
        """By base: what it is needed for."""
        self._replay_values: dict[fx.Node, int] = {}

    def add(self, node: fx.Node, descriptor: Output | None) -> int:
        """Return the value of `node`; gives its position among the outputs."""
        self.nodes.append(node)
        self._descriptors.append(descriptor)
        return len(self.nodes) - 1

    def base(self, alias: Alias) -> int | None:
        """The output with the value of `alias`, if it has been added as a base."""
        return self._bases.get(alias)

    def add_base(self, alias: Alias, node: fx.Node) -> int:
        """Return `node`, the value of `alias`, of which results are views or which is one
        itself."""
        self._bases[alias] = self.add(node, None)
        return self._bases[alias]

    def want_base(self, index: int, wanted: Wanted, whole: bool) -> None:
        """Note that a base is needed for `wanted`; `whole`: it is that itself, not a base of it."""
        if whole and self._descriptors[index] is None:
            self._descriptors[index] = wanted
        self._wanted_for.setdefault(index, []).append(wanted)

    def replay_value(self, node: fx.Node) -> int:
        """The output with a number or tensor that replaying a view outside the graph needs."""
        if node not in self._replay_values:
            kind = ViewValue if isinstance(value_of(node), torch.Tensor) else ViewArgument
            self._replay_values[node] = self.add(node, kind(len(self._replay_values)))
        return self._replay_values[node]

    def described(self) -> tuple[Output, ...]:
        """The descriptors, once all results are known."""
        for index, wanted in self._wanted_for.items():
            if self._descriptors[index] is None:
                results = tuple(each for each in wanted if isinstance(each, Result))
                self._descriptors[index] = IntermediateBase(results) if results else wanted[0]
        return tuple(each for each in self._descriptors if each is not None)
