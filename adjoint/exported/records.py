"""What an exported program consists of, as plain data.

Programs are numbers: places in the list of plans of the file.  A graph and its derivatives are a
tree: each backward is a graph again, down to the order that was exported.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy
import torch

from adjoint.forms.form import Form
from adjoint.graph import calling as c
from adjoint.graph.derivative import NodeLayout, Segments
from adjoint.graph.metadata import Mode
from adjoint.loops.plan import Size


@dataclass(frozen=True)
class GraphRecord:
    """A graph that runs, and that autograd may differentiate."""

    plain: int
    """The program that runs it without a history."""
    node: NodeRecord | None
    """Its derivative; None: no result has one, or it was not exported."""
    ends: bool
    """Whether its derivative was not exported."""


@dataclass(frozen=True)
class NodeRecord:
    """The autograd node of a graph."""

    layout: NodeLayout
    wrt: tuple[int, ...]
    """Positions of the inputs that it is differentiated with respect to."""
    forward: int
    """The program that also returns saved values; of a segment, that of the whole."""
    depends: tuple[frozenset[int], ...]
    """For each of `wrt`, the outputs that require grad if only this input does."""
    backwards: tuple[BackwardRecord, ...]
    segments: tuple[NodeRecord, ...] = ()


@dataclass(frozen=True)
class BackwardRecord:
    """A backward graph; numbers are positions among the values of a run of the forward graph."""

    of: tuple[int, ...]
    """The outputs whose cotangents it takes."""
    saved: tuple[int, ...]
    """The saved values that it takes."""
    zeros: tuple[int, ...]
    """The gradients that it returns as None where eager returns zeros."""
    graph: GraphRecord


@dataclass(frozen=True)
class TensorRecord:
    """A tensor that the program takes."""

    path: str
    """Its name for the caller: `args[0]`, or that of a parameter."""
    dtype: torch.dtype
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    device: str = "cpu"


@dataclass(frozen=True)
class ConstantRecord:
    """An argument that is no tensor: the program is specialized to it."""

    path: str
    value: object


@dataclass(frozen=True)
class SizeRecord:
    """A size that may vary."""

    symbol: sympy.Symbol
    input: int
    axis: int
    least: int
    most: int | None
    """None: no bound."""


@dataclass(frozen=True)
class ProgramRecord:
    """An exported program."""

    orders: int
    """How often it can be differentiated."""
    positional: tuple[str, ...]
    """The names of the arguments that are given by position."""
    arguments: tuple[tuple[object, ...], dict[str, object]]
    """`(args, kwargs)` with the number of a leaf in the place of each leaf."""
    leaves: tuple[TensorRecord | ConstantRecord, ...]
    results: object
    """What it returns, with numbers in the place of leaves."""
    state: tuple[TensorRecord, ...]
    """Parameters and buffers of a module: inputs before the arguments."""
    closed_over: tuple[TensorRecord, ...]
    """Tensors of the function's closure: inputs after the arguments."""
    differentiable: tuple[int, ...]
    """Inputs that it can be differentiated with respect to."""
    sizes: tuple[SizeRecord, ...]
    conditions: tuple[sympy.Basic, ...]
    """What holds for sizes that the program can be called with."""
    calling: c.CallingConvention
    sharing: object
    """How inputs may share memory, if that matters (`runtime/entry.py`)."""
    graph: GraphRecord


RECORD_FORM = Form(
    [
        *(ProgramRecord, GraphRecord, NodeRecord, BackwardRecord, TensorRecord, ConstantRecord),
        *(SizeRecord, NodeLayout, Segments, Mode, *c.RECORDS),
    ]
)
