"""Statements of loop nests: a closed union.

    Loop("i", stop, body)             for i in range(stop)
    Assign("a", value)                a name for a value, in the rest of its block
    Accumulator("m", value)           a variable that `Update`s in loops below change
    Accumulator("m", value, per)      one for each turn of the loops `per`, which stand around it;
                                      it is there in later loops with the same counters
    Update("m", "add", value)         m = m + value; a reduction, in any order
    Store("out", offset, value)       out[offset] = value
    Merge("out", offset, "add", value)
                                      out[offset] = out[offset] + value; in any order, one at a time
    TeamMemory("tile", float32, 1024) a buffer of the team's own, for one turn of the parallel loop

A kernel is a list of statements over buffers.  A loop that is `parallel` stands at the top: its
iterations may run at the same time, and it ends when all have.  Where many threads are at hand a
team of them takes each iteration: they share out the `vector` loops in it, each of which ends when
all of the team have come to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

import torch

from adjoint.errors import SourceLine
from adjoint.loops.expressions import Expression, Name
from adjoint.loops.teams import Tile


class Mapping(Enum):
    SERIAL = "serial"
    PARALLEL = "parallel"
    VECTOR = "vector"
    """Iterations are independent, but for accumulators: several may run as one instruction."""


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
    """Counters of loops, and how many turns each has."""


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
    """Other iterations of the parallel loop may come to the same element."""


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
    """How many threads take an iteration of the parallel loop together."""
    tile: Tile | None = None
    """Of a matrix product: the part of it that a team computes; its loops say what it is."""
    remarks: tuple[str, ...] = ()
    """What was decided about it, and why, for those who read it."""


def blocks(statement: Statement) -> tuple[Statement, ...]:
    return statement.body if isinstance(statement, Loop) else ()


def walk(body: tuple[Statement, ...]) -> Iterator[Statement]:
    for statement in body:
        yield statement
        yield from walk(blocks(statement))


def expressions(statement: Statement) -> tuple[Expression, ...]:
    """The expressions that a statement itself holds."""
    match statement:
        case Loop(_, start, stop):
            return (start, stop)
        case Assign(_, value) | Accumulator(_, value) | Update(_, _, value):
            return (value,)
        case Store(_, offset, value) | Merge(_, offset, _, value):
            return (offset, value)
        case TeamMemory():
            return ()


def named(statement: Assign | Accumulator) -> Name:
    return Name(statement.name, statement.value.dtype)
