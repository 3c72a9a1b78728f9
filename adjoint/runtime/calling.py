"""Carrying out the calling convention of a graph: runs it, then applies its effects in eager."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import torch

from adjoint.graph.calling import (
    AssignData,
    BaseOf,
    CallingConvention,
    Constant,
    FromCaller,
    FromGraph,
    FromRecipe,
    InputSource,
    MemoryOf,
    NewToken,
    Overwrite,
    Recipe,
    Replay,
    ReplayMetadataOp,
    RequireGrad,
    Step,
    View,
    Window,
    Write,
)
from adjoint.graph.evaluation import InOwnMemory, strided_from_start
from adjoint.graph.metadata import Mode
from adjoint.open_types import Callee, TorchValue
from adjoint.torch_private import trees
from adjoint.torch_private.autograd import set_version
from adjoint.torch_private.fake import storage_key, storage_keys
from adjoint.torch_private.modes import is_autocast_enabled, without_autocast
from adjoint.torch_private.operators import OpOverload
from adjoint.torch_private.storages import foreach_copy


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


def _as_strided_from_start_(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0
) -> torch.Tensor:
    return x.as_strided_(size, stride, x.storage_offset() + offset)


_FROM_START: dict[object, Callable[..., torch.Tensor]] = {
    torch.ops.aten.as_strided.default: strided_from_start,
    torch.ops.aten.as_strided_.default: _as_strided_from_start_,
}


def call(graph: Runnable, calling: CallingConvention, inputs: Sequence[object]) -> list[TorchValue]:
    """Run `graph` on `inputs`, apply the program's effects to them, and return its results.

    If the graph raises, nothing that the caller can see has changed.
    """
    if is_autocast_enabled():
        with without_autocast():
            return call(graph, calling, inputs)
    between = BetweenSegments(calling, inputs) if calling.view_values else None
    if calling.requires_grad_changes:
        with _leaves(calling, inputs):
            outputs = _outputs(graph, calling, inputs, between)
    else:
        outputs = _outputs(graph, calling, inputs, between)
    return finish(calling, inputs, outputs, None if between is None else between.made)


def _outputs(
    graph: Runnable,
    calling: CallingConvention,
    inputs: Sequence[object],
    between: BetweenSegments | None,
) -> Sequence[object]:
    given = graph_inputs(calling, inputs)
    if calling.writes and torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
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
    """Replace what is saved and will be written to by copies, among the inputs of the graph."""
    written = {storage_key(inputs[write.to.index]) for write in calling.writes} - {None}
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
            return _whole_memory(inputs[index], dtype).clone()
        case NewToken():
            return torch.empty(0)


def _whole_memory(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    storage = tensor.untyped_storage()
    flat = torch.empty(0, dtype=dtype, device=tensor.device)
    with torch.no_grad():
        return flat.set_(storage, 0, (storage.nbytes() // dtype.itemsize,), (1,))


class BetweenSegments:
    """Makes the inputs of later segments from outputs of earlier ones.

    An output that the caller receives as a replayed view is replayed first, so that results
    computed from it have their autograd history through that view.
    """

    def __init__(self, calling: CallingConvention, inputs: Sequence[object]) -> None:
        self.calling = calling
        self.inputs = inputs
        self.made: dict[int, object] = {}
        self._shown = dict(calling.view_values)

    def separate(self, outputs: Sequence[object]) -> list[object]:
        """The outputs, each in memory of its own; called before they have autograd history."""
        return list(_in_own_memory(self.calling, self.inputs, outputs))

    def at(self, output: int, outputs: Sequence[object]) -> object:
        """The input of a later segment for `output`, whose own history must be complete."""
        position = self._shown.get(output)
        if position is None:
            return outputs[output]
        return _Results(self.calling, self.inputs, outputs, self.made).at(position)


def finish(
    calling: CallingConvention,
    inputs: Sequence[object],
    outputs: Sequence[object],
    made: dict[int, object] | None = None,
) -> list[object]:
    """Mutate the caller's inputs and make the results, except those `made` already."""
    outputs = _in_own_memory(calling, inputs, outputs)
    if calling.plain_results is not None and made is None:
        return [outputs[index] for index in calling.plain_results]
    results = _Results(calling, inputs, outputs, made)
    if not calling.leaves_inputs_unchanged:
        _mutate_inputs(calling, inputs, results)
    return [results.at(position) for position in calling.results]


