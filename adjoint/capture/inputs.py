"""The inputs of a program, those that share a storage, and the implicit inputs for that storage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx
from torch.autograd.graph import Node

from adjoint.graph.calling import BaseOf, FromCaller, InputSource, MemoryOf, NewToken
from adjoint.graph.descriptors import (
    EffectToken,
    Input,
    PlainInput,
    SymbolicSize,
    SyntheticBase,
    ViewBase,
)
from adjoint.graph.metadata import set_descriptor
from adjoint.open_types import TorchValue
from adjoint.torch_private.fake import storage_key
from adjoint.trace import aliasing, geometry
from adjoint.trace.aliasing import Alias, Link, Storage, version
from adjoint.trace.tracer import Tracer


@dataclass(frozen=True)
class Leaf:
    """One of the caller's inputs: a fake or a number, and its descriptor."""

    value: TorchValue
    descriptor: PlainInput | SymbolicSize


@dataclass(frozen=True)
class AutogradState:
    """The autograd state of a tensor before the program ran."""

    requires_grad: bool
    is_leaf: bool
    version: int
    history: Node | None
    """The autograd node."""


@dataclass(frozen=True)
class ImplicitInput:
    """A base or storage of the caller's inputs that the caller did not pass itself."""

    alias: Alias
    descriptor: ViewBase | SyntheticBase
    source: BaseOf | MemoryOf
    history: Node | None = None
    """The autograd node of the base before the program ran."""

    @property
    def has_new_history(self) -> bool:
        """Whether autograd recorded a write to it."""
        return self.alias.tensor is not None and self.alias.tensor.grad_fn is not self.history


