"""An exported program that is loaded: called as the function was, checked before it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import torch

from adjoint.errors import LoadError
from adjoint.exported.file import Exported
from adjoint.exported.records import ConstantRecord, TensorRecord
from adjoint.exported.versions import Version
from adjoint.open_types import TorchValue
from adjoint.torch_private import trees
from adjoint.torch_private.autograd import has_tangent
from adjoint.torch_private.frames import not_traced
from adjoint.torch_private.functorch import functorch_is_active
from adjoint.torch_private.modes import count_dispatch_modes

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class LoadedProgram:
    """A function that was exported.  It compiles nothing, ever."""

    def __init__(self, exported: Exported, versions: Sequence[Version], cpu: str) -> None:
        self.record = exported.records[0]
        self.facts = exported.facts
        self.cpu = cpu
        """The level of CPU, or the compute capability, whose code runs."""
        self._versions = list(versions)
        self._state = versions[0].state
        arguments = self.record.arguments
        _, self._spec = trees.flatten(arguments)
        self._names = tuple(arguments[1])
        leaves = [each for each in self.record.leaves if isinstance(each, TensorRecord)]
        self._tensors = [*self.record.state, *leaves]

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
    def __call__(self, *args: object, **kwargs: object) -> TorchValue:
        """Call it as the function that was exported.  Raises `LoadError` for what does not fit."""
        given = self._given(args, kwargs)
        self._require_plain([*self._state, *given])
        version, inputs = self._fitting(given)
        return version(inputs)

    def _fitting(self, given: list[torch.Tensor]) -> tuple[Version, list[torch.Tensor]]:
        """The version for the sizes of a call, and its inputs."""
        first, *others = self._versions
        try:
            return first, first.fitted(given)
        except LoadError:
            for version in others:
                with contextlib.suppress(LoadError):
                    return version, version.fitted(given)
            raise

    def _given(self, args: tuple[object, ...], kwargs: dict[str, object]) -> list[torch.Tensor]:
        """The tensors among the arguments; the others have to be those that were exported."""
        positional, record = self.record.positional, self.record
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
        leaves, spec = trees.flatten((args, ordered))
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
                raise LoadError(
                    f"{record.path} is a {type(each).__name__} of layout {each.layout}, and an "
                    "exported program takes plain dense tensors"
                )
            if each.dtype != record.dtype:
                raise LoadError(f"{record.path} is {each.dtype}, and not {record.dtype}")
            if str(each.device) != record.device:
                raise LoadError(
                    f"{record.path} is on {each.device}, and the program takes it on "
                    f"{record.device}"
                )
            if requires and each.requires_grad and self.orders:
                self._require_differentiable(place, record)

    def _require_differentiable(self, place: int, record: TensorRecord) -> None:
        if place not in self.record.differentiable:
            known = [self._tensors[n].path for n in self.record.differentiable]
            raise LoadError(
                f"{record.path} requires grad, and it was exported with derivatives with respect "
                f"to {', '.join(known) or 'nothing'}: detach it, or export it with wrt="
            )


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
