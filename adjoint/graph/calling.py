"""How a graph is called: what its inputs are made of, and what becomes of its outputs.

A graph is pure.  What its caller sees besides - inputs written to, results that are views of inputs
or of each other - is data here, read by whatever runs the graph:

1. each graph input is made from the caller's inputs (`InputSource`);
2. the graph runs;
3. `moves` and `writes` change the caller's inputs, which until then are as they were;
4. each result is made (`Recipe`), views by replaying the program's own view ops in eager torch, so
   that `_base`, `requires_grad` and the sharing of memory are eager's.

**Invariant.** Indices into the caller's inputs count all leaves, in order; indices into the graph's
outputs count the values that the graph returns.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeAlias

import torch

from adjoint.graph.metadata import Mode
from adjoint.torch_private import trees
from adjoint.torch_private.operators import OpOverload

# What a graph input is made of -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FromCaller:
    """The caller's input, as it is."""

    index: int
    moved: bool = False
    """As it is once `moves` have let it show other memory."""


@dataclass(frozen=True, slots=True)
class BaseOf:
    """What the caller's input is a view of."""

    index: int


@dataclass(frozen=True, slots=True)
class MemoryOf:
    """All memory that the caller's input is a window on, as one axis of `dtype`."""

    index: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token for the first op with effects."""


InputSource: TypeAlias = FromCaller | BaseOf | MemoryOf | NewToken

# What a result is made of ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FromGraph:
    """A value that the graph returned."""

    index: int


@dataclass(frozen=True, slots=True)
class Constant:
    """The same at each call."""

    value: Any


@dataclass(frozen=True, slots=True)
class FromRecipe:
    """Another of what is made: `index` counts in `Calling.made`."""

    index: int


@dataclass(frozen=True)
class Replay:
    """One view op, run again outside the graph; numbers that the graph computed are `FromGraph`.

    As in graphs, `as_strided` counts from where the tensor begins.
    """

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    output: int | None
    mode: Mode
    anew: bool = False
    """Its base was written to after it was made, so that autograd looks at the base again."""

    @functools.cached_property
    def is_fixed(self) -> bool:
        """No argument is a number that the graph computes."""
        leaves = trees.leaves((self.args, dict(self.kwargs)))
        return not any(isinstance(leaf, FromGraph) for leaf in leaves)


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Write a value of the graph, with its history, to a tensor that shares memory."""

    index: int


@dataclass(frozen=True, slots=True)
class Window:
    """A tensor of its own over the same memory, which is no view: what `set_` makes.

    `offset` counts elements from where the tensor that it is made of begins.
    """

    dtype: torch.dtype
    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any


@dataclass(frozen=True, slots=True)
class RequireGrad:
    """Make a leaf that requires grad."""


Step: TypeAlias = Replay | Overwrite | Window | RequireGrad


@dataclass(frozen=True)
class View:
    """What `steps` make of the caller's input, of a value of the graph, or of another such."""

    of: FromCaller | BaseOf | FromGraph | FromRecipe
    steps: tuple[Step, ...]

    @functools.cached_property
    def is_made_anew(self) -> bool:
        return any(isinstance(step, Replay) and step.anew for step in self.steps)

    @functools.cached_property
    def parts(self) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
        """The steps, and those at the end that are view ops."""
        views = len(list(takewhile(lambda step: isinstance(step, Replay), reversed(self.steps))))
        first = len(self.steps) - views
        return self.steps[:first], self.steps[first:]


Recipe: TypeAlias = FromCaller | BaseOf | FromGraph | Constant | View

# What becomes of the caller's inputs -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReplayMetadataOp:
    """An op that changes what memory an input shows: `t_`, `resize_`, `set_`, ..."""

    index: int
    op: OpOverload
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    mode: Mode


@dataclass(frozen=True, slots=True)
class AssignData:
    """`input.data = value`: the input shows other memory, and autograd sees nothing of it."""

    index: int
    value: Recipe


@dataclass(frozen=True, slots=True)
class Write:
    """A value of the graph is written to an input, with its history if `recorded`."""

    to: FromCaller | BaseOf | MemoryOf
    value: int
    recorded: bool


@dataclass(frozen=True, slots=True)
class SetRequiresGrad:
    """`requires_grad_` on an input."""

    index: int
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class StoragePlacement:
    """Where an input lies, as the graph takes for granted: it counts from where memory begins."""

    index: int
    offset: int
    memory: int
    """In bytes."""


@dataclass(frozen=True)
class CallingConvention:
    """The calling convention of one graph."""

    sources: tuple[InputSource, ...]
    metadata_changes: tuple[ReplayMetadataOp | AssignData, ...]
    writes: tuple[Write, ...]
    requires_grad_changes: tuple[SetRequiresGrad, ...]
    versions: tuple[tuple[int, int], ...]
    """(input, how often it was written to): what its version counter advances by."""
    recipes: tuple[Recipe, ...]
    """Distinct results, and what they are views of; a tensor returned twice is made once."""
    results: tuple[int, ...]
    """For each leaf of what the caller receives, which of `made` it is."""
    placements: tuple[StoragePlacement, ...] = ()
    """Of inputs that the program shows other windows of: Dynamo has no guards about them."""
    view_values: tuple[tuple[int, int], ...] = ()
    """(output, which of `made`): views that other results are computed from, and their values."""

    # What follows is asked for in every call.

    @functools.cached_property
    def plain_inputs(self) -> list[int] | None:
        """The caller's inputs that the graph takes, if it takes nothing else and all stay so."""
        given = [source.index for source in self.sources if isinstance(source, FromCaller)]
        return None if self.writes or len(given) < len(self.sources) else given

    @functools.cached_property
    def leaves_inputs_unchanged(self) -> bool:
        """Nothing becomes of the caller's inputs."""
        return not (
            self.metadata_changes or self.writes or self.requires_grad_changes or self.versions
        )

    @functools.cached_property
    def unaliased_outputs(self) -> list[int]:
        """Outputs that are written to inputs, or returned as no views of anything."""
        owned = {write.value for write in self.writes}
        for recipe in self.recipes:
            match recipe:
                case FromGraph(index) | View(FromGraph(index), _):
                    owned.add(index)
        return sorted(owned)
