"""Transforms compiled on their first call for arguments of a kind."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Sequence, Set
from operator import attrgetter
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from adjoint.building import Build
from adjoint.capture.direct import capture_call
from adjoint.errors import OutsideLevelError
from adjoint.options import Options
from adjoint.runtime.calling import call
from adjoint.runtime.program import sharing
from adjoint.torch_private import trees
from adjoint.torch_private.dynamo import COMPILING
from adjoint.torch_private.modes import (
    calls_are_seen,
    default_devices,
    functorch_is_active,
    is_functorch_wrapper,
    outside_functorch,
)
from adjoint.trace.tracer import Tracer, current_tracer
from adjoint.transforms.fingerprint import Fingerprint, fingerprint
from adjoint.transforms.linear import Linearized

Function = Callable[..., Any]

_BUILD = Build(Options())


def linearize(
    function: Function, inputs: Sequence[torch.Tensor], forward: bool = False
) -> Linearized:
    """`function` at `inputs`, in the program that is being captured."""
    tracer = current_tracer()
    assert isinstance(tracer, Tracer), "a transform runs inside a capture"
    return Linearized(tracer, _BUILD, function, inputs, forward)


def is_traced() -> bool:
    """A transform called now is to be that of `torch.func`: Dynamo traces it, or a capture inside
    a level of `torch.func`, which knows how to batch and differentiate ops but not graphs.
    """
    if torch.compiler.is_compiling():
        return True
    return current_tracer() is not None and functorch_is_active()


def is_left_to_torch() -> bool:
    """The same, because a level of `torch.func` around it, or a mode, is to see every op."""
    return functorch_is_active() or calls_are_seen()


class Programs:
    """The programs of one transform of one function, by the kind of arguments they are for."""

    def __init__(self, kept_by_function: bool = False) -> None:
        """`kept_by_function`: they must not keep the function, or neither would ever go."""
        self._made: dict[Any, Any] = {}
        self._kept_by_function = kept_by_function
        self._marks: dict[Any, int] = {}
        """A number for what the function depended on each time that this was something else."""
        self._latest: tuple[Fingerprint, int] | None = None
        self._writes = False
        """Some of them write to their arguments."""
        self._usual: tuple[Any, Any] = (None, None)
        """The last key and its program: to compare with one takes less than to look it up."""

    def find(
        self, make: Function, function: Function, args: Any, kwargs: Any
    ) -> tuple[Any, list[Any]]:
        """The program for these arguments, and their leaves.

        `make(args, kwargs)` makes one that is missing.
        """
        leaves, form = trees.taken_apart((args, kwargs))
        meaning, held = self._meaning(function)
        kind = (form, _kinds(leaves), _surroundings(), meaning)
        key = (kind, self._sharing(leaves, held))
        usual, program = self._usual
        if key != usual:
            if key not in self._made:
                with COMPILING:
                    program = self._made.get(key) or make(args, kwargs)
                    self._writes |= program.writes
                    key = (kind, self._sharing(leaves, held))
                    self._made[key] = program
            program = self._made[key]
            self._usual = (key, program)
        return program, leaves

    def _sharing(self, leaves: Sequence[Any], held: Set[int]) -> Any:
        """Which of the arguments are one tensor, or one of those that the function holds.

        Where they are written to, also which of them share memory.
        """
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        ids = list(map(id, tensors))
        same = None
        if len(set(ids)) < len(ids) or not held.isdisjoint(ids):
            same = tuple([each if each in held else ids.index(each) for each in ids])
        return (same, sharing(tensors, range(len(tensors)))) if self._writes else same

    def _meaning(self, function: Function) -> tuple[int, Set[int]]:
        """Equal numbers: the function means the same; and the tensors that it holds."""
        latest = self._latest
        if latest is not None and latest[0].holds(function):
            return latest[1], latest[0].tensors
        found = Fingerprint(function)
        number = self._marks.setdefault(found.mark, len(self._marks))
        if not self._kept_by_function:
            self._latest = (found, number)
        return number, found.tensors


_OF_FUNCTIONS: WeakKeyDictionary[Any, dict[Hashable, Programs]] = WeakKeyDictionary()


def programs_of(function: Function, transform: Hashable) -> Programs:
    """The programs of a transform that is called with its function, while the function lives."""
    owner: Any = function
    if isinstance(function, MethodType):
        owner, transform = function.__self__, (function.__func__, transform)
    try:
        return _OF_FUNCTIONS.setdefault(owner, {}).setdefault(transform, Programs(True))
    except TypeError:  # It cannot be hashed, or not be referred to weakly.
        return Programs()


class Compiled:
    """A transform of `function`, written for a capture under way, as a function for any caller."""

    def __init__(
        self,
        transformed: Function,
        function: Function,
        traced: Function,
        programs: Programs | None = None,
        in_torch: Function | None = None,
    ) -> None:
        """`traced` is the same transform in terms of `torch.func`.

        Dynamo can trace it, and levels of `torch.func` around it inside a capture can batch it.
        `in_torch`: the same where torch runs ops on real tensors, if that is another function.
        """
        self._traced = traced
        self._in_torch = in_torch or traced
        self._transformed = transformed
        self._function = function
        self._programs = programs or Programs()
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_traced():
            return self._traced(*args, **kwargs)
        return self._run(args, kwargs)

    # Dynamo compiles what is called from a frame that it gave up on; this is no user's program.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _run(self, args: Any, kwargs: Any) -> Any:
        if current_tracer() is not None:
            return self._transformed(*args, **kwargs)
        if is_left_to_torch():
            # Torch lacks some derivatives, above all in forward mode, that are here.
            with contextlib.suppress(NotImplementedError):
                return self._in_torch(*args, **kwargs)
        make = functools.partial(Program, self._transformed)
        try:
            program, leaves = self._programs.find(make, self._function, args, kwargs)
        except OutsideLevelError:
            return self._in_torch(*args, **kwargs)
        return program(leaves)


class Program:
    """A function, captured for arguments of one kind."""

    def __init__(self, function: Function, args: Any, kwargs: Any) -> None:
        with outside_functorch():
            args, kwargs = trees.map_leaves(_plain, (args, kwargs))
        # What is made in inference mode has no derivative, also inside of what enables grad.
        grad_enabled = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.set_grad_enabled(grad_enabled):
            self.captured = capture_call(function, args, kwargs, dynamic=False)
        self.graph = _BUILD.program(self.captured.graph_module)
        self.writes = bool(self.captured.calling.writes)

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """For the leaves of arguments."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        results = call(self.graph, self.captured.calling, self.captured.leaves(tensors))
        assert self.captured.signature is not None
        return trees.unflatten(results, self.captured.signature.returned)


