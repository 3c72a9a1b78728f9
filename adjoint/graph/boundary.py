"""Error boundaries: an exception inside the compiler becomes one of `adjoint.errors`.

The user meets the compiler at a few boundaries: a capture, a derivative, native code.  An exception
that reaches one becomes the error of that kind, naming the op that was being compiled and the
user's line; both are read off the traceback.  Some exceptions pass through unchanged: those of the
user's own program, which eager would raise too; interrupts and exhausted memory; Dynamo's own.
Dynamo takes some types of exceptions of a backend for graph breaks and only logs them, so those
become errors of ours.

A derivative that is missing is an error when it is asked for, as in eager.  A backward graph that
cannot be compiled has only saved values; with `unsupported="eager"` the autograd node keeps the
inputs as well, and eager autograd runs the graph again, unless an input has been written since, or
the graph draws random numbers or communicates: then the error is raised.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import TypeVar

import torch
from torch import fx

from adjoint.errors import (
    CaptureError,
    DifferentiationError,
    FallbackWarning,
    MismatchError,
    RewriteError,
    SourceLine,
)
from adjoint.failing import is_user_call, variable_of
from adjoint.graph.derivative import order_of_graph
from adjoint.graph.metadata import source_of
from adjoint.graph.show import show_target
from adjoint.observing import Fallback, tell
from adjoint.quantities import counted
from adjoint.source import is_user_file, line_of_code, line_of_stack_trace, user_line
from adjoint.torch_private.fake import DATA_DEPENDENT
from adjoint.torch_private.frames import is_dynamo_error
from adjoint.torch_private.operators import HigherOrderOperator, OpOverload

T = TypeVar("T")

_PACKAGE = Path(__file__).parent.parent

# Packages whose frames do not count as ours: they run user code, or torch on its behalf, so an
# error that passes through them belongs to the frame below.
_TRANSPARENT = tuple(str(_PACKAGE / name) for name in ("torch_private", "transforms"))

# The exceptions that eager operators raise for illegal arguments.
_OPERATOR_ERRORS = (RuntimeError, ValueError, TypeError, IndexError)

_PASSED_THROUGH = (
    CaptureError,
    DifferentiationError,
    MismatchError,
    RewriteError,
    MemoryError,
    torch.OutOfMemoryError,
    Warning,  # Raised where the user turned warnings into errors.
)

# Parts of the messages of RuntimeErrors that mean exhausted memory, on the host or in the driver.
_OUT_OF_MEMORY = ("allocate memory", "out of memory")

# How many ops of a graph a message names.
_MAX_NAMED_OPS = 6

_REMEDY = (
    'options={"unsupported": "eager"} of torch.compile, or torch.func in place of the transforms, '
    "runs it in eager torch; please report it"
)


@dataclass(frozen=True)
class Location:
    """What was being compiled: an op or a whole graph, and the user's line."""

    op: str
    source: SourceLine | None

    def __str__(self) -> str:
        return self.op if self.source is None else f"{self.op}\n  at {self.source}"


class capturing:
    """A context in which an exception becomes a `CaptureError`, unless the program raised it.

    It is a class and no generator: for a StopIteration, `contextlib` would raise an error of its
    own in place of ours.
    """

    __slots__ = ("checked", "what")

    def __init__(self, what: Callable[[], Location], checked: bool = False) -> None:
        """`what` locates the program as a whole.  `checked`: Dynamo has already run the program's
        operators on fakes, so an operator error is ours; only a RuntimeError, as autograd raises,
        is the user's.
        """
        self.what = what
        self.checked = checked

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None or not isinstance(error, Exception) or passes_through(error):
            return
        if _is_from_user_code(error, self.checked):
            return
        location = location_of(error, self.what)
        raise CaptureError(
            location.op, failure_text(error), _REMEDY, location.source, is_internal=True
        ) from error


class differentiating:
    """A context in which an exception becomes a `DifferentiationError`.

    A class because it is entered in every call, and a generator would be slower.
    """

    __slots__ = ("graph_module",)

    def __init__(self, graph_module: fx.GraphModule) -> None:
        self.graph_module = graph_module

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None or not isinstance(error, Exception) or passes_through(error):
            return
        if is_raised_in_user_code(error):
            return
        location = location_of(error, lambda: location_of_graph(self.graph_module))
        order = 1 + order_of_graph(self.graph_module.graph)
        raise DifferentiationError(
            location.op, order, failure_text(error), location.source, _REMEDY
        ) from error


def attempt(
    make: Callable[[], T],
    graph_module: fx.GraphModule,
    otherwise: str = "runs op by op",
    reported: set[str] | None = None,
) -> T | None:
    """The result of `make()`, or None, after a warning, if it fails for `graph_module`.

    `reported`: the failures of this program that the user has been warned of.
    """
    try:
        return make()
    except Exception as error:
        if passes_through(error) or is_raised_in_user_code(error):
            raise
        warn_of_failure(error, graph_module, otherwise, reported)
        return None


def warn_of_failure(
    error: Exception,
    graph_module: fx.GraphModule,
    otherwise: str = "runs op by op",
    reported: set[str] | None = None,
) -> None:
    """Warn that compiling a graph failed, and what happens to the graph `otherwise`."""
    if was_reported(error, reported):
        return
    whole = location_of_graph(graph_module)
    location = location_of(error, lambda: whole)
    warn_of_fallback(
        f"{whole.op} {otherwise}: {failure_text(error)}, in {location}", location.source
    )


def was_reported(error: Exception, reported: set[str] | None) -> bool:
    """Whether the user has been warned of this failure; it counts as reported from now on."""
    if reported is None:
        return False
    known = failure_text(error) in reported
    reported.add(failure_text(error))
    return known


