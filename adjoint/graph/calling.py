"""The calling convention of a graph: where its inputs come from, and what its outputs are used for.

A graph is pure.  The effects that its caller sees - inputs written in place, results that are views
of inputs or of each other - are data here; the runtime carries them out:

1. each graph input is taken from the caller's inputs (`InputSource`);
2. the graph runs;
3. `metadata_changes` and `writes` mutate the caller's inputs, which were untouched until then;
4. each result is made by its `Recipe`: views by replaying the program's own view ops in eager
   torch, so that `_base`, `requires_grad` and aliasing are eager's.

**Invariant.** Indices into the caller's inputs count all leaves, in order; indices into the graph's
outputs count the values that the graph returns.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeAlias, get_args

import torch
from typing_extensions import assert_never

from adjoint.graph.metadata import Mode
from adjoint.torch_private import trees
from adjoint.torch_private.operators import OpOverload

# Where a graph input comes from -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FromCaller:
    """The caller's input itself."""

    index: int
    moved: bool = False
    """Whether it is read after `metadata_changes`, which may move it to other memory."""


@dataclass(frozen=True, slots=True)
class BaseOf:
    """The `_base` of the caller's input, which is a view."""

    index: int


@dataclass(frozen=True, slots=True)
class MemoryOf:
    """The whole storage of the caller's input, as a flat tensor of `dtype`."""

    index: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token for the first op with side effects."""


InputSource: TypeAlias = FromCaller | BaseOf | MemoryOf | NewToken

# How a result is made -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FromGraph:
    """An output of the graph."""

    index: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is the same in every call."""

    value: object


@dataclass(frozen=True, slots=True)
class FromRecipe:
    """The value of another recipe: `index` counts in `CallingConvention.recipes`."""

    index: int


@dataclass(frozen=True)
class Replay:
    """Replay one view op outside the graph; arguments that the graph computes are `FromGraph`.

    As in graphs, the storage offset of `as_strided` counts from the first element of its argument.
    """

    op: OpOverload
    args: tuple[object, ...]
    kwargs: tuple[tuple[str, object], ...]
    output: int | None
    mode: Mode
    regenerated: bool = False
    """The base was written to after the view was made, so autograd regenerates the view."""

    @functools.cached_property
    def is_fixed(self) -> bool:
        """Whether no argument is computed by the graph."""
        leaves = trees.leaves((self.args, dict(self.kwargs)))
        return not any(isinstance(leaf, FromGraph) for leaf in leaves)

    @functools.cached_property
    def is_plain(self) -> bool:
        """Whether it is replayed by one call of the op with these arguments."""
        is_relative = self.op is torch.ops.aten.as_strided.default
        return self.is_fixed and not is_relative and torch.Tag.inplace_view not in self.op.tags


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Copy an output of the graph, with its autograd history, into the aliasing tensor made so
    far."""

    index: int


@dataclass(frozen=True, slots=True)
class Window:
    """A tensor over the same storage that is not a view for autograd, as `set_` makes one.

    `offset` counts elements from the first element of the tensor that it is made of.
    """

    dtype: torch.dtype
    shape: tuple[object, ...]
    stride: tuple[object, ...]
    offset: object


@dataclass(frozen=True, slots=True)
class RequireGrad:
    """`requires_grad_()`: the tensor becomes a leaf."""


Step: TypeAlias = Replay | Overwrite | Window | RequireGrad


@dataclass(frozen=True)
class View:
    """The result of `steps`, applied in order to a caller's input, a graph output or a recipe."""

    of: FromCaller | BaseOf | FromGraph | FromRecipe
    steps: tuple[Step, ...]

    @functools.cached_property
    def is_regenerated(self) -> bool:
        """Whether Autograd regenerates one of the views among the steps."""
        return any(isinstance(step, Replay) and step.regenerated for step in self.steps)

    @functools.cached_property
    def parts(self) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
        """The steps in two parts, of which the second is the longest suffix of view ops."""
        views = len(list(takewhile(lambda step: isinstance(step, Replay), reversed(self.steps))))
        first = len(self.steps) - views
        return self.steps[:first], self.steps[first:]


Recipe: TypeAlias = FromCaller | BaseOf | FromGraph | Constant | View

