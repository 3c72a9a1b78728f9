"""One version of an exported program, for all sizes that satisfy its conditions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from adjoint.errors import LoadError
from adjoint.exported.records import ProgramRecord, SizeRecord, TensorRecord
from adjoint.exported.running import ExportedGraph, ProgramSource
from adjoint.graph.calling import FromGraph, FromRecipe, View
from adjoint.runtime.calling import call
from adjoint.runtime.sharing import sharing
from adjoint.torch_private import trees
from adjoint.torch_private.size_evaluation import first_violated, value_of
from adjoint.torch_private.symbols import Sizes


class Version:
    """A program for some sizes."""

    def __init__(
        self,
        record: ProgramRecord,
        programs: ProgramSource,
        state: Sequence[torch.Tensor],
        closed_over: Sequence[torch.Tensor],
    ) -> None:
        self.record = record
        self.state, self._closed_over = list(state), list(closed_over)
        self._graph = ExportedGraph(record.graph, programs)
        _, self._out_spec = trees.flatten(record.results)
        leaves = [each for each in record.leaves if isinstance(each, TensorRecord)]
        self._tensors = [*record.state, *leaves, *record.closed_over]
        self._sizes_seen: tuple[int, ...] | None = None
        self._written = tuple(write.to.index for write in record.calling.writes)
        self._placed = tuple(place.index for place in record.calling.placements)
        self._shown = self._shown_places()

    def __call__(self, inputs: Sequence[torch.Tensor]) -> object:
        """The results for inputs that fit."""
        results = call(self._graph, self.record.calling, inputs)
        return trees.unflatten(results, self._out_spec)

    def fitted(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """All inputs, with the strides of the export; raises `LoadError` for other sizes.

        `given`: the arguments, all tensors of them.
        """
        inputs = [*self.state, *given, *self._closed_over]
        numbers = tuple([n for each in inputs for n in (*each.shape, *each.stride())])
        if numbers == self._sizes_seen and not (self._written or self._placed):
            return inputs
        for each, record in zip(inputs, self._tensors, strict=True):
            if each.dim() != len(record.shape):
                raise LoadError(f"{record.path} has {each.dim()} axes, and not {len(record.shape)}")
        sizes: Sizes = {s.symbol: inputs[s.input].shape[s.axis] for s in self.record.sizes}
        for size in self.record.sizes:
            self._require_in_range(size, sizes[size.symbol])
        wrong = first_violated(self.record.conditions, sizes)
        if wrong is not None:
            raise LoadError(f"its sizes do not fit: not {wrong}, where {self._names_of(sizes)}")
        fitted = [
            self._with_layout(place, each, record, sizes)
            for place, (each, record) in enumerate(zip(inputs, self._tensors, strict=True))
        ]
        pattern = sharing(inputs, self._written, self._placed)
        if pattern != self.record.sharing:
            raise LoadError("its inputs share memory in another pattern than those of the export")
        if all(a is b for a, b in zip(fitted, inputs, strict=True)):
            self._sizes_seen = numbers
        return fitted

    def _require_in_range(self, record: SizeRecord, size: int) -> None:
        if size < record.least or (record.most is not None and size > record.most):
            most = "" if record.most is None else f" to {record.most}"
            path = self._tensors[record.input].path
            raise LoadError(
                f"{path}.shape[{record.axis}] is {size}, and it was exported for {record.least}"
                f"{most or ' or more'}"
            )

    def _with_layout(
        self, place: int, tensor: torch.Tensor, record: TensorRecord, sizes: Sizes
    ) -> torch.Tensor:
        shape = tuple(value_of(s, sizes) if not isinstance(s, int) else s for s in record.shape)
        if tuple(tensor.shape) != shape:
            raise LoadError(
                f"{record.path} has the shape {list(tensor.shape)}, and it was exported for "
                f"{list(record.shape)}"
            )
        strides = tuple(value_of(s, sizes) if not isinstance(s, int) else s for s in record.strides)
        if _same_layout(shape, tensor.stride(), strides):
            return tensor
        if place in self._shown:
            raise LoadError(
                f"{record.path} has the strides {tensor.stride()}, and it was exported for "
                f"{strides}: it is written to, or returned as a view"
            )
        # Recorded by autograd: the caller's tensor gets its gradient.
        like = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
        return like.copy_(tensor)

    def _shown_places(self) -> frozenset[int]:
        """Inputs whose memory the caller sees again: they are written to, or returned."""
        places = {*self._written, *self._placed}
        for recipe in self.record.calling.recipes:
            of = recipe.of if isinstance(recipe, View) else recipe
            if not isinstance(of, FromGraph | FromRecipe) and hasattr(of, "index"):
                places.add(of.index)
        return frozenset(places)

    def _names_of(self, sizes: Sizes) -> str:
        named = [
            f"{each.symbol} = {self._tensors[each.input].path}.shape[{each.axis}] = "
            f"{sizes[each.symbol]}"
            for each in self.record.sizes
        ]
        return ", ".join(named)


def _same_layout(shape: Sequence[int], strides: Sequence[int], expected: Sequence[int]) -> bool:
    """Whether strides are equal wherever they matter: along axes with more than one element."""
    if 0 in shape:
        return True
    pairs = zip(shape, strides, expected, strict=True)
    return all(size == 1 or a == b for size, a, b in pairs)