def passes_through(error: BaseException) -> bool:
    """Whether the user gets this exception unchanged."""
    if not isinstance(error, Exception) or isinstance(error, _PASSED_THROUGH):
        return True
    if is_dynamo_error(error):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


def warn_of_fallback(message: str, source: SourceLine | None) -> None:
    """Issue a `FallbackWarning` at the user's line."""
    line = source or user_line()
    tell(Fallback(message, line))
    if line is None:
        warnings.warn(message, FallbackWarning, stacklevel=3)
    else:
        warnings.warn_explicit(message, FallbackWarning, line.file, line.line)


def location_of(error: BaseException, otherwise: Callable[[], Location]) -> Location:
    """The innermost op that was being compiled when `error` was raised, and its line.

    Both come from the innermost marked frame (`failing.works_on`) that holds a node.  Without a
    node, the op is that of the innermost marked frame and the line that of the innermost user
    frame.
    """
    frames = list(_frames(error.__traceback__))
    ours = [index for index, (frame, _) in enumerate(frames) if _is_ours(frame)]
    op: str | None = None
    line: SourceLine | None = None
    for frame, number in reversed(frames[: ours[-1] + 1] if ours else frames):
        if line is None and is_user_file(frame.f_code.co_filename):
            line = line_of_code(frame.f_code, number)
        variable = variable_of(frame.f_code)
        worked_on = None if variable is None else frame.f_locals.get(variable)
        node = _node_of(worked_on)
        if node is not None:
            is_op = isinstance(node.target, OpOverload | HigherOrderOperator)
            name = op if op is not None and not is_op else show_target(node.target)
            return Location(name, _line_of(node) or line or otherwise().source)
        if op is None and isinstance(worked_on, OpOverload | HigherOrderOperator):
            op = str(worked_on)
    known = otherwise() if op is None or line is None else None
    return Location(op or (known.op if known else ""), line or (known.source if known else None))


def location_of_graph(graph_module: fx.GraphModule) -> Location:
    """A whole graph, at the line of its last op."""
    calls = [n for n in graph_module.graph.nodes if n.op not in ("placeholder", "output")]
    lines = [line for node in reversed(calls) if (line := _line_of(node)) is not None]
    names = list(dict.fromkeys(show_target(n.target) for n in calls if n.op != "get_attr"))
    shown = ", ".join([*names[:_MAX_NAMED_OPS], *(["..."] if len(names) > _MAX_NAMED_OPS else [])])
    count = f"a graph of {counted(len(calls), 'op')} ({shown})"
    return Location(count, lines[0] if lines else None)


def location_of_function(function: Callable[..., object]) -> Location:
    """A function: at its first line if the user wrote it, else at the line that calls it."""
    inner: object = getattr(function, "forward", function)
    inner = getattr(inner, "__wrapped__", inner)
    code = getattr(inner, "__code__", None)
    name = getattr(function, "__name__", type(function).__name__)
    if code is None or not is_user_file(code.co_filename):
        return Location(name, user_line())
    return Location(name, line_of_code(code, code.co_firstlineno))


class NotRegistered(RuntimeError):
    """No derivative is registered for an op: it is what eager records while the kernel runs."""


def is_known_when_run(error: BaseException | None) -> bool:
    """Whether a derivative cannot be known before the program runs, and eager autograd finds it."""
    return isinstance(error, (*DATA_DEPENDENT, NotRegistered))


def is_raised_in_user_code(error: BaseException | None) -> bool:
    """Whether the user's code raised it, called by a stage: a derivative, a pass, an observer.

    An operator error inside one of our own rules does not count: no frame of its traceback is in a
    file of the user's.
    """
    if not isinstance(error, Exception) or passes_through(error):
        return False
    frames = _frames(error.__traceback__)
    return _is_from_user_code(error) and any(
        is_user_file(frame.f_code.co_filename) for frame, _ in frames
    )


def _is_from_user_code(error: Exception, checked: bool = False) -> bool:
    """Whether eager would raise it, too: our innermost frame calls into the user's program."""
    frames = [frame for frame, _ in _frames(error.__traceback__)]
    ours = [index for index, frame in enumerate(frames) if _is_ours(frame)]
    if not ours or not is_user_call(frames[ours[-1]].f_code):
        return False
    if any(is_user_file(frame.f_code.co_filename) for frame in frames[ours[-1] :]):
        return True
    if checked:
        return isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError)
    return isinstance(error, _OPERATOR_ERRORS) and not isinstance(error, RecursionError)


def _is_ours(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith(str(_PACKAGE)) and not file.startswith(_TRANSPARENT)


def _frames(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    """The frames of a traceback, outermost first, with their line numbers."""
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def _node_of(worked_on: object) -> fx.Node | None:
    """The node in the marked variable: a node, what has one as `.node`, or the first of
    `.members`."""
    members: Sequence[object] = list(getattr(worked_on, "members", ()))
    found = getattr(members[0] if members else worked_on, "node", worked_on)
    found = members[0] if members and isinstance(members[0], fx.Node) else found
    return found if isinstance(found, fx.Node) and found.op not in _NOT_OPERATORS else None


# Opcodes of nodes that are not operators.
_NOT_OPERATORS = ("placeholder", "output", "get_attr")


def _line_of(node: fx.Node) -> SourceLine | None:
    return source_of(node) or line_of_stack_trace(node.stack_trace)


def failure_text(error: Exception) -> str:
    """A message for the user: the compiler failed with this exception."""
    text = str(error).strip().splitlines()
    summary = f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
    return f"the compiler failed with {summary}"