# How the caller's inputs change -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReplayMetadataOp:
    """Replay an in-place op that changes the metadata of an input: `t_`, `resize_`, `set_`, ..."""

    index: int
    op: OpOverload
    args: tuple[object, ...]
    kwargs: tuple[tuple[str, object], ...]
    mode: Mode


@dataclass(frozen=True, slots=True)
class AssignData:
    """`input.data = value`: the input shows other memory, which autograd does not notice."""

    index: int
    value: Recipe


@dataclass(frozen=True, slots=True)
class Write:
    """Copy an output of the graph into an input; autograd records the copy if `recorded`."""

    to: FromCaller | BaseOf | MemoryOf
    value: int
    recorded: bool

    @property
    def is_early_and_unrecorded(self) -> bool:
        """Whether it is to memory of which views may be made right after it."""
        is_moved = isinstance(self.to, FromCaller) and self.to.moved
        return not (self.recorded or is_moved or isinstance(self.to, MemoryOf))


@dataclass(frozen=True, slots=True)
class SetRequiresGrad:
    """`requires_grad_(...)` on an input."""

    index: int
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class StoragePlacement:
    """A guard on the storage offset and the storage size of an input.

    A graph has it if the program used an absolute storage offset.
    """

    index: int
    offset: int
    """In elements."""
    nbytes: int
    """The size of the storage."""


@dataclass(frozen=True)
class CallingConvention:
    """How one graph is called."""

    sources: tuple[InputSource, ...]
    metadata_changes: tuple[ReplayMetadataOp | AssignData, ...]
    writes: tuple[Write, ...]
    requires_grad_changes: tuple[SetRequiresGrad, ...]
    versions: tuple[tuple[int, int], ...]
    """(input, by how much its version counter advances)."""
    recipes: tuple[Recipe, ...]
    """Of distinct results, and of the bases of views; a tensor returned twice is made once."""
    results: tuple[int, ...]
    """For each leaf that the caller receives, its position in `recipes`."""
    placements: tuple[StoragePlacement, ...] = ()
    """Checked in each call, because Dynamo has no guards on storage offsets."""
    view_values: tuple[tuple[int, int], ...] = ()
    """(output, recipe): values of returned views and of inputs, which results are computed from."""

    # The properties below are read in every call.

    @functools.cached_property
    def plain_inputs(self) -> list[int] | None:
        """The caller's inputs that the graph takes, if it takes only these and writes to none."""
        given = [source.index for source in self.sources if isinstance(source, FromCaller)]
        return None if self.writes or len(given) < len(self.sources) else given

    @functools.cached_property
    def plain_results(self) -> list[int] | None:
        """The outputs that are the results, if all results are outputs and no input changes."""
        recipes = [self.recipes[position] for position in self.results]
        outputs = [recipe.index for recipe in recipes if isinstance(recipe, FromGraph)]
        is_plain = self.leaves_inputs_unchanged and len(outputs) == len(recipes)
        return outputs if is_plain else None

    @functools.cached_property
    def recorded_writes(self) -> dict[int, FromCaller | BaseOf]:
        """By output: the input that it is written to, where autograd records that."""
        return {
            write.value: write.to
            for write in self.writes
            if write.recorded and not isinstance(write.to, MemoryOf)
        }

    @functools.cached_property
    def leaves_inputs_unchanged(self) -> bool:
        """Whether neither data nor metadata of the caller's inputs change."""
        changes = (self.metadata_changes, self.writes, self.requires_grad_changes, self.versions)
        return not any(changes)

    @functools.cached_property
    def unaliased_outputs(self) -> list[int]:
        """Graph outputs that need their own storage: those copied into inputs, returned, or
        viewed."""
        outputs = {write.value for write in self.writes}
        for recipe in self.recipes:
            match recipe:
                case FromGraph(index) | View(FromGraph(index), _):
                    outputs.add(index)
                case FromCaller() | BaseOf() | Constant() | View():
                    pass
                case _:
                    assert_never(recipe)
        return sorted(outputs)


# All types that a calling convention may consist of.
Record: TypeAlias = (
    CallingConvention
    | InputSource
    | Recipe
    | FromRecipe
    | Step
    | ReplayMetadataOp
    | AssignData
    | Write
    | SetRequiresGrad
    | StoragePlacement
)
RECORDS: tuple[type, ...] = get_args(Record)
