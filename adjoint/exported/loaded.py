"""An exported program that is loaded: called as the function was, checked before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from adjoint.errors import LoadError
from adjoint.exported.file import Exported
from adjoint.exported.programs import LoadedPrograms
from adjoint.exported.records import ConstantRecord, SizeRecord, TensorRecord
from adjoint.exported.running import ExportedGraph
from adjoint.runtime.calling import call
from adjoint.runtime.sharing import sharing
from adjoint.torch_private import trees
from adjoint.torch_private.autograd import has_tangent
from adjoint.torch_private.frames import not_traced
from adjoint.torch_private.functorch import functorch_is_active
from adjoint.torch_private.modes import count_dispatch_modes
from adjoint.torch_private.size_evaluation import first_violated, value_of
from adjoint.torch_private.symbols import Sizes

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class LoadedProgram:
    """A function that was exported.  It compiles nothing, ever."""

    def __init__(
        self,
        exported: Exported,
        programs: LoadedPrograms,
        state: Sequence[torch.Tensor],
        closed_over: Sequence[torch.Tensor],
    ) -> None:
        self.record = exported.record
        self.facts = exported.facts
        self.cpu = programs.cpu
        """The level of processor whose code runs."""
        self._state, self._closed_over = list(state), list(closed_over)
        self._graph = ExportedGraph(self.record.graph, programs)
        arguments = self.record.arguments
        _, self._spec = trees.flatten(arguments)
        self._names = tuple(arguments[1])
        _, self._out_spec = trees.flatten(self.record.results)
        leaves = [each for each in self.record.leaves if isinstance(each, TensorRecord)]
        self._tensors = [*self.record.state, *leaves, *self.record.closed_over]
        self._sizes_seen: tuple[int, ...] | None = None
        self._written = tuple(write.to.index for write in self.record.calling.writes)
        self._placed = tuple(place.index for place in self.record.calling.placements)

    @property
    def orders(self) -> int:
        """How often it can be differentiated."""
        return self.record.orders

    @property
    def state(self) -> Mapping[str, torch.Tensor]:
        """Parameters and buffers of the module that was exported, by their names."""
        names = [each.path for each in self.record.state]
        return dict(zip(names, self._state, strict=True))

    def __repr__(self) -> str:
        arguments = ", ".join(_shown(each) for each in self.record.leaves)
        return f"<exported program ({arguments}), orders={self.orders}, for {self.cpu}>"

    @not_traced
    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Call it as the function that was exported.  Raises `LoadError` for what does not fit."""
        given = self._given(args, kwargs)
        inputs = [*self._state, *given, *self._closed_over]
        self._require_plain(inputs)
        inputs = self._fitted(inputs)
        results = call(self._graph, self.record.calling, inputs)
        return trees.unflatten(results, self._out_spec)

    def _given(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The tensors among the arguments; the others have to be those that were exported."""
        positional, record = self.record.positional, self.record
        args = list(args)  # type: ignore[assignment]
        rest = dict(kwargs)
        for name in positional[len(args) :]:
            if name not in rest:
                break
            args = (*args, rest.pop(name))
        extra = [name for name in rest if name not in self._names]
        if extra or len(args) != len(record.arguments[0]) or len(rest) != len(self._names):
            expected = ", ".join(dict.fromkeys((*positional, *self._names)))
            raise LoadError(f"it was exported for the arguments ({expected}): {_count(args, rest)}")
        ordered = {name: rest[name] for name in self._names}
        leaves, spec = trees.flatten((tuple(args), ordered))
        if spec != self._spec:
            raise LoadError(
                f"its arguments have another structure: {spec}, and it was exported for "
                f"{self._spec}"
            )
        given: list[torch.Tensor] = []
        for leaf, expected_leaf in zip(leaves, record.leaves, strict=True):
            if isinstance(expected_leaf, ConstantRecord):
                value = expected_leaf.value
                if type(leaf) is not type(value) or leaf != value:
                    raise LoadError(
                        f"{expected_leaf.path} is {_brief(leaf)}, and it was exported for "
                        f"{_brief(value)} alone"
                    )
            elif not isinstance(leaf, torch.Tensor):
                raise LoadError(f"{expected_leaf.path} is {_brief(leaf)}, and no tensor")
            else:
                given.append(leaf)
        return given

    def _require_plain(self, inputs: Sequence[torch.Tensor]) -> None:
        if functorch_is_active() or has_tangent(inputs):
            raise LoadError(
                "an exported program cannot be transformed (torch.func, forward mode): its "
                "operators are not there"
            )
        if count_dispatch_modes():
            raise LoadError("a TorchDispatchMode is active, which would see no operators")
        requires = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        for place, (each, record) in enumerate(zip(inputs, self._tensors, strict=True)):
            if type(each) not in _PLAIN or each.layout is not torch.strided:
                raise LoadError(f"{record.path} is a {type(each).__name__} of {each.layout}")
            if each.dtype != record.dtype:
                raise LoadError(f"{record.path} is {each.dtype}, and not {record.dtype}")
            if each.device.type != "cpu":
                raise LoadError(f"{record.path} is on {each.device}, and the program is for cpu")
            if requires and each.requires_grad and self.orders:
                self._require_differentiable(place, record)

    def _require_differentiable(self, place: int, record: TensorRecord) -> None:
        if place not in self.record.differentiable:
            known = [self._tensors[n].path for n in self.record.differentiable]
            raise LoadError(
                f"{record.path} requires grad, and it was exported with derivatives with respect "
                f"to {', '.join(known) or 'nothing'}: detach it, or export it with wrt="
            )

    # Sizes

    def _fitted(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """The inputs, with the strides that they were exported with."""
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
        if place in self._shown_places():
            raise LoadError(
                f"{record.path} has the strides {tensor.stride()}, and it was exported for "
                f"{strides}: it is written to, or returned as a view"
            )
        # Recorded by autograd: the caller's tensor gets its gradient.
        return torch.empty_strided(shape, strides, dtype=tensor.dtype, device="cpu").copy_(tensor)

    def _shown_places(self) -> set[int]:
        """Inputs whose memory the caller sees again: they are written to, or returned."""
        calling = self.record.calling
        places = {*self._written, *self._placed}
        for recipe in calling.recipes:
            of = getattr(recipe, "of", recipe)
            if hasattr(of, "index") and not type(of).__name__.startswith("FromGraph"):
                places.add(of.index)
        return places

    def _names_of(self, sizes: Sizes) -> str:
        named = [
            f"{each.symbol} = {self._tensors[each.input].path}.shape[{each.axis}] = "
            f"{sizes[each.symbol]}"
            for each in self.record.sizes
        ]
        return ", ".join(named)


def _same_layout(shape: Sequence[int], strides: Sequence[int], expected: Sequence[int]) -> bool:
    """Whether strides are the same for elements that there are."""
    if 0 in shape:
        return True
    pairs = zip(shape, strides, expected, strict=True)
    return all(size == 1 or a == b for size, a, b in pairs)


def _shown(record: TensorRecord | ConstantRecord) -> str:
    if isinstance(record, ConstantRecord):
        return f"{record.path}={_brief(record.value)}"
    dtype = str(record.dtype).removeprefix("torch.")
    return f"{record.path}: {dtype}[{', '.join(map(str, record.shape))}]"


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"a {type(value).__name__}"


def _count(args: Sequence[object], rest: Mapping[str, object]) -> str:
    named = f" and {', '.join(rest)}" if rest else ""
    return f"{len(args)} by position{named} were given"
