"""Bounded tables of specializations: compiled code, each entry for one kind of call.

There are tables by assumptions about sizes, by pattern of missing cotangents, by aliasing of inputs
and by arguments of a transform.  A full table either evicts the entry used longest ago, or refuses
a new one and gives the reason.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import fx

from adjoint.graph.boundary import location_of_graph
from adjoint.graph.sizes import NotResizable, Renaming, Sizes, Sizing, renamed, resized
from adjoint.observing import Compilation, timed_compilation

# Compiled versions of one graph, or of one transform, each for other assumptions about sizes.
# `runtime/__init__.py` lists all tables, and what happens when one is full.
MAX_SIZE_VERSIONS = 8

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Full(Exception):
    """The table takes no further specialization; the message gives the reason."""


class Specializations(Generic[Key, Value]):
    """A bounded table: an entry for each key."""

    def __init__(self, bound: int, evicts: bool = True, what: str = "it") -> None:
        """`evicts`: a full table evicts the entry used longest ago; otherwise it raises `Full`."""
        self.bound = bound
        self.evicts = evicts
        self.what = what
        self._entries: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """The entry for `key`, which becomes the most recently used."""
        found = self._entries.get(key)
        if found is not None and self.evicts:
            with contextlib.suppress(KeyError):  # Another thread evicts it at this moment.
                self._entries.move_to_end(key)
        return found

    def add(self, key: Key, value: Value) -> Value | None:
        """Add an entry; returns the one that was evicted for it, if any."""
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
        """Why a full table refuses a new entry."""
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
    """The specialization of a graph to assumptions about sizes."""

    graph_module: fx.GraphModule
    sizing: Sizing
    names: Renaming | None
    """From the original graph's size symbols to those of this copy; None: no copy."""
    value: Value

    def violated(self, sizes: Sizes) -> str | None:
        """An assumption that `sizes`, by the original graph's symbols, violate; None: none."""
        if self.names is None and not self.sizing.assumptions:
            return None
        return self.sizing.violated(renamed(sizes, self.names))

    def own(self, sizes: Sizes) -> Sizes:
        """`sizes` by the symbols of this version."""
        return sizes if self.names is None else renamed(sizes, self.names)

    def fitted(self, sizes: Sizes) -> Sizes | None:
        """`sizes` by the symbols of this version; None if they violate an assumption."""
        if self.names is None and not self.sizing.assumptions:
            return sizes
        own = self.own(sizes)
        return own if self.sizing.violated(own) is None else None


class SizeSpecializations(Generic[Value]):
    """Versions of one graph; another is made for sizes that violate assumptions of each.

    The first version is made of the graph itself, others of copies that are traced again for the
    sizes of the call, and assume only what holds for these.
    """

    def __init__(
        self,
        graph_module: fx.GraphModule,
        make: Callable[[fx.GraphModule], Value | None],
        bound: int,
        what: str,
        sizing: Callable[[fx.GraphModule, Value], Sizing] = lambda graph, _: Sizing(graph),
    ) -> None:
        """`make` compiles a version, or returns None; `sizing` gives the assumptions of one.

        `what`: the name of a version in messages.
        """
        self.graph_module = graph_module
        self._make = make
        self._sizing = sizing
        self._bound = bound
        self._what = what
        self.versions: list[Version[Value]] = []

    def find(self, sizes: Sizes) -> Version[Value] | None:
        """A version whose assumptions hold for `sizes`, if there is one."""
        for version in tuple(self.versions):
            if version.violated(sizes) is None:
                return version
        return None

    def make(self, sizes: Sizes) -> Version[Value] | None:
        """A new version for `sizes`; None if `make` returns None.  Raises `Full`."""
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
        with timed_compilation(self._again(sizes)):
            return self.add(graph_module, names)

    def _again(self, sizes: Sizes) -> Compilation:
        """The event for watchers: another version is compiled."""
        line = location_of_graph(self.graph_module).source
        reason = f"it assumed {self.versions[-1].violated(sizes)}; now sizes are {shown(sizes)}"
        return Compilation("" if line is None else line.function, self._what, line, reason)

    def add(self, graph_module: fx.GraphModule, names: Renaming | None) -> Version[Value] | None:
        """Compile a version of the graph, or of a copy whose symbols are `names`."""
        value = self._make(graph_module)
        if value is None:
            return None
        version = Version(graph_module, self._sizing(graph_module, value), names, value)
        self.versions.append(version)
        return version


def shown(sizes: Sizes) -> str:
    """The text of sizes in a message: `s0=3, s1=4`."""
    return ", ".join(f"{symbol}={size}" for symbol, size in sizes.items())
