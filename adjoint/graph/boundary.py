"""Where failures of the compiler become errors of the user's.

Between the user and the stages are a few doors: a capture, a derivative, native code.  What fails
behind one comes out as one error of its kind, with the op that was being worked on and the user's
line, read off the traceback.  Some exceptions pass as they are: those of the user's own program,
which eager would raise as well; those that ask for something, as an interrupt does; Dynamo's.
"""

from __future__ import annotations

import contextlib
import linecache
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

import torch
from torch import fx

from adjoint.errors import CaptureError, DifferentiationError, FallbackWarning, SourceLine
from adjoint.failing import is_user_call, variable_of
from adjoint.graph.descriptors import order_of
from adjoint.graph.metadata import source_of
from adjoint.graph.show import show_target
from adjoint.source import is_user_file, line_of_stack_trace, user_line
from adjoint.torch_private.dynamo import DynamoError
from adjoint.torch_private.operators import HigherOrderOperator, OpOverload

Made = TypeVar("Made")

_PACKAGE = Path(__file__).parent.parent

# Between the program and torch, or on the program's side of a capture: what comes through here is
# as much the program's as it was before.
_SEEN_THROUGH = tuple(str(_PACKAGE / name) for name in ("torch_private", "transforms"))

# What eager's operators raise.
_OF_OPERATORS = (RuntimeError, ValueError, TypeError, IndexError)

_PASSING = (
    CaptureError,
    DifferentiationError,
    DynamoError,
    MemoryError,
    torch.OutOfMemoryError,
    Warning,  # The user has made errors of warnings.
)

# What torch says where the memory of a processor, or a driver's, is exhausted.
_NO_MEMORY = ("allocate memory", "out of memory")

# Of so many ops a message gives the names.
_NAMED = 6

_REMEDY = (
    'options={"unsupported": "eager"} of torch.compile, or torch.func in place of the transforms, '
    "runs it in eager torch; please report it"
)


@dataclass(frozen=True)
class Location:
    """What was being worked on: an op, or more than one, and a line of the user's."""

    op: str
    source: SourceLine | None

    def __str__(self) -> str:
        return self.op if self.source is None else f"{self.op}\n  at {self.source}"


@contextlib.contextmanager
def capturing(what: Callable[[], Location], checked: bool = False) -> Iterator[None]:
    """What fails inside is a `CaptureError`, unless the program itself raised it.

    `what` is captured.  `checked`: Dynamo has run the program's operators on fakes, so that what
    they refuse is no mistake of the user's, but for what autograd refuses.
    """
    try:
        yield
    except Exception as error:
        if passes_through(error) or _is_the_programs(error, checked):
            raise
        place = location_of(error, what)
        raise CaptureError(
            place.op, failure_text(error), _REMEDY, place.source, is_internal=True
        ) from error


class differentiating:
    """A context: what fails inside is a `DifferentiationError`.  It is entered in every call."""

    __slots__ = ("graph_module",)

    def __init__(self, graph_module: fx.GraphModule) -> None:
        self.graph_module = graph_module

    def __enter__(self) -> None: ...

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if error is None or not isinstance(error, Exception) or passes_through(error):
            return
        place = location_of(error, lambda: location_of_graph(self.graph_module))
        order = 1 + _order(self.graph_module)
        raise DifferentiationError(
            place.op, order, failure_text(error), place.source, _REMEDY
        ) from error


def attempt(
    make: Callable[[], Made],
    graph_module: fx.GraphModule,
    otherwise: str = "runs op by op",
    reported: set[str] | None = None,
) -> Made | None:
    """What `make` makes of a graph; None if it fails, which the user is told.

    `reported`: what the user has been told already, of all graphs of one program.
    """
    try:
        return make()
    except Exception as error:
        if passes_through(error):
            raise
        warn_of_failure(error, graph_module, otherwise, reported)
        return None


def warn_of_failure(
    error: Exception,
    graph_module: fx.GraphModule,
    otherwise: str = "runs op by op",
    reported: set[str] | None = None,
) -> None:
    """Warn that something failed that was made of a graph, and what becomes of it."""
    if was_reported(error, reported):
        return
    whole = location_of_graph(graph_module)
    place = location_of(error, lambda: whole)
    warn_of_fallback(f"{whole.op} {otherwise}: {failure_text(error)}, in {place}", place.source)


def was_reported(error: Exception, reported: set[str] | None) -> bool:
    """The user knows of this failure; from now on, in any case."""
    if reported is None:
        return False
    known = failure_text(error) in reported
    reported.add(failure_text(error))
    return known