class Inputs:
    """The caller's inputs and their aliases."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.leaves: list[Leaf] = []
        self.sources: dict[fx.Node, InputSource] = {}
        self.index: dict[int, int] = {}
        """By the id of a tensor: its index among the leaves."""
        self.aliases: dict[int, Alias] = {}
        """By index: the alias that the input had when the program began."""
        self.states: dict[int, AutogradState] = {}
        self.implicit: list[ImplicitInput] = []
        self.base_of: dict[int, int] = {}
        """By the id of a tensor: the index of an input that is a view of it."""
        self.joined: list[tuple[int, ...]] = []
        """Indices of inputs that share a storage, where some were found while the program ran."""

    def histories(self) -> list[Node]:
        """The autograd nodes of inputs that were computed before the program began."""
        return [each.history for each in self.states.values() if each.history is not None]

    def add(self, leaves: Sequence[Leaf]) -> None:
        """Add inputs, after the existing ones."""
        groups: dict[object, list[int]] = defaultdict(list)
        for leaf in leaves:
            index = len(self.leaves)
            self.leaves.append(leaf)
            if isinstance(leaf.value, torch.Tensor):
                if id(leaf.value) in self.index:
                    continue  # The same tensor again: one input of the graph.
                self.index[id(leaf.value)] = index
                self.states[index] = _state(leaf.value)
                if leaf.value._is_view():
                    self.base_of.setdefault(id(leaf.value._base), index)
                groups[storage_key(leaf.value) or index].append(index)
            elif isinstance(leaf.value, (torch.SymInt, torch.SymFloat)):
                self._placeholder(index)
        for memory, indices in groups.items():
            shared = [p for p in self.aliases if storage_key(self.leaves[p].value) == memory]
            self._group(indices) if not shared else self._join(shared, indices)

    def _placeholder(self, index: int) -> fx.Node:
        leaf = self.leaves[index]
        node = self.tracer.emitter.placeholder(_name(leaf.descriptor), leaf.value)
        self._describe(node, leaf.descriptor, FromCaller(index))
        return node

    def _describe(self, node: fx.Node, descriptor: Input, source: InputSource) -> None:
        set_descriptor(node, descriptor)
        self.sources[node] = source

    def _group(self, indices: list[int]) -> None:
        """Add inputs that share a storage."""
        families: dict[int, list[int]] = defaultdict(list)
        for index in indices:
            tensor = self.leaves[index].value
            families[id(tensor._base if tensor._is_view() else tensor)].append(index)
        if len(indices) == 1:
            alias = self._add(indices[0], Alias(Storage(), self.leaves[indices[0]].value))
            alias.storage.open = lambda: self._open(indices, alias)
        elif len(families) == 1:
            whole = self._family(indices, Storage(), None)
            whole.storage.open = lambda: self._open(indices, whole)
        else:
            root = self._memory(indices, Storage())
            for members in families.values():
                if len(members) == 1:
                    tensor = self.leaves[members[0]].value
                    self._add(members[0], geometry.strided(root, tensor, Link.FOREIGN))
                else:
                    self._family(members, root.storage, root)
        for index in indices:
            base = self.leaves[index].value._base
            if base is not None and not self.tracer.scope.knows(base):
                # Autograd reads the base when it regenerates the view.
                self.tracer.scope.add(base, Alias(Storage(), base, is_hidden=True))

    def _add(self, index: int, alias: Alias) -> Alias:
        alias.node = self._placeholder(index)
        alias.is_input = True
        self.aliases[index] = alias
        return self.tracer.scope.add(self.leaves[index].value, alias)

    def _family(self, indices: list[int], storage: Storage, root: Alias | None) -> Alias:
        """Add differentiable views of one base; returns the alias of the base."""
        first = self.leaves[indices[0]].value
        base = first._base if first._is_view() else first
        at = self.index.get(id(base))
        if root is not None:
            alias = geometry.strided(root, base, Link.FOREIGN)
        else:
            alias = Alias(storage, base)
        if at is not None:
            self._add(at, alias)
        else:
            of = self._plain(indices)
            source = BaseOf(indices[0])
            alias.make_node = lambda: self._implicit("base", base, ViewBase(of), source)
            self.implicit.append(ImplicitInput(alias, ViewBase(of), source, base.grad_fn))
            self.tracer.scope.add(base, alias)
        for index in indices:
            if index != at:
                tensor = self.leaves[index].value
                self._add(index, geometry.strided(alias, tensor))
        return alias

    def _open(self, indices: list[int], root: Alias) -> None:
        """Put the whole storage of the inputs `indices` above `root`, of which they are views."""
        tensor = root.tensor
        assert tensor is not None
        if not isinstance(tensor.untyped_storage().nbytes(), int):
            return
        with self.tracer.inside(self.tracer.root):
            root.storage.open = None
            memory = self._memory(indices, root.storage)
            window = geometry.strided(memory, tensor, Link.FOREIGN)
            if root.storage.writes:
                # The storage gets what was written so far.
                window.is_input = True
                emitter = self.tracer.emitter
                quiet = aliasing.UNRECORDED
                value = aliasing.read(emitter, root)
                data = emitter.call(torch.ops.aten.detach.default, (value,), mode=quiet)
                aliasing.write(emitter, window, data, quiet)
            root.parent, root.step, root.link = window.parent, window.step, Link.FOREIGN
            root.stamp = root.storage.writes
            root.storage.aliases.remove(window)

    def _memory(self, indices: list[int], storage: Storage) -> Alias:
        """The storage that inputs with different autograd histories share, as an implicit input."""
        tensors = [self.leaves[index].value for index in indices]
        of = self._plain(indices)
        dtypes = {tensor.dtype for tensor in tensors}
        dtype = dtypes.pop() if len(dtypes) == 1 else torch.uint8
        source = MemoryOf(indices[0], dtype)
        size = tensors[0].untyped_storage().nbytes() // dtype.itemsize
        with self.tracer.untraced():
            whole = torch.empty(size, dtype=dtype, device=tensors[0].device)
        alias = Alias(storage, None)

        def make_node() -> fx.Node:
            storage.depends_on_offset = True
            return self._implicit("memory", whole, SyntheticBase(of), source)

        alias.make_node = make_node
        self.implicit.append(ImplicitInput(alias, SyntheticBase(of), source))
        alias.dtype = dtype
        return alias

    def _join(self, shared: list[int], indices: list[int]) -> None:
        """Add inputs, found while the program runs, that share a storage with earlier ones.

        They count as independent, which is right as long as nothing is written to the storage.
        """
        self.joined.append((*shared, *indices))
        self.refuse_writes_to_joined()
        self._group(indices)

    def refuse_writes_to_joined(self) -> None:
        """Refuse writes to a storage with an alias found late: that alias would not see them."""
        for first, *others in self.joined:
            indices = [index for index in (first, *others) if index in self.aliases]
            if any(self.aliases[index].storage.writes for index in indices):
                raise self.tracer.unsupported(
                    "a tensor that the function closes over",
                    f"it shares memory with {self.leaves[first].descriptor.describe()}",
                )

    def _plain(self, indices: list[int]) -> tuple[PlainInput, ...]:
        descriptors = (self.leaves[index].descriptor for index in indices)
        return tuple(each for each in descriptors if not isinstance(each, SymbolicSize))

    def described(self, index: int) -> PlainInput:
        """The descriptor of the tensor at `index`."""
        descriptor = self.leaves[index].descriptor
        assert not isinstance(descriptor, SymbolicSize)
        return descriptor

    def _implicit(
        self, name: str, value: object, descriptor: Input, source: InputSource
    ) -> fx.Node:
        node = self.tracer.root.emitter.placeholder(name, value)
        self._describe(node, descriptor, source)
        return node

    def describe_token(self, node: fx.Node) -> None:
        """Describe `node`, the token for the first op with side effects."""
        self._describe(node, EffectToken(0), NewToken())


def _state(tensor: torch.Tensor) -> AutogradState:
    return AutogradState(tensor.requires_grad, tensor.is_leaf, version(tensor), history(tensor))


def history(tensor: torch.Tensor) -> Node | None:
    """The autograd node of `tensor`, or of its base if it is a view."""
    return tensor._base.grad_fn if tensor._is_view() else tensor.grad_fn  # type: ignore[union-attr]


def _name(descriptor: PlainInput | SymbolicSize) -> str:
    text = getattr(descriptor, "name", None) or getattr(descriptor, "path", "argument")
    name = "".join(c if c.isalnum() else "_" for c in str(text)).strip("_") or "argument"
    return f"input_{name}" if name[0].isdigit() else name
