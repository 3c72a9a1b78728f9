"""A plan: kernel launches and library calls, in order, over numbered slots.

A slot is a value of the program: an input, the result of a library call, an output, or a temporary.
Sizes are expressions over the sizes of inputs, which are known when the plan runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

import sympy
import torch
from typing_extensions import assert_never

from adjoint.errors import SourceLine
from adjoint.loops.statements import Kernel
from adjoint.open_types import Callee, OpArgument, OpArguments, OpKeywords
from adjoint.torch_private import trees

Size: TypeAlias = "int | sympy.Expr"


class SlotKind(Enum):
    INPUT = "input"
    RESULT = "result"
    """Allocated and returned by a library call."""
    OUTPUT = "output"
    """Written by kernels in memory of its own, and returned by the program, or freed after its last
    use."""
    TEMPORARY = "temporary"
    """Written by kernels, or by a library call given `out`, and freed when the program ends."""
    LOCAL = "local"
    """A temporary of row tiles: memory holds only the rows of one tile."""


@dataclass(frozen=True)
class Slot:
    number: int
    kind: SlotKind
    shape: tuple[Size, ...] | None = None
    """None: not a tensor that kernels can read."""
    strides: tuple[Size, ...] = ()
    dtype: torch.dtype | None = None
    replaces: int | None = None
    """The input in whose memory this output is stored, which it is the new value of."""

    @property
    def stored_shape(self) -> tuple[Size, ...]:
        """The sizes of the axes along which elements differ in memory: not those of `expand`."""
        shape = self.shape or ()
        strides = self.strides or (1,) * len(shape)
        return tuple(size for size, step in zip(shape, strides, strict=True) if step != 0)


@dataclass(frozen=True)
class Scratch:
    """Workspace of a kernel: `count` elements for each chunk of rows."""

    name: str
    dtype: torch.dtype
    count: Size


# Threads that fully occupy a GPU when each reduces a few rows.
FULL_OCCUPANCY_THREADS = 1 << 17


@dataclass(frozen=True)
class Grid:
    """The launch grid of a GPU kernel, in teams of threads."""

    count: Size
    """Teams; if `chunked`, teams for each chunk of rows."""
    chunked: bool = False
    rows: Size = 0
    """How many rows are divided into chunks; 0: none are."""
    threads: Size = 1
    """How many threads reduce one chunk."""
    min_rows: int = 1
    """The fewest rows of a chunk."""


@dataclass(frozen=True, eq=False)
class Launch:
    """The launch of a kernel on slots; its extents are the number of chunks, then `extents`."""

    kernel: Kernel
    operands: tuple[int | Scratch, ...]
    extents: tuple[Size, ...]
    work: Size
    """How many elements it iterates over, roughly: decides the number of threads."""
    grid: Grid | None = None
    """None: the kernel is for the CPU."""
    nodes: tuple[str, ...] = ()
    """The nodes of the graph that it computes."""
    title: str = "kernel"
    """Its name in profiles and reports, after the user's operators."""


@dataclass(frozen=True)
class Argument:
    """Stands for the value of a slot among the arguments of a library call."""

    slot: int


@dataclass(frozen=True)
class Number:
    """Stands for a size among the arguments of a library call."""

    size: Size


@dataclass(frozen=True)
class ExpectedTensor:
    """A tensor that a library call is expected to return."""

    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, eq=False)
class HeldConstant:
    """The target of a call that returns a constant of the graph."""

    name: str
    """The attribute of the graph that holds it."""
    value: object

    def __call__(self) -> object:
        return self.value


@dataclass(frozen=True, eq=False)
class LibraryCall:
    """The call of an operator that is not lowered to a kernel."""

    target: Callee
    args: OpArguments
    kwargs: OpKeywords
    result: int
    aliases: bool = False
    """The result may share memory with an argument."""
    is_view: bool = False
    """The result is a view: it is made once for an argument at a fixed address."""
    writes: bool = False
    """It writes to the tensor of its slot, passed as `out`."""
    line: str = ""
    """The user's line."""
    uncapturable: str = ""
    """Why a CUDA graph cannot capture it; empty: it can."""
    op: Callee | None = None
    """The target of the graph's node."""
    expected: tuple[ExpectedTensor | None, ...] = ()
    """What the plan assumes of each tensor that it returns; empty: nothing is checked."""
    reads_layout: bool = False
    """The result depends on the strides of the arguments."""


@dataclass(frozen=True)
class Matrix:
    """A two-dimensional view of a slot."""

    slot: int
    offset: Size
    strides: tuple[Size, Size]


@dataclass(frozen=True, eq=False)
class Product:
    """A matrix product by the BLAS; inside of row tiles some rows of it, or a sum over them."""

    left: Matrix
    right: Matrix
    result: int | Scratch
    shape: tuple[Size, Size, Size]
    """The rows, columns and inner dimension of the whole product."""
    sums: bool
    """The rows of a tile are summed over: each thread has a partial result."""
    dtype: torch.dtype
    line: SourceLine | None = None
    """The user's line."""


@dataclass(frozen=True, eq=False)
class RowTiles:
    """Kernels and products that a thread runs one after another for each tile of rows.

    What one writes for a tile is in the cache when the next reads it.  All kernels take the number
    of chunks, the thread, the first row and the last row, before their other extents.
    """

    rows: Size
    work: Size
    """As of `Launch`; its kernels have the same, so that they have as many chunks."""
    begin: tuple[Launch, ...]
    """Run once for each thread, before its rows."""
    body: tuple[Launch | Product, ...]
    strides: Mapping[int, Size]
    """For each slot that is tiled: the stride from one row to the next."""


Step: TypeAlias = Launch | LibraryCall | RowTiles | Product

# Steps that native code runs.
NativeStep: TypeAlias = Launch | RowTiles | Product


def operands_of(step: NativeStep) -> list[int | Scratch]:
    """The slots and workspaces that a step reads or writes."""
    match step:
        case Launch(_, operands):
            return list(operands)
        case Product(left, right, result):
            return [left.slot, right.slot, result]
        case RowTiles(_, _, begin, body):
            return [operand for each in (*begin, *body) for operand in operands_of(each)]
        case _:
            assert_never(step)


def arguments_of(step: LibraryCall) -> list[int]:
    """The slots among the arguments of a library call."""
    leaves = trees.leaves((step.args, step.kwargs))
    return [leaf.slot for leaf in leaves if isinstance(leaf, Argument)]


@dataclass(frozen=True, eq=False)
class Plan:
    slots: tuple[Slot, ...]
    inputs: tuple[int, ...]
    symbols: tuple[tuple[sympy.Symbol, int, int], ...]
    """Each symbol of sizes, with the input and dimension it is read from; -1: the input itself."""
    steps: tuple[Step, ...]
    outputs: OpArgument
    """As the graph returns them, with `Argument` for values."""
    assumed: tuple[sympy.Basic, ...] = field(default=())
    """Assumptions about sizes."""
    gives_back: bool = False
    """Whether memory is given back after each call, and not kept for the next one: the program has
    checkpoints, so memory matters more than the time that allocating it takes."""
    streams: int = 0
    """Random streams that kernels draw from; if there are any, the last input is their seeds."""

    @property
    def launches(self) -> list[Launch]:
        """All kernel launches, those inside row tiles included."""
        found: list[Launch] = []
        for step in self.steps:
            if isinstance(step, Launch):
                found.append(step)
            elif isinstance(step, RowTiles):
                found += [*step.begin, *(each for each in step.body if isinstance(each, Launch))]
        return found