def _mutate_inputs(
    calling: CallingConvention, inputs: Sequence[TorchValue], results: _Results
) -> None:
    """Apply the program's mutations to the caller's inputs."""
    counted = [(inputs[i], by) for i, by in calling.versions if not inputs[i].is_inference()]
    versions = [(tensor, tensor._version) for tensor, _ in counted]
    # Views of an input are made before a metadata op changes the memory that the input covers.
    results.make_views_of({move.index for move in calling.metadata_changes})
    for move in calling.metadata_changes:
        if isinstance(move, AssignData):
            inputs[move.index].data = results.make(move.value)
        else:
            _replay_metadata_op(move, inputs, results)
    _write(calling.writes, inputs, results.outputs)
    for flag in calling.requires_grad_changes:
        inputs[flag.index].requires_grad_(flag.requires_grad)
    # Set in two steps: tensors that are not views of each other may share a version counter.
    for tensor, version in versions:
        set_version(tensor, version)
    for tensor, by in counted:
        set_version(tensor, tensor._version + by)


def _write(
    writes: Sequence[Write], inputs: Sequence[object], outputs: Sequence[TorchValue]
) -> None:
    """Copy outputs of the graph into the caller's inputs, those without a history all at once."""
    plain: list[tuple[torch.Tensor, torch.Tensor]] = []
    for write in writes:
        target, value = _target(write.to, inputs), outputs[write.value]
        if value is target:
            # A kernel has stored the new value there; a recorded write also ends its history.
            if not (write.recorded and target.requires_grad):
                continue
            value = value.detach()
        if not (write.recorded or target._is_view()) and _are_alike(target, value):
            plain.append((target, value))
            continue
        with _mode(Mode(grad_enabled=write.recorded)):
            _update_history(target)
            target.copy_(value)
    if plain:
        with _mode(Mode(grad_enabled=False)):
            foreach_copy(plain)


def _are_alike(target: torch.Tensor, value: torch.Tensor) -> bool:
    if type(target) not in (torch.Tensor, torch.nn.Parameter) or type(value) is not torch.Tensor:
        return False
    return (target.dtype, target.device, target.shape) == (value.dtype, value.device, value.shape)


def _update_history(view: torch.Tensor) -> None:
    """Update the history of `view` after a write to its base; in-place ops do not do that."""
    with contextlib.suppress(RuntimeError):
        _ = view.grad_fn


def _target(to: FromCaller | BaseOf | MemoryOf, inputs: Sequence[TorchValue]) -> torch.Tensor:
    tensor: torch.Tensor = inputs[to.index]
    match to:
        case FromCaller():
            return tensor
        case BaseOf():
            assert tensor._base is not None
            return tensor._base
        case MemoryOf(_, dtype):
            return _whole_memory(tensor, dtype)


def _in_own_memory(
    calling: CallingConvention, inputs: Sequence[object], outputs: Sequence[object]
) -> Sequence[object]:
    """`outputs`, with those copied that need their own storage and alias another tensor.

    A graph defines values, not memory: a program may compute one output as a view of another, or
    of an input.
    """
    if isinstance(outputs, InOwnMemory):
        return outputs
    taken = storage_keys(inputs)
    separate = list(outputs)
    for index in calling.unaliased_outputs:
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
    """A copy with the same strides, unless the tensor is expanded."""
    with _mode(Mode(grad_enabled=True, inference=value.is_inference())):
        copied = value.clone()
        if copied.layout is not torch.strided or copied.stride() == value.stride():
            return copied
        if any(
            size > 1 and step == 0 for size, step in zip(value.shape, value.stride(), strict=True)
        ):
            return copied  # Stride 0: elements of a copy cannot overlap.
        strided = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        )
        return strided.copy_(value)


class _Results:
    """Makes the tensors of a calling convention's recipes, each once."""

    def __init__(
        self,
        calling: CallingConvention,
        inputs: Sequence[TorchValue],
        outputs: Sequence[object],
        made: dict[int, object] | None = None,
    ) -> None:
        self.calling = calling
        self.inputs = inputs
        self.outputs = outputs
        self._made = {} if made is None else made

    def at(self, position: int) -> object:
        """The value of the recipe at `position`."""
        if position not in self._made:
            self._made[position] = self.make(self.calling.recipes[position])
        return self._made[position]

    def make_views_of(self, indices: set[int]) -> None:
        """Make all recipes that are views of these inputs."""
        for position, made in enumerate(self.calling.recipes):
            if isinstance(made, View) and self._input_of(made) in indices:
                self.at(position)

    def _input_of(self, made: Recipe | FromRecipe) -> int | None:
        match made:
            case FromCaller(index, moved):
                return None if moved else index
            case BaseOf(index):
                return index
            case FromRecipe(index):
                return self._input_of(self.calling.recipes[index])
            case View(of, _):
                return self._input_of(of)
            case _:
                return None

    def make(self, made: Recipe | FromRecipe) -> TorchValue:
        """The value of a recipe."""
        match made:
            case FromCaller(index):
                return self.inputs[index]
            case BaseOf(index):
                return self.inputs[index]._base
            case FromGraph(index):
                return self.outputs[index]
            case FromRecipe(index):
                return self.at(index)
            case Constant(value):
                return value
            case View(of, _):
                return self._view(made, self.make(of))

    def _view(self, view: View, value: torch.Tensor) -> torch.Tensor:
        if not view.is_regenerated:
            return self._taken(view.steps, value)
        first, views = view.parts
        value = self._taken(first, value)
        with _with_earlier_version(value):
            return self._taken(views, value)

    def _taken(self, steps: Sequence[Step], value: torch.Tensor) -> torch.Tensor:
        for step in steps:
            if isinstance(step, Replay) and _is_in(step.mode):
                value = _replayed(step, value, self.outputs)
            else:
                value = _take(step, value, self.outputs)
        return value


