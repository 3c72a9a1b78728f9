"""A scope: one graph under construction and the tensors that have values in it.

The program has a scope; so has each body that stays a subgraph (a branch of `cond`, the two halves
of a custom `autograd.Function`).  A tensor of an outer scope that an inner one uses is *lifted*: it
becomes an input of the inner graph.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import fx

from adjoint.torch_private.symbols import Symbolic
from adjoint.trace import aliasing
from adjoint.trace.aliasing import Alias, Storage
from adjoint.trace.emission import Emitter, Untraced

Liftable: TypeAlias = torch.Tensor | Symbolic


class Scope:
    """A graph under construction, the aliases of its tensors, and what it lifts from outside."""

    def __init__(self, untraced: Untraced, outer: Scope | None = None) -> None:
        self.emitter = Emitter(untraced)
        self.outer = outer
        self.aliases: dict[int, Alias] = {}
        """By the id of the tensor."""
        self.lifted: list[Liftable] = []
        """Tensors and symbolic numbers of outer scopes, in the order of this graph's inputs."""
        self._lifted_nodes: list[fx.Node] = []
        self.entry_token: fx.Node | None = None
        self.token: fx.Node | None = None
        """The token for the next op with side effects; None before the first."""
        if outer is not None:
            self.emitter.lift_number = self.lift_number

    def add(self, tensor: torch.Tensor, alias: Alias) -> Alias:
        """Make `alias` the one of `tensor`."""
        self.aliases[id(tensor)] = alias
        return alias

    def new(self, tensor: torch.Tensor, node: fx.Node | None) -> Alias:
        """Register `tensor`, which has a storage of its own and the value of `node`."""
        return self.add(tensor, Alias(Storage(), tensor, node=node))

    def input(self, tensor: torch.Tensor, name: str) -> Alias:
        """Make `tensor` the next input of this graph."""
        return self.new(tensor, self.emitter.placeholder(name, tensor))

    def lift(self, tensor: torch.Tensor) -> Alias:
        """Register a tensor of an outer scope; it becomes an input when it is first read."""
        alias = self.new(tensor, None)
        alias.make_node = lambda: self._lift("lifted", tensor)
        return alias

    def lift_number(self, value: Symbolic) -> fx.Node:
        """Make a symbolic number of an outer scope an input."""
        return self._lift("size", value)

    def _lift(self, name: str, value: Liftable) -> fx.Node:
        node = self.emitter.placeholder(name, value)
        self.lifted.append(value)
        self._lifted_nodes.append(node)
        return node

    def lifted_node(self, value: Liftable) -> fx.Node:
        """The input for `value`, a tensor or number of an outer scope; lifts it if need be."""
        for known, node in zip(self.lifted, self._lifted_nodes, strict=True):
            if known is value:
                return node
        if isinstance(value, torch.Tensor):
            return aliasing.read(self.emitter, self.lift(value))
        return self.lift_number(value)

    def all_aliases(self) -> list[Alias]:
        """The aliases of this scope and of its outer scopes."""
        around = [] if self.outer is None else self.outer.all_aliases()
        return [*self.aliases.values(), *around]

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether this scope or an outer one has a value for `tensor`."""
        return id(tensor) in self.aliases or (self.outer is not None and self.outer.knows(tensor))
