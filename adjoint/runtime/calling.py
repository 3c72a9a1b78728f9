"""Carrying out the calling convention of a graph: runs it, then applies its effects in eager.

The inputs of the graph are made of the caller's; then the graph runs; then the caller's inputs are
mutated (`input_changes.py`) and the results are made (`recipes.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import torch

from adjoint.graph.calling import (
    BaseOf,
    CallingConvention,
    FromCaller,
    InputSource,
    MemoryOf,
    NewToken,
)
from adjoint.graph.evaluation import InOwnMemory
from adjoint.graph.leaves import copy_with_strides
from adjoint.graph.metadata import Mode
from adjoint.open_types import TorchValue
from adjoint.runtime.input_changes import (
    EarlyChanges,
    mutate_inputs,
    whole_memory,
    with_history_of,
)
from adjoint.runtime.recipes import Results, autograd_mode
from adjoint.torch_private.fake import storage_key, storage_keys
from adjoint.torch_private.modes import is_autocast_enabled, without_autocast


@runtime_checkable
class Segmented(Protocol):
    """A runnable graph whose results can be differentiated with respect to each other."""

    def __call__(self, inputs: Sequence[object]) -> Sequence[TorchValue]:
        """The outputs."""
        ...

    def in_segments(self, inputs: Sequence[object], between: BetweenSegments) -> Sequence[object]:
        """The outputs; `between` replays views that other outputs are computed from."""
        ...

    def saved_inputs(self, inputs: Sequence[object]) -> Collection[int]:
        """Positions of the inputs that autograd may save in a call with these."""
        ...


Runnable: TypeAlias = Callable[[Sequence[TorchValue]], Sequence[TorchValue]] | Segmented


def call(graph: Runnable, calling: CallingConvention, inputs: Sequence[object]) -> list[TorchValue]:
    """Run `graph` on `inputs`, apply the program's effects to them, and return its results.

    If the graph raises, nothing that the caller can see has changed.
    """
    if is_autocast_enabled():
        with without_autocast():
            return call(graph, calling, inputs)
    has_history_outside = calling.view_values or calling.recorded_writes
    between = BetweenSegments(calling, inputs) if has_history_outside else None
    if calling.requires_grad_changes:
        with _leaves(calling, inputs):
            outputs = _outputs(graph, calling, inputs, between)
    else:
        outputs = _outputs(graph, calling, inputs, between)
    return finish(calling, inputs, outputs, between)


def _outputs(
    graph: Runnable,
    calling: CallingConvention,
    inputs: Sequence[object],
    between: BetweenSegments | None,
) -> Sequence[object]:
    given = graph_inputs(calling, inputs)
    changes = calling.writes or calling.versions
    if changes and torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
        saved = graph.saved_inputs(given) if isinstance(graph, Segmented) else range(len(given))
        _keep_saved(calling, inputs, given, saved)
    if between is not None and isinstance(graph, Segmented):
        return graph.in_segments(given, between)
    return graph(given)


@contextlib.contextmanager
def _leaves(calling: CallingConvention, inputs: Sequence[TorchValue]) -> Iterator[None]:
    """Apply `requires_grad_` to inputs before the graph runs; undo it if the graph raises."""
    new = [inputs[flag.index] for flag in calling.requires_grad_changes if flag.requires_grad]
    for tensor in new:
        tensor.requires_grad_()
    try:
        yield
    except BaseException:
        for tensor in new:
            tensor.requires_grad_(False)
        raise


def graph_inputs(calling: CallingConvention, inputs: Sequence[object]) -> list[object]:
    """The inputs of the graph, made from the caller's inputs."""
    if calling.plain_inputs is not None:
        return [inputs[index] for index in calling.plain_inputs]
    return [_source(source, inputs) for source in calling.sources]


def _keep_saved(
    calling: CallingConvention,
    inputs: Sequence[TorchValue],
    given: list[object],
    saved: Collection[int],
) -> None:
    """Among the inputs of the graph, put copies in place of those saved and later written to.

    Ops that change metadata advance version counters, too, which autograd compares.
    """
    changed = [write.to.index for write in calling.writes]
    changed += [index for index, _ in calling.versions]
    written = {storage_key(inputs[index]) for index in changed} - {None}
    for place in saved:
        value, source = given[place], calling.sources[place]
        if not isinstance(value, torch.Tensor) or not isinstance(source, FromCaller | BaseOf):
            continue
        if storage_key(value) in written:
            given[place] = _copied(value)


