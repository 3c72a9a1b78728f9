"""Statements of loop nests: a closed union.

    Loop("i", start, stop, body)      for i in range(start, stop)
    Assign("a", value)                a name for a value, in the rest of its block
    Accumulator("m", value)           a variable that `Update`s in later loops change
    Accumulator("m", value, per)      one variable for each iteration of the enclosing loops `per`;
                                      later loops with the same counters see it
    Update("m", "add", value)         m = m + value: a reduction, which may be reassociated
    Store("out", offset, value)       out[offset] = value
    Merge("out", offset, "add", value)
                                      out[offset] = out[offset] + value, in any order
    TeamMemory("tile", float32, 1024) shared memory of a team, for one iteration of the parallel
                                      loop

A kernel is a list of statements over buffers.  `parallel` loops are outermost: their iterations may
run at the same time.  On a GPU a team of threads runs each iteration, and divides the iterations of
the `vector` loops in it; the team synchronizes at the end of each of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

import torch
from typing_extensions import assert_never

from adjoint.errors import SourceLine
from adjoint.loops.expressions import Expression
from adjoint.loops.teams import Tile


class Mapping(Enum):
    """How the iterations of a loop map to threads and vector lanes."""

    SERIAL = "serial"
    PARALLEL = "parallel"
    VECTOR = "vector"
    """Iterations depend on each other through accumulators at most: the loop may be vectorized."""


@dataclass(frozen=True, eq=False, slots=True)
class Loop:
    counter: str
    start: Expression
    stop: Expression
    body: tuple[Statement, ...]
    mapping: Mapping = Mapping.SERIAL


@dataclass(frozen=True, eq=False, slots=True)
class Assign:
    name: str
    value: Expression


@dataclass(frozen=True, eq=False, slots=True)
class Accumulator:
    name: str
    value: Expression
    per: tuple[tuple[str, int], ...] = ()
    """Counters of loops, and the trip count of each."""


@dataclass(frozen=True, eq=False, slots=True)
class Update:
    name: str
    operator: str
    value: Expression


@dataclass(frozen=True, eq=False, slots=True)
class Store:
    buffer: str
    offset: Expression
    value: Expression


@dataclass(frozen=True, eq=False, slots=True)
class Merge:
    buffer: str
    offset: Expression
    operator: str
    value: Expression
    shared: bool = False
    """Other iterations of the parallel loop may update the same element: the update is atomic."""


@dataclass(frozen=True, eq=False, slots=True)
class TeamMemory:
    name: str
    dtype: torch.dtype
    count: int


Statement: TypeAlias = Loop | Assign | Accumulator | Update | Store | Merge | TeamMemory


@dataclass(frozen=True, slots=True)
class Buffer:
    name: str
    dtype: torch.dtype
    written: bool = False


@dataclass(frozen=True, eq=False)
class Kernel:
    """A native function of buffers and extents."""

    name: str
    buffers: tuple[Buffer, ...]
    extents: tuple[str, ...]
    body: tuple[Statement, ...]
    lines: tuple[SourceLine, ...] = field(default=())
    """The user's lines that it computes."""
    team: int = 1
    """How many threads run one iteration of the parallel loop."""
    tile: Tile | None = None
    """How a team computes a matrix product; the loops say what is computed."""
    remarks: tuple[str, ...] = ()
    """Decisions of lowering and their reasons, for readers."""


def body_of(statement: Statement) -> tuple[Statement, ...]:
    """The statements inside of a loop."""
    return statement.body if isinstance(statement, Loop) else ()


def walk(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """All statements, those inside of loops included."""
    for statement in body:
        yield statement
        yield from walk(body_of(statement))


def expressions(statement: Statement) -> tuple[Expression, ...]:
    """The expressions of a statement itself, not of the statements inside of it."""
    match statement:
        case Loop(_, start, stop):
            return (start, stop)
        case Assign(_, value) | Accumulator(_, value) | Update(_, _, value):
            return (value,)
        case Store(_, offset, value) | Merge(_, offset, _, value):
            return (offset, value)
        case TeamMemory():
            return ()
        case _:
            assert_never(statement)


def with_expressions(statement: Statement, change: Callable[[Expression], Expression]) -> Statement:
    """The statement with its own expressions changed, not those of statements inside of it."""
    match statement:
        case Loop(_, start, stop):
            return replace(statement, start=change(start), stop=change(stop))
        case Assign(_, value) | Accumulator(_, value) | Update(_, _, value):
            return replace(statement, value=change(value))
        case Store(_, offset, value) | Merge(_, offset, _, value):
            return replace(statement, offset=change(offset), value=change(value))
        case TeamMemory():
            return statement
        case _:
            assert_never(statement)
