"""Capturing a Python callable without Dynamo, by one call on fakes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch

from adjoint.capture.inputs import Leaf
from adjoint.capture.program import Capture
from adjoint.errors import CaptureError, SourceLine
from adjoint.graph.boundary import capturing, location_of_function
from adjoint.graph.captured import CapturedProgram, Signature
from adjoint.graph.descriptors import Argument, Buffer, Parameter
from adjoint.graph.sizes import Guards
from adjoint.torch_private import trees
from adjoint.torch_private.dynamo import COMPILING, general_shapes
from adjoint.torch_private.fake import make_fake, new_fake_mode
from adjoint.torch_private.functorch import outside_functorch
from adjoint.torch_private.modes import without_observers
from adjoint.torch_private.size_decisions import program_decides
from adjoint.trace.subclasses import has_own_dispatch

# Which axes of a tensor have symbolic sizes; True: all axes of arguments.
Dynamic: TypeAlias = bool | Callable[[torch.Tensor], Sequence[bool]]


def capture(
    function: Callable[..., object], *args: object, dynamic: bool = False, **kwargs: object
) -> CapturedProgram:
    """The pure graph of `function(*args, **kwargs)`, with descriptors of its inputs and outputs.

    >>> import torch, adjoint
    >>> captured = adjoint.capture(lambda x: x.sin() * 2, torch.rand(3))
    >>> "aten.sin.default" in captured.show()
    True
    """
    return capture_call(function, args, kwargs, dynamic)


def capture_call(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    dynamic: Dynamic,
) -> CapturedProgram:
    """Capture `function(*args, **kwargs)`.  No argument is a wrapper of a level of `torch.func`."""
    what = functools.partial(location_of_function, function)
    with capturing(what), COMPILING, without_observers(), outside_functorch() as levels:
        return _capture_call(function, args, kwargs, dynamic, bool(levels))


def _capture_call(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    dynamic: Dynamic,
    within_levels: bool,
) -> CapturedProgram:
    fake_mode = new_fake_mode()
    fakes: dict[int, torch.Tensor] = {}

    def axes_of(real: torch.Tensor, is_argument: bool) -> Sequence[bool]:
        if isinstance(dynamic, bool):
            return [dynamic and is_argument] * real.dim()
        return dynamic(real)

    def fake(real: torch.Tensor, name: str, is_argument: bool = False) -> torch.Tensor:
        if id(real) not in fakes:
            _refuse_own_dispatch(real, location_of_function(function).source)
            fakes[id(real)] = make_fake(fake_mode, real, axes_of(real, is_argument), name)
        return fakes[id(real)]

    leaves: list[Leaf] = []
    module = module_of(function)
    state = state_of(module)
    for name, tensor in state.items():
        known = fake(tensor, name) if id(tensor) not in fakes else None
        if known is not None:
            kind = Parameter if isinstance(tensor, torch.nn.Parameter) else Buffer
            leaves.append(Leaf(known, kind(name)))
    originals = list(dict.fromkeys(map(_ByIdentity, state.values())))
    arguments, spec = trees.flatten_with_paths((args, kwargs))
    given: list[object] = []
    for path, value in arguments:
        if isinstance(value, torch.Tensor):
            path = _argument_path(path)
            leaves.append(Leaf(fake(value, path, True), Argument(len(given), path)))
            given.append(leaves[-1].value)
        else:
            given.append(value)
    capture = Capture(fake_mode, lambda real: fake(real, f"closure{id(real)}"), within_levels)
    fake_args, fake_kwargs = trees.unflatten(given, spec)
    program = functools.partial(function, *fake_args, **fake_kwargs)
    general = general_shapes() if dynamic else contextlib.nullcontext()
    with (
        general,
        program_decides(),
        _with_state(module, {name: fakes[id(t)] for name, t in state.items()}),
    ):
        captured, out_spec = capture.run(program, leaves)
    constants = [
        (_argument_path(path), value)
        for path, value in arguments
        if not isinstance(value, torch.Tensor)
    ]
    signature = Signature(spec, out_spec, tuple(constants))
    values = [leaf.value for leaf in capture.inputs.leaves]
    guards = Guards(values, fake_mode.shape_env)
    bound = [each.value for each in originals]
    return captured.called_with(bound, signature, guards).closing_over(capture.closed_over)


def _refuse_own_dispatch(tensor: torch.Tensor, source: SourceLine | None) -> None:
    """Refuse a tensor subclass that neither is plain memory nor shows its inner tensors."""
    if has_own_dispatch(tensor):
        raise CaptureError(
            f"a tensor of the class {type(tensor).__name__}",
            "its __torch_dispatch__ has to see every operator that runs, and compiled code would "
            "run others on memory that it may not have",
            "pass plain tensors, or give the class __tensor_flatten__ and __tensor_unflatten__",
            source,
        )


class _ByIdentity:
    """A tensor, equal only to itself."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def module_of(function: Callable[..., object]) -> torch.nn.Module | None:
    """The module that `function` is, or is a method of."""
    if isinstance(function, torch.nn.Module):
        return function
    if isinstance(function, functools.partial):
        return module_of(function.func)
    owner = getattr(function, "__self__", None)
    return owner if isinstance(owner, torch.nn.Module) else None


