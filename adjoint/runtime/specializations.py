"""Bounded tables of specializations: what was compiled for one kind of calls.

Sizes that the assumptions of a program hold for, patterns of missing cotangents, patterns of inputs
that share memory, arguments of a transform: each is a table of this kind.  A table has a bound.  A
full table either forgets what was used longest ago, or refuses, and then says why.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import fx

from adjoint.graph.sizes import NotResizable, Renaming, Sizes, Sizing, renamed, resized

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Full(Exception):
    """There is no room for another specialization; the message says of what, and why not."""


class Specializations(Generic[Key, Value]):
    """What was compiled for each key."""

    def __init__(self, bound: int, evicts: bool = True, what: str = "it") -> None:
        """`evicts`: a full table forgets the entry used longest ago; else it refuses another."""
        self.bound = bound
        self.evicts = evicts
        self.what = what
        self._entries: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """The entry for `key`, which counts as used now."""
        found = self._entries.get(key)
        if found is not None and self.evicts:
            self._entries.move_to_end(key)
        return found

    def add(self, key: Key, value: Value) -> Value | None:
        """Keep `value` for `key`; what was forgotten for it, if anything."""
        forgotten = None
        if key not in self._entries and self.is_full:
            if not self.evicts:
                raise Full(self.refusal)
            _, forgotten = self._entries.popitem(last=False)
        self._entries[key] = value
        return forgotten

    @property
    def is_full(self) -> bool:
        return len(self._entries) >= self.bound

    @property
    def refusal(self) -> str:
        """Why a full table takes no more."""
        return f"{self.what} was made {self.bound} times for calls of different kinds"

    def clear(self) -> None:
        self._entries.clear()

    def values(self) -> list[Value]:
        return list(self._entries.values())

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._entries))


@dataclass(frozen=True)
class Version(Generic[Value]):
    """What was made of a graph, for the sizes its assumptions hold for."""

    graph_module: fx.GraphModule
    sizing: Sizing
    names: Renaming | None
    """Its symbols, by those of the graph it is a copy of; None: it is that graph."""
    value: Value

    def violated(self, sizes: Sizes) -> str | None:
        """An assumption that does not hold for `sizes`, which are in terms of the first graph."""
        return self.sizing.violated(renamed(sizes, self.names))

    def own(self, sizes: Sizes) -> Sizes:
        """`sizes` in terms of its own symbols."""
        return renamed(sizes, self.names)


class SizeSpecializations(Generic[Value]):
    """Versions of one graph: another one is made when no assumption of those there are holds.

    The first version is of the graph itself.  Others are of copies that assume nothing but what is
    true of the sizes at hand.
    """

    def __init__(
        self,
        graph_module: fx.GraphModule,
        make: Callable[[fx.GraphModule], Value | None],
        bound: int,
        what: str,
        sizing: Callable[[fx.GraphModule, Value], Sizing] = lambda graph, _: Sizing(graph),
    ) -> None:
        """`make` compiles a version, or declines; `sizing` says what it assumes.

        `what` it is, in messages.
        """
        self.graph_module = graph_module
        self._make = make
        self._sizing = sizing
        self._bound = bound
        self._what = what
        self.versions: list[Version[Value]] = []

    def find(self, sizes: Sizes) -> Version[Value] | None:
        """The version for `sizes`, if there is one."""
        for version in tuple(self.versions):
            if version.violated(sizes) is None:
                return version
        return None

    def make(self, sizes: Sizes) -> Version[Value] | None:
        """A new version for `sizes`, None if `make` declines; `Full` if there is to be no other."""
        if not self.versions:
            first = self.add(self.graph_module, None)
            if first is None or first.violated(sizes) is None:
                return first
        if len(self.versions) >= self._bound:
            raise Full(f"{self._what} was made {self._bound} times for sizes of different kinds")
        try:
            graph_module, names = resized(self.graph_module, sizes)
        except NotResizable as error:
            wrong = self.versions[0].violated(sizes)
            raise Full(f"{self._what} assumes {wrong}, and {error}") from error
        return self.add(graph_module, names)

    def add(self, graph_module: fx.GraphModule, names: Renaming | None) -> Version[Value] | None:
        """A version of a graph that is this one, or a copy of it with symbols called `names`."""
        value = self._make(graph_module)
        if value is None:
            return None
        version = Version(graph_module, self._sizing(graph_module, value), names, value)
        self.versions.append(version)
        return version


def shown(sizes: Sizes) -> str:
    """Sizes as a message names them."""
    return ", ".join(f"{symbol}={size}" for symbol, size in sizes.items())
