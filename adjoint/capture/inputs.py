"""The inputs of a program: which share memory, and what stands for that memory in the graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

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
from adjoint.torch_private.fake import storage_key
from adjoint.trace import aliasing, geometry
from adjoint.trace.aliasing import Alias, Link, Storage, version
from adjoint.trace.tracer import Tracer


@dataclass(frozen=True)
class Leaf:
    """One of the caller's inputs: its fake, or number, and what it is."""

    value: Any
    descriptor: PlainInput | SymbolicSize


@dataclass(frozen=True)
class AutogradState:
    """What a tensor was before the program ran."""

    requires_grad: bool
    is_leaf: bool
    version: int
    history: Any


@dataclass(frozen=True)
class ImplicitInput:
    """What inputs are views of or lie in, which is itself no input of the caller's."""

    alias: Alias
    descriptor: ViewBase | SyntheticBase
    source: BaseOf | MemoryOf
    history: Any = None

    @property
    def has_new_history(self) -> bool:
        """Autograd recorded a write."""
        return self.alias.tensor is not None and self.alias.tensor.grad_fn is not self.history


class Inputs:
    """The caller's inputs, as the tracer has come to know them."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.leaves: list[Leaf] = []
        self.sources: dict[fx.Node, InputSource] = {}
        self.index: dict[int, int] = {}
        """By tensor: its place among the leaves."""
        self.aliases: dict[int, Alias] = {}
        """By place: the alias that the input was when the program began."""
        self.states: dict[int, AutogradState] = {}
        self.behind: list[ImplicitInput] = []
        self.base_of: dict[int, int] = {}
        """By tensor: the place of an input that is a view of it."""
        self.joined: list[tuple[int, ...]] = []
        """The places of inputs that share memory, the last of which were found late."""

    def add(self, leaves: Sequence[Leaf]) -> None:
        """More inputs, after those there are."""
        groups: dict[Any, list[int]] = defaultdict(list)
        for leaf in leaves:
            place = len(self.leaves)
            self.leaves.append(leaf)
            if isinstance(leaf.value, torch.Tensor):
                if id(leaf.value) in self.index:
                    continue  # The same tensor again: one input of the graph.
                self.index[id(leaf.value)] = place
                self.states[place] = _state(leaf.value)
                if leaf.value._is_view():
                    self.base_of.setdefault(id(leaf.value._base), place)
                groups[storage_key(leaf.value) or place].append(place)
            elif isinstance(leaf.value, (torch.SymInt, torch.SymFloat)):
                self._placeholder(place)
        for memory, places in groups.items():
            shared = [p for p in self.aliases if storage_key(self.leaves[p].value) == memory]
            self._group(places) if not shared else self._join(shared, places)

    def _placeholder(self, place: int) -> fx.Node:
        leaf = self.leaves[place]
        node = self.tracer.emitter.placeholder(_name(leaf.descriptor), leaf.value)
        self._describe(node, leaf.descriptor, FromCaller(place))
        return node

    def _describe(self, node: fx.Node, descriptor: Input, source: InputSource) -> None:
        set_descriptor(node, descriptor)
        self.sources[node] = source

    def _group(self, places: list[int]) -> None:
        """Inputs that show one memory, none of which the graph has yet."""
        families: dict[int, list[int]] = defaultdict(list)
        for place in places:
            tensor = self.leaves[place].value
            families[id(tensor._base if tensor._is_view() else tensor)].append(place)
        if len(places) == 1:
            alias = self._add(places[0], Alias(Storage(), self.leaves[places[0]].value))
            alias.storage.open = lambda: self._open(places, alias)
        elif len(families) == 1:
            whole = self._family(places, Storage(), None)
            whole.storage.open = lambda: self._open(places, whole)
        else:
            root = self._memory(places, Storage())
            for members in families.values():
                if len(members) == 1:
                    tensor = self.leaves[members[0]].value
                    self._add(members[0], geometry.strided(root, tensor, Link.FOREIGN))
                else:
                    self._family(members, root.storage, root)
        for place in places:
            base = self.leaves[place].value._base
            if base is not None and not self.tracer.scope.knows(base):
                # Autograd looks at it when it derives the view anew.
                self.tracer.scope.add(base, Alias(Storage(), base, is_hidden=True))

    def _add(self, place: int, alias: Alias) -> Alias:
        alias.node = self._placeholder(place)
        alias.is_input = True
        self.aliases[place] = alias
        return self.tracer.scope.add(self.leaves[place].value, alias)

    def _family(self, places: list[int], storage: Storage, root: Alias | None) -> Alias:
        """Differentiable views of one base, which is returned."""
        first = self.leaves[places[0]].value
        base = first._base if first._is_view() else first
        at = self.index.get(id(base))
        if root is not None:
            alias = geometry.strided(root, base, Link.FOREIGN)
        else:
            alias = Alias(storage, base)
        if at is not None:
            self._add(at, alias)
        else:
            of = self._plain(places)
            source = BaseOf(places[0])
            alias.make_node = lambda: self._implicit("base", base, ViewBase(of), source)
            self.behind.append(ImplicitInput(alias, ViewBase(of), source, base.grad_fn))
            self.tracer.scope.add(base, alias)
        for place in places:
            if place != at:
                tensor = self.leaves[place].value
                self._add(place, geometry.strided(alias, tensor))
        return alias

    def _open(self, places: list[int], root: Alias) -> None:
        """Let `root`, which the inputs at `places` are or are views of, be a window on memory."""
        tensor = root.tensor
        assert tensor is not None
        if not isinstance(tensor.untyped_storage().nbytes(), int):
            return
        with self.tracer.inside(self.tracer.root):
            root.storage.open = None
            memory = self._memory(places, root.storage)
            window = geometry.strided(memory, tensor, Link.FOREIGN)
            if root.storage.writes:
                # What was written so far.
                window.is_input = True
                emitter = self.tracer.emitter
                quiet = aliasing.UNRECORDED
                value = aliasing.read(emitter, root)
                data = emitter.call(torch.ops.aten.detach.default, (value,), mode=quiet)
                aliasing.write(emitter, window, data, quiet)
            root.parent, root.step, root.link = window.parent, window.step, Link.FOREIGN
            root.stamp = root.storage.writes
            root.storage.aliases.remove(window)

    def _memory(self, places: list[int], storage: Storage) -> Alias:
        """The memory that inputs with histories of their own share."""
        tensors = [self.leaves[place].value for place in places]
        of = self._plain(places)
        dtypes = {tensor.dtype for tensor in tensors}
        dtype = dtypes.pop() if len(dtypes) == 1 else torch.uint8
        source = MemoryOf(places[0], dtype)
        size = tensors[0].untyped_storage().nbytes() // dtype.itemsize
        with self.tracer.untraced():
            whole = torch.empty(size, dtype=dtype, device=tensors[0].device)
        alias = Alias(storage, None)

        def make_node() -> fx.Node:
            storage.is_placed = True
            return self._implicit("memory", whole, SyntheticBase(of), source)

        alias.make_node = make_node
        self.behind.append(ImplicitInput(alias, SyntheticBase(of), source))
        alias.dtype = dtype
        return alias

    def _join(self, shared: list[int], places: list[int]) -> None:
        """Inputs found while the program runs, over memory that earlier ones show.

        They are inputs like others as long as nothing is written to that memory.
        """
        self.joined.append((*shared, *places))
        self.refuse_writes_to_joined()
        self._group(places)

    def refuse_writes_to_joined(self) -> None:
        """Who writes to memory that was joined too late would not see what others wrote."""
        for first, *others in self.joined:
            places = [place for place in (first, *others) if place in self.aliases]
            if any(self.aliases[place].storage.writes for place in places):
                raise self.tracer.unsupported(
                    "a tensor that the function closes over",
                    f"it shares memory with {self.leaves[first].descriptor.describe()}",
                )

    def _plain(self, places: list[int]) -> tuple[PlainInput, ...]:
        descriptors = (self.leaves[place].descriptor for place in places)
        return tuple(each for each in descriptors if not isinstance(each, SymbolicSize))

    def described(self, place: int) -> PlainInput:
        """What the tensor at `place` is."""
        descriptor = self.leaves[place].descriptor
        assert not isinstance(descriptor, SymbolicSize)
        return descriptor

    def _implicit(self, name: str, value: Any, descriptor: Input, source: InputSource) -> fx.Node:
        node = self.tracer.root.emitter.placeholder(name, value)
        self._describe(node, descriptor, source)
        return node

    def describe_token(self, node: fx.Node) -> None:
        """`node` is the token of the first op with effects."""
        self._describe(node, EffectToken(0), NewToken())


def _state(tensor: torch.Tensor) -> AutogradState:
    return AutogradState(tensor.requires_grad, tensor.is_leaf, version(tensor), history(tensor))


def history(tensor: torch.Tensor) -> Any:
    """What autograd recorded for `tensor`, or for what it is a view of."""
    return tensor._base.grad_fn if tensor._is_view() else tensor.grad_fn  # type: ignore[union-attr]


def _name(descriptor: PlainInput | SymbolicSize) -> str:
    text = getattr(descriptor, "name", None) or getattr(descriptor, "path", "argument")
    name = "".join(c if c.isalnum() else "_" for c in str(text)).strip("_") or "argument"
    return f"input_{name}" if name[0].isdigit() else name
