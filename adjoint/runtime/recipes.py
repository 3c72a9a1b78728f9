"""Making results by their recipes: outputs of the graph, and views that are replayed in eager."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch

from adjoint.graph.calling import (
    BaseOf,
    CallingConvention,
    Constant,
    FromCaller,
    FromGraph,
    FromRecipe,
    Overwrite,
    Recipe,
    Replay,
    RequireGrad,
    Step,
    View,
    Window,
)
from adjoint.graph.eager_functions import strided_from_start
from adjoint.graph.metadata import Mode
from adjoint.open_types import Callee, TorchValue
from adjoint.torch_private.autograd import set_version
from adjoint.torch_private.operators import OpOverload


def _as_strided_from_start_(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0
) -> torch.Tensor:
    return x.as_strided_(size, stride, x.storage_offset() + offset)


_FROM_START: dict[object, Callable[..., torch.Tensor]] = {
    torch.ops.aten.as_strided.default: strided_from_start,
    torch.ops.aten.as_strided_.default: _as_strided_from_start_,
}


class Results:
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
            if isinstance(made, View) and self.input_of(made) in indices:
                self.at(position)

    def input_of(self, made: Recipe | FromRecipe) -> int | None:
        """The input whose memory, as it was before metadata ops, a recipe shows."""
        match made:
            case FromCaller(index, moved):
                return None if moved else index
            case BaseOf(index):
                return index
            case FromRecipe(index):
                return self.input_of(self.calling.recipes[index])
            case View(of, _):
                return self.input_of(of)
            case FromGraph() | Constant():
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
            with autograd_mode(step.mode):
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
def autograd_mode(mode: Mode) -> Iterator[None]:
    """Operators in this context run under `mode`."""
    inference = torch.inference_mode() if mode.inference else contextlib.nullcontext()
    with inference, torch.set_grad_enabled(mode.grad_enabled):
        yield