class PullBack:
    """A function at a point, in two programs: its value with what is saved, and its derivative."""

    def __init__(self, linearized: Function, value_of: Function, primals: Any, _: Any) -> None:
        points: list[Linearized] = []
        self.given: list[int] = []

        def forward(*primals: Any) -> Any:
            point = linearized(primals)
            value = value_of(point.value)
            results = range(len(trees.leaves(value)))
            self.given = [place for place in point.differentiable if place in results]
            points.append(point)
            return point.value, point.saved(self.given)

        self.forward = Program(forward, primals, {})
        self.writes = self.forward.writes
        (point,) = points
        reverse = point.reverse_graph(self.given)
        self.reverse = None if reverse is None else _BUILD.program(reverse)

    def __call__(self, primals: Any) -> tuple[Any, Callable[[Sequence[Any]], list[Any]]]:
        """The value at `primals`, and the function from cotangents of its leaves."""
        leaves = trees.leaves(primals)
        value, saved = self.forward(leaves)

        def pull_back(cotangents: Sequence[Any]) -> list[Any]:
            found: Sequence[Any] = [None] * len(leaves)
            if self.reverse is not None:
                found = self.reverse([*saved, *(cotangents[i] for i in self.given)])
            return [
                torch.zeros_like(leaf) if each is None else each
                for leaf, each in zip(leaves, found, strict=True)
            ]

        return value, pull_back


def _plain(leaf: Any) -> Any:
    """A tensor to capture with, where a level of `torch.func` hides the data."""
    if not is_functorch_wrapper(leaf):
        return leaf
    with torch.no_grad():
        return torch.empty(leaf.shape, dtype=leaf.dtype, device=leaf.device)


# What is the same of tensors that are of one kind, besides their strides.
_LOOKS = attrgetter("shape", "dtype", "device", "requires_grad", "layout")


def _kinds(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """Equal for leaves that one program does for."""
    try:
        strides = tuple(map(torch.Tensor.stride, leaves))
        return tuple(map(type, leaves)), tuple(map(_LOOKS, leaves)), strides
    except (TypeError, RuntimeError):  # Some are no tensors, or have no strides.
        return tuple(map(_kind, leaves))


def _kind(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return type(leaf), *_meaning(leaf)
    strides = leaf.stride() if leaf.layout is torch.strided else None
    return (leaf.shape, strides, leaf.dtype, leaf.device, leaf.requires_grad, type(leaf))


def _meaning(leaf: Any) -> tuple[Any, ...]:
    """What makes an argument that is no tensor another one."""
    if isinstance(leaf, (float, complex)) or not isinstance(leaf, Hashable):
        return (fingerprint(leaf),)
    # What is equal to nothing else may be changed, as modules are.
    is_fixed = type(leaf).__hash__ is not object.__hash__
    return (leaf,) if is_fixed else (leaf, fingerprint(leaf))


def _surroundings() -> Any:
    """What the meaning of a program depends on besides its arguments."""
    devices = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    return (
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        default_devices(),
        tuple((device, torch.get_autocast_dtype(device)) for device in devices),
    )