def passes_through(error: BaseException) -> bool:
    """It is the user's as it is."""
    if not isinstance(error, Exception) or isinstance(error, _PASSING):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _NO_MEMORY)


def warn_of_fallback(message: str, source: SourceLine | None) -> None:
    """Tell the user, as a warning of the user's line."""
    line = source or user_line()
    if line is None:
        warnings.warn(message, FallbackWarning, stacklevel=3)
    else:
        warnings.warn_explicit(message, FallbackWarning, line.file, line.line)


def location_of(error: BaseException, otherwise: Callable[[], Location]) -> Location:
    """The innermost op that one of us was working on when `error` was raised, and its line.

    A node says both.  Without one the op is what was seen last, and the line the last of the
    user's that led there.
    """
    frames = list(_frames(error.__traceback__))
    ours = [place for place, (frame, _) in enumerate(frames) if _is_ours(frame)]
    op: str | None = None
    line: SourceLine | None = None
    for frame, number in reversed(frames[: ours[-1] + 1] if ours else frames):
        if line is None and is_user_file(frame.f_code.co_filename):
            line = _line(frame, number)
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
    """All of a graph, at the line of its last op."""
    calls = [n for n in graph_module.graph.nodes if n.op not in ("placeholder", "output")]
    lines = [line for node in reversed(calls) if (line := _line_of(node)) is not None]
    names = list(dict.fromkeys(show_target(n.target) for n in calls if n.op != "get_attr"))
    shown = ", ".join([*names[:_NAMED], *(["..."] if len(names) > _NAMED else [])])
    count = f"a graph of {len(calls)} op{'' if len(calls) == 1 else 's'} ({shown})"
    return Location(count, lines[0] if lines else None)


def location_of_function(function: Callable[..., Any]) -> Location:
    """A function of the user's, at its first line; of any other, where it is called."""
    inner: Any = getattr(function, "forward", function)
    inner = getattr(inner, "__wrapped__", inner)
    code = getattr(inner, "__code__", None)
    name = getattr(function, "__name__", type(function).__name__)
    if code is None or not is_user_file(code.co_filename):
        return Location(name, user_line())
    text = linecache.getline(code.co_filename, code.co_firstlineno).strip()
    return Location(name, SourceLine(code.co_filename, code.co_firstlineno, code.co_name, text))


def _is_the_programs(error: Exception, checked: bool) -> bool:
    """Eager would raise it as well: the program ran, and nothing of ours inside of it."""
    frames = [frame for frame, _ in _frames(error.__traceback__)]
    ours = [place for place, frame in enumerate(frames) if _is_ours(frame)]
    if not ours or not is_user_call(frames[ours[-1]].f_code):
        return False
    if any(is_user_file(frame.f_code.co_filename) for frame in frames[ours[-1] :]):
        return True
    if checked:
        return isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError)
    return isinstance(error, _OF_OPERATORS) and not isinstance(error, RecursionError)


def _is_ours(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith(str(_PACKAGE)) and not file.startswith(_SEEN_THROUGH)


def _frames(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    """The outermost first, each with the number of its line."""
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def _line(frame: FrameType, number: int) -> SourceLine:
    code = frame.f_code
    text = linecache.getline(code.co_filename, number).strip()
    return SourceLine(code.co_filename, number, code.co_name, text)


def _node_of(worked_on: Any) -> fx.Node | None:
    """The node that is worked on; of several, the first."""
    members: Sequence[Any] = list(getattr(worked_on, "members", ()))
    found = getattr(members[0] if members else worked_on, "node", worked_on)
    found = members[0] if members and isinstance(members[0], fx.Node) else found
    return found if isinstance(found, fx.Node) and found.op not in _ENDS else None


# Nodes that are no op.
_ENDS = ("placeholder", "output", "get_attr")


def _line_of(node: fx.Node) -> SourceLine | None:
    return source_of(node) or line_of_stack_trace(node.stack_trace)


def failure_text(error: Exception) -> str:
    """That the compiler failed, and with what."""
    text = str(error).strip().splitlines()
    said = f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
    return f"the compiler failed with {said}"


def _order(graph_module: fx.GraphModule) -> int:
    """How often the program has been differentiated, as far as the graph says."""
    nodes = graph_module.graph.nodes
    described = [node.meta.get("descriptor") for node in nodes]
    orders: list[int] = [node.meta.get("order", 0) for node in nodes]
    return max([0, *orders, *(order_of(each) for each in described if each is not None)])