def state_of(module: torch.nn.Module | None) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a module, by every name that each has."""
    if module is None:
        return {}
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return {**parameters, **dict(module.named_buffers(remove_duplicate=False))}


# A module, and what its parameters, its buffers and all of its attributes were.
_Before: TypeAlias = tuple[
    torch.nn.Module,
    dict[str, torch.nn.Parameter | None],
    dict[str, torch.Tensor | None],
    dict[str, object],
]


@contextlib.contextmanager
def _with_state(module: torch.nn.Module | None, fakes: dict[str, torch.Tensor]) -> Iterator[None]:
    """Replace the module's parameters and buffers by `fakes` inside the context."""
    if module is None:
        yield
        return
    before: list[_Before] = [
        (m, dict(m._parameters), dict(m._buffers), dict(vars(m))) for m in module.modules()
    ]
    for name, fake in fakes.items():
        owner, _, attribute = name.rpartition(".")
        holder = module.get_submodule(owner)
        table = holder._parameters if attribute in holder._parameters else holder._buffers
        table[attribute] = fake  # type: ignore[assignment]
    try:
        yield
        _refuse_rebinding(module, fakes, before)
    finally:
        for holder, parameters, buffers, attributes in before:
            holder._parameters.update(parameters)
            holder._buffers.update(buffers)
            for key in [key for key in vars(holder) if key not in attributes]:
                delattr(holder, key)
            vars(holder).update(attributes)


def _refuse_rebinding(
    module: torch.nn.Module, fakes: dict[str, torch.Tensor], before: list[_Before]
) -> None:
    for name, fake in fakes.items():
        owner, _, attribute = name.rpartition(".")
        holder = module.get_submodule(owner)
        if getattr(holder, attribute) is not fake:
            raise _rebinds(holder, name)
    for holder, _, _, attributes in before:
        for key, value in vars(holder).items():
            if isinstance(value, torch.Tensor) and attributes.get(key) is not value:
                raise _rebinds(holder, key)


def _rebinds(holder: torch.nn.Module, name: str) -> CaptureError:
    return CaptureError(
        f"the assignment to attribute {name!r} of a module",
        "a graph has no attributes, so the new tensor would be lost",
        "write to the tensor in place (self.x.copy_(new)), or return it; "
        "torch.compile(..., backend='adjoint') supports the assignment",
        location_of_function(holder).source,
    )


def _argument_path(path: str) -> str:
    """`[0][1]['x']` of (args, kwargs) as `args[1]['x']`, and `[1]['y']` as `y`."""
    if path.startswith("[0]"):
        return "args" + path[3:]
    return "kwargs" + path[3:]