def _take(step: Step, value: torch.Tensor, outputs: Sequence[TorchValue]) -> torch.Tensor:
    match step:
        case Replay():
            with _mode(step.mode):
                return _replayed(step, value, outputs)
        case Overwrite(index):
            with _preserving_version(value), torch.enable_grad():
                value.copy_(outputs[index])
            return value
        case Window(dtype, shape, stride, offset):
            place, steps, first = _filled((shape, stride, offset), outputs)
            start = value.storage_offset() * value.dtype.itemsize // dtype.itemsize
            own = torch.empty(0, dtype=dtype, device=value.device)
            with torch.no_grad(), _preserving_version(own):
                own.set_(value.untyped_storage(), start + first, place, steps)
            return own
        case RequireGrad():
            return value.requires_grad_()


def _replayed(step: Replay, value: torch.Tensor, outputs: Sequence[object]) -> torch.Tensor:
    if step.is_plain:
        return _viewed(step.op, value, step.args, dict(step.kwargs), step.output)
    op: Callee = _FROM_START.get(step.op, step.op)
    args, kwargs = step.args, dict(step.kwargs)
    if not step.is_fixed:
        args, kwargs = _filled(args, outputs), _filled(kwargs, outputs)
    if torch.Tag.inplace_view in step.op.tags:
        with _preserving_version(value):
            return op(value, *args, **kwargs)  # type: ignore[no-any-return]
    return _viewed(op, value, args, kwargs, step.output)


def _viewed(
    op: OpOverload | Callable[..., torch.Tensor],
    value: torch.Tensor,
    args: Sequence[object],
    kwargs: dict[str, object],
    output: int | None,
) -> torch.Tensor:
    try:
        views = op(value, *args, **kwargs)
    except RuntimeError:
        if op is not torch.ops.aten.view.default:
            raise
        # An op returned other strides than its fake: what is a view of the fake is a copy in eager.
        return torch.ops.aten.reshape.default(value, *args)  # type: ignore[no-any-return]
    return views if output is None else views[output]


@contextlib.contextmanager
def _preserving_version(tensor: torch.Tensor) -> Iterator[None]:
    """Restore the version counter of `tensor` after writes to it."""
    version = None if tensor.is_inference() else tensor._version
    yield
    if version is not None:
        set_version(tensor, version)


@contextlib.contextmanager
def _with_earlier_version(tensor: torch.Tensor) -> Iterator[None]:
    """Set back the version counter: views made here are regenerated by autograd when used."""
    if tensor.is_inference():
        yield
        return
    now = tensor._version
    set_version(tensor, now - 1 if now > 0 else now + 1)
    yield
    set_version(tensor, now)


def _replay_metadata_op(
    move: ReplayMetadataOp, inputs: Sequence[object], results: _Results
) -> None:
    def filled(leaf: object) -> object:
        if isinstance(leaf, FromCaller | FromGraph | FromRecipe | View):
            return results.make(leaf)
        return leaf

    args, kwargs = trees.map_leaves(filled, (move.args, dict(move.kwargs)))
    with _mode(move.mode):
        move.op(inputs[move.index], *args, **kwargs)


def _filled(tree: object, outputs: Sequence[object]) -> TorchValue:
    """Arguments in which each `FromGraph` is replaced by that output."""
    if isinstance(tree, FromGraph):
        return outputs[tree.index]
    if isinstance(tree, dict):
        return {name: _filled(each, outputs) for name, each in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)([_filled(each, outputs) for each in tree])
    return tree


def _is_in(mode: Mode) -> bool:
    """Whether `mode` is the current autograd mode."""
    if torch.is_grad_enabled() is not mode.grad_enabled:
        return False
    return not mode.inference or torch.is_inference_mode_enabled()


@contextlib.contextmanager
def _mode(mode: Mode) -> Iterator[None]:
    inference = torch.inference_mode() if mode.inference else contextlib.nullcontext()
    with inference, torch.set_grad_enabled(mode.grad_enabled):
        yield
