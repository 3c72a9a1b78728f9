"""Transforms as functions for users: compiled on the first call for each kind of arguments."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import TypeAlias

import torch

from adjoint.checking import Checker
from adjoint.checking.copies import copied_inputs, same_draws
from adjoint.compiler import Compiler
from adjoint.errors import CaptureError, DifferentiationError, OutsideLevelError
from adjoint.graph.boundary import is_raised_in_user_code
from adjoint.graph.captured import CapturedProgram
from adjoint.observing import Observer
from adjoint.open_types import TorchValue, UserFunction
from adjoint.options import Options
from adjoint.runtime.calling import call as run_graph
from adjoint.runtime.calling import graph_inputs
from adjoint.torch_private import trees
from adjoint.torch_private.dynamo import DynamoError
from adjoint.torch_private.functorch import (
    functorch_is_active,
    is_functorch_wrapper,
    outside_functorch,
)
from adjoint.torch_private.modes import has_torch_function_mode
from adjoint.trace.tracer import Tracer, current_tracer
from adjoint.transforms.fingerprint import Fingerprint
from adjoint.transforms.kinds import Call, Memory
from adjoint.transforms.linear import Linearized
from adjoint.transforms.reachable import Transformed
from adjoint.transforms.table import TooManyPrograms, TransformPrograms, programs_of, tell

# Options as a user gives them: `{"target": "reference"}`.
OptionMapping: TypeAlias = Mapping[str, object] | Options | None


class Setting:
    """How a transform is compiled: its options, and whether sizes are symbols."""

    def __init__(self, dynamic: bool | None = None, options: OptionMapping = None) -> None:
        """`dynamic`: sizes are symbols at once (True), never (False), or once they change."""
        self.dynamic = dynamic
        # Dynamo traces this as part of a transform, and cannot trace the default options.
        self._options = None if options is None else Options.parse(options)
        checks = self._options is not None and self._options.check is not None
        self.checker = Checker(self._options) if checks and self._options is not None else None

    @functools.cached_property
    def compiler(self) -> Compiler:
        return Compiler(self._options or Options())

    def observed(self, observer: Observer, options: Mapping[str, object]) -> Setting:
        """The same setting with more options, whose compiler shows its stages to an observer."""
        made = Setting(self.dynamic, {**vars(self.compiler.options), **options})
        made.compiler = replace(made.compiler, observer=observer)
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[bool | None, Options]:
        return self.dynamic, self.compiler.options


# The compiler of the outermost transform being captured; inner transforms use the same.
_COMPILER: ContextVar[Compiler] = ContextVar("_COMPILER")


def linearized(
    function: Callable[..., object], inputs: Sequence[torch.Tensor], forward: bool = False
) -> Linearized:
    """`function` at `inputs`, in the program that is being captured."""
    tracer = current_tracer()
    assert isinstance(tracer, Tracer), "a transform runs inside a capture"
    compiler = _COMPILER.get(None) or Compiler(Options())
    return Linearized(tracer, compiler, function, inputs, forward)


def is_traced() -> bool:
    """Whether a transform called now has to be run by `torch.func`.

    That is so while Dynamo traces, and in a capture inside a level of `torch.func`: such a level
    can batch and differentiate ops, but not our graphs.
    """
    if torch.compiler.is_compiling():
        return True
    return current_tracer() is not None and functorch_is_active()


def is_left_to_torch() -> bool:
    """Whether `torch.func` should run, because a level of it, or a function mode, has to see every
    op."""
    return functorch_is_active() or has_torch_function_mode()


# Exceptions that capturing a function may raise: the function's own errors, or our refusals.
FAILURES = (RuntimeError, ValueError, TypeError, IndexError, AttributeError, TooManyPrograms)


def in_torch(
    function: Callable[..., object], error: Exception, run: Callable[[], object]
) -> object:
    """Fall back to `torch.func`, with one warning, where no program can be made.

    If `torch.func` fails as well, the error of the capture is raised if it was a refusal, and
    otherwise the function's own error.  A `DifferentiationError` is raised without falling back.
    """
    if isinstance(error, OutsideLevelError):
        return run()
    if isinstance(error, DifferentiationError):
        cause = error.__cause__
        raise cause if cause is not None and is_raised_in_user_code(cause) else error
    if isinstance(error, TooManyPrograms) or getattr(error, "depends_on_data", False):
        tell(function, error)
        return run()
    try:
        result = run()
    except RuntimeError:
        if isinstance(error, CaptureError):
            raise error from None
        raise
    tell(function, error)
    return result


class Compiled(Transformed):
    """A transform of a function, to be called from anywhere.

    The transform itself (`transformed`) is written to run inside a capture.
    """

    def __init__(
        self,
        transform: Hashable,
        transformed: UserFunction,
        function: UserFunction,
        traced: UserFunction,
        *,
        in_torch: UserFunction | None = None,
        setting: Setting,
    ) -> None:
        """`transform`: a key, equal for equal transforms.

        `traced`: the same transform by `torch.func`, for Dynamo to trace and for levels of
        `torch.func` around a capture to batch.  `in_torch`: the same for real tensors, if that has
        to be another function.
        """
        self.transform = transform
        self.function = function
        self._traced = traced
        self._in_torch = traced if in_torch is None else in_torch
        self._transformed = transformed
        self._setting = setting
        self._latest: tuple[Fingerprint, TransformPrograms] | None = None
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: object, **kwargs: object) -> object:
        if is_traced():
            return self._traced(*args, **kwargs)
        return self._run(args, kwargs)

    # Dynamo also compiles what a frame calls that it could not compile; this is not to be compiled.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _run(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if current_tracer() is not None:
            return self._transformed(*args, **kwargs)
        if is_left_to_torch():
            # If torch lacks a derivative (in forward mode, or of a batch of branches), ours runs.
            with contextlib.suppress(NotImplementedError, DynamoError, AssertionError):
                return self._in_torch(*args, **kwargs)
        try:
            programs = self._programs()
            dynamic = self._setting.dynamic
            program, call = programs[1].find(self._made, programs[0], args, kwargs, dynamic)
        except FAILURES as error:
            return in_torch(self.function, error, lambda: self._in_torch(*args, **kwargs))
        if self._setting.checker is not None and isinstance(program, TransformProgram):
            return self._checked(self._setting.checker, program, call, args, kwargs)
        return program(call)

    def _checked(
        self, checker: Checker, program: TransformProgram, call: Call, args: object, kwargs: object
    ) -> object:
        """Run the program, and compare it with `torch.func`."""
        if not checker.wants(program):
            return program(call)
        before = [copied_inputs(each) for each in program.split(call)]
        copies = trees.map_leaves(lambda leaf: copied_inputs([leaf])[0], (args, kwargs))
        with same_draws():
            expected = self._in_torch(*copies[0], **copies[1])
        found = program(call)
        checker.of_transform(
            program.captured.graph_module, lambda: program.graph_inputs(*before), found, expected
        )
        return found

    def _made(self, call: Call, axes: Callable[[torch.Tensor], Sequence[bool]]) -> TransformProgram:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        compiler = replace(self._setting.compiler, function=name)
        return TransformProgram(compiler, self._transformed, call, axes)

    def observed(self, observer: Observer, options: Mapping[str, object]) -> Compiled:
        """The same transform with more options, to be compiled anew for an observer."""
        made = copy.copy(self)
        made._setting = self._setting.observed(observer, options)
        made._latest = (Fingerprint(self.function), TransformPrograms())
        return made

    def _programs(self) -> tuple[Fingerprint, TransformPrograms]:
        """The fingerprint of the function as it is now, and its programs."""
        latest = self._latest
        if latest is None or not latest[0].holds(self.function):
            look = Fingerprint(self.function)
            key = (self.transform, self._setting)
            latest = self._latest = (look, programs_of(key, look, self.function))
        return latest


class TransformProgram:
    """A function, captured for arguments of one kind."""

    def __init__(
        self,
        compiler: Compiler,
        function: UserFunction,
        call: Call,
        axes: Callable[[torch.Tensor], Sequence[bool]],
    ) -> None:
        """`axes`: for a tensor, which of its sizes are symbols."""
        args, kwargs = call.args, call.kwargs
        with outside_functorch():
            args, kwargs = trees.map_leaves(_plain, (args, kwargs))
        # Tensors made in inference mode have no derivative, even where grad is enabled inside.
        grad_enabled = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.set_grad_enabled(grad_enabled):
            captured = _captured(compiler, function, args, kwargs, axes)
        self.graph = compiler.differentiable(captured.graph_module)
        self.memory = Memory.NOTHING
        if captured.calling.writes:
            self.memory |= Memory.SHARING
        if captured.calling.placements:
            self.memory |= Memory.SHARING | Memory.PLACES
        places = {id(tensor): place for place, tensor in enumerate(call.held)}
        taken = [places.get(id(each), each) for each in (*captured.bound, *captured.closed_over)]
        self._bound, self._closed = taken[: len(captured.bound)], taken[len(captured.bound) :]
        self.is_shared = all(isinstance(each, int) for each in taken)
        # Tensors that the function closes over are taken from each call, not from the capture.
        self.captured = replace(captured, bound=(), closed_over=())
        self.close()

    def close(self) -> None:
        """Compilation is complete: the assumptions made so far are the guards of the program."""
        if self.captured.guards is not None:
            self.captured.guards.close()

    def is_for(self, call: Call) -> bool:
        """Whether the guards on sizes hold for the call."""
        return self.captured.guards is None or self.captured.guards.hold(self._leaves(call))

    def split(
        self, call: Call
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        """Bound tensors, arguments, and tensors that the function closes over."""
        bound, closed = (
            [call.held[each] if isinstance(each, int) else each for each in taken]
            for taken in (self._bound, self._closed)
        )
        return bound, call.given, closed

    def _leaves(self, call: Call) -> list[object]:
        bound, given, closed = self.split(call)
        return [*bound, *given, *closed]

    def graph_inputs(
        self,
        bound: Sequence[object],
        given: Sequence[object],
        closed: Sequence[object],
    ) -> list[object]:
        """What the graph takes."""
        return graph_inputs(self.captured.calling, [*bound, *given, *closed])

    def __call__(self, call: Call) -> TorchValue:
        """The results for a call of the kind."""
        results = run_graph(self.graph, self.captured.calling, self._leaves(call))
        assert self.captured.signature is not None
        return trees.unflatten(results, self.captured.signature.out_spec)


def _captured(
    compiler: Compiler,
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    axes: Callable[[torch.Tensor], Sequence[bool]],
) -> CapturedProgram:
    token = _COMPILER.set(compiler)
    try:
        return compiler.captured_call(function, args, kwargs, axes)
    finally:
        _COMPILER.reset(token)


def _plain(leaf: TorchValue) -> object:
    """An empty tensor like `leaf`, if a level of `torch.func` wraps it: a capture needs no data."""
    if not is_functorch_wrapper(leaf):
        return leaf
    with torch.no_grad():
        return torch.empty(leaf.shape, dtype=leaf.dtype, device=leaf.device)