def _source(source: InputSource, inputs: Sequence[TorchValue]) -> object:
    match source:
        case FromCaller() | BaseOf():
            value = inputs[source.index]
            if not isinstance(value, torch.Tensor):
                return value
            if isinstance(source, BaseOf):
                value = value._base
                assert value is not None
            return value
        case MemoryOf(index, dtype):
            return whole_memory(inputs[index], dtype).clone()
        case NewToken():
            return torch.empty(0)


class BetweenSegments:
    """Makes the inputs of later segments from outputs of earlier ones.

    An output that the caller receives as a replayed view is replayed first, and one that is written
    to an input is written first, so that results computed from it have their autograd history
    through that view or input.  An input that is a view of what was written has its new history
    from autograd, too.
    """

    def __init__(self, calling: CallingConvention, inputs: Sequence[object]) -> None:
        self.calling = calling
        self.inputs = inputs
        self.made: dict[int, object] = {}
        self.early = EarlyChanges(calling, inputs)
        self._shown = dict(calling.view_values)
        # An input that metadata ops move has the shape of what is written to it only after them.
        self._moving = moving = {move.index for move in calling.metadata_changes}
        writes = calling.recorded_writes.items()
        self._inputs_for = {value: to for value, to in writes if to.index not in moving}

    def separate(self, outputs: Sequence[object]) -> list[object]:
        """The outputs, each in memory of its own; called before they have autograd history.

        One segment may pass to another a view of an input that is written to before the other
        segment runs.
        """
        separate = list(in_own_memory(self.calling.unaliased_outputs, self.inputs, outputs))
        written = storage_keys([self.inputs[to.index] for to in self._inputs_for.values()])
        for place, value in enumerate(separate):
            if isinstance(value, torch.Tensor) and storage_key(value) in written:
                separate[place] = _copied(value)
        return separate

    def at(self, output: int, outputs: Sequence[object]) -> object:
        """The input of a later segment for `output`, whose own history must be complete."""
        position, to = self._shown.get(output), self._inputs_for.get(output)
        value = outputs[output]
        if to is not None and isinstance(value, torch.Tensor) and value.requires_grad:
            return self.early.write(output, value, to)
        if position is None:
            return value
        self.early.write_unrecorded(outputs)
        recipe = self.calling.recipes[position]
        results = Results(self.calling, self.inputs, outputs, self.made)
        if isinstance(recipe, FromCaller) and recipe.index in self._moving:
            self.early.move(results)
        shown = results.at(position)
        if isinstance(recipe, FromCaller):
            assert isinstance(shown, torch.Tensor)
            assert isinstance(value, torch.Tensor)
            # The memory of an input may be written to once more.
            return with_history_of(shown, value)
        return shown


def finish(
    calling: CallingConvention,
    inputs: Sequence[object],
    outputs: Sequence[object],
    between: BetweenSegments | None = None,
) -> list[object]:
    """Mutate the caller's inputs and make the results, except for what was done `between`
    segments."""
    outputs = in_own_memory(calling.unaliased_outputs, inputs, outputs)
    if calling.plain_results is not None and between is None:
        return [outputs[index] for index in calling.plain_results]
    results = Results(calling, inputs, outputs, None if between is None else between.made)
    if not calling.leaves_inputs_unchanged:
        mutate_inputs(calling, inputs, results, None if between is None else between.early)
    return [results.at(position) for position in calling.results]


def in_own_memory(
    places: Sequence[int], inputs: Sequence[object], outputs: Sequence[object]
) -> Sequence[object]:
    """`outputs`, with those at `places` copied that alias another tensor.

    A graph defines values, not memory: a program may compute one output as a view of another, or
    of an input.
    """
    if isinstance(outputs, InOwnMemory):
        return outputs
    taken = storage_keys(inputs)
    separate = list(outputs)
    for index in places:
        value = outputs[index]
        if isinstance(value, torch.Tensor):
            memory = storage_key(value)
            if value._is_view() or memory in taken:
                separate[index] = value = _copied(value)
                memory = storage_key(value)
            if memory is not None:
                taken.add(memory)
    return separate


def _copied(value: torch.Tensor) -> torch.Tensor:
    """A copy with the strides of the tensor, which autograd records as an operator would be."""
    with autograd_mode(Mode(grad_enabled=True, inference=value.is_inference())):
        return copy_with_strides(value)
