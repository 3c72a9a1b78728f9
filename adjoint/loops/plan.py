"""A plan: kernels and calls of other operators, in order, over numbered slots.

A slot is a value of the program: an input, the result of a call, a tensor that the program returns,
or one that lives only inside it.  Sizes are expressions over the sizes of inputs; whoever runs the
plan knows them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import sympy
import torch

from adjoint.loops.statements import Kernel

Size: TypeAlias = "int | sympy.Expr"


class SlotKind(Enum):
    INPUT = "input"
    RESULT = "result"
    """Of a call."""
    OUTPUT = "output"
    """Made by kernels, and returned."""
    TEMPORARY = "temporary"
    """Made by kernels or by a call that writes where it is told, and gone with the program."""
    LOCAL = "local"
    """Made and used while some rows are worked on: there is never more of it than those."""


@dataclass(frozen=True)
class Slot:
    number: int
    kind: SlotKind
    shape: tuple[Size, ...] | None = None
    """None: no tensor that kernels could read."""
    strides: tuple[Size, ...] = ()
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class Scratch:
    """Memory that a kernel needs while it runs: `count` elements for each chunk of rows."""

    name: str
    dtype: torch.dtype
    count: Size


# So many threads keep a machine of very many busy where each has a few rows to add up.
FULL_OCCUPANCY_THREADS = 1 << 17


@dataclass(frozen=True)
class Grid:
    """How many teams of threads a kernel is for."""

    count: Size
    """Teams; or, if it is `chunked`, teams for each chunk of rows."""
    chunked: bool = False
    rows: Size = 0
    """How many rows are shared out in chunks; 0: none are."""
    threads: Size = 1
    """How many threads work on a chunk."""
    min_rows: int = 1
    """Rows that a chunk has at least."""


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel, with its buffers; it takes the number of chunks, then `extents`."""

    kernel: Kernel
    operands: tuple[int | Scratch, ...]
    extents: tuple[Size, ...]
    work: Size
    grid: Grid | None = None
    """Where there are very many threads."""
    nodes: tuple[str, ...] = ()
    """The nodes of the graph that it computes."""


@dataclass(frozen=True)
class Argument:
    """Stands for the value of a slot among the arguments of a call."""

    slot: int


@dataclass(frozen=True)
class Number:
    """Stands for a size among the arguments of a call."""

    size: Size


@dataclass(frozen=True)
class ExpectedTensor:
    """What a call is expected to return: one tensor of it."""

    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, eq=False)
class LibraryCall:
    """A call of an operator."""

    target: Callable[..., Any]
    args: Any
    kwargs: Any
    result: int
    aliases: bool = False
    """The result may share memory with an argument."""
    is_view: bool = False
    """It does nothing else: made once, if the tensor stays where it is."""
    writes: bool = False
    """Into the tensor of its slot, given as `out`."""
    line: str = ""
    uncapturable: str = ""
    """Why a device cannot do it again by itself; empty: it can."""
    op: Any = None
    """The operator of the graph."""
    expected: tuple[ExpectedTensor | None, ...] = ()
    """What the plan was made for, for each tensor that it returns; empty: it is not looked at."""
    reads_layout: bool = False
    """What it makes of a tensor depends on how that lies in memory."""


@dataclass(frozen=True)
class Matrix:
    """A view of a slot with two dimensions."""

    slot: int
    offset: Size
    strides: tuple[Size, Size]


@dataclass(frozen=True, eq=False)
class Product:
    """Rows of `left @ right`; or, where the rows are what is summed over, their part of it."""

    left: Matrix
    right: Matrix
    result: int | Scratch
    shape: tuple[Size, Size, Size]
    """Rows, columns, and how many are summed over; what is tiled counts in full."""
    sums: bool
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class RowTiles:
    """Kernels and products that a thread runs one after another for some rows at a time.

    The kernels of `begin` run once for each thread.  All take, after the number of chunks, the
    thread, the first row and the last.
    """

    rows: Size
    work: Size
    """How many elements it goes through, about; its kernels say the same, for as many chunks."""
    begin: tuple[Launch, ...]
    body: tuple[Launch | Product, ...]
    strides: Mapping[int, Size]
    """For each slot that lies by rows: how many elements from one row to the next."""


Step: TypeAlias = Launch | LibraryCall | RowTiles


def operands_of(step: Launch | Product | RowTiles) -> list[int | Scratch]:
    """The memory that a step reads or writes."""
    match step:
        case Launch(_, operands):
            return list(operands)
        case Product(left, right, result):
            return [left.slot, right.slot, result]
        case RowTiles(_, _, begin, body):
            return [operand for each in (*begin, *body) for operand in operands_of(each)]


@dataclass(frozen=True, eq=False)
class Plan:
    slots: tuple[Slot, ...]
    inputs: tuple[int, ...]
    symbols: tuple[tuple[sympy.Symbol, int, int], ...]
    """For each symbol: the input and the dimension whose size it is; -1: the input itself."""
    steps: tuple[Step, ...]
    outputs: Any
    """As the graph returns them, with `Argument` for values."""
    assumed: tuple[sympy.Basic, ...] = field(default=())
    """What it takes for granted about sizes."""
    streams: int = 0
    """Streams of random numbers that it draws; if there are any, its last input says which."""
