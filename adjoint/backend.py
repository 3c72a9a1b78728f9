"""The backend that `torch.compile(f, backend="adjoint")` finds, and its short form."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

import torch
from torch import fx

from adjoint.compiler import compile_graph
from adjoint.errors import CaptureError, SourceLine
from adjoint.graph.boundary import capturing, location_of_graph, warn_of_fallback
from adjoint.options import Options
from adjoint.progress import PROGRESS
from adjoint.torch_private.dynamo import DynamoError, adapt_frames, in_eager, is_general_attempt

# The names that torch.compile gives its modes.  They ask for more or less effort in making code,
# which the reference target has none of.
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def _is_final(error: Exception) -> bool:
    """Other shapes would not help."""
    if isinstance(error, CaptureError):
        return not error.is_internal
    return isinstance(error, MemoryError | torch.OutOfMemoryError | Warning)


def _tracing(options: Mapping[str, Any], code: CodeType) -> contextlib.AbstractContextManager[None]:
    """Dynamo traces a frame, and has it compiled."""
    if options.get("progress") is False:
        return contextlib.nullcontext()
    line = SourceLine(code.co_filename, code.co_firstlineno, code.co_name, "")
    return PROGRESS.during("tracing", lambda: line)


adapt_frames("adjoint", _is_final, _tracing)


def adjoint(
    graph_module: fx.GraphModule,
    examples: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile what Dynamo captured."""
    if mode is not None and mode not in MODES:
        raise ValueError(f"mode {mode!r} is none of {', '.join(MODES)}")
    parsed = Options.parse(options or {})
    what = functools.partial(location_of_graph, graph_module)
    try:
        with capturing(what, checked=True):
            return compile_graph(graph_module, examples, parsed)
    except Exception as error:
        if parsed.unsupported != "eager" or not _runs_in_eager(error):
            raise
        source = error.source if isinstance(error, CaptureError) else None
        warn_of_fallback(f"runs in eager torch: {error}", source)
        return in_eager(graph_module)


def _runs_in_eager(error: Exception) -> bool:
    """Eager can do what failed here, or says itself why not."""
    if isinstance(error, CaptureError) and not error.is_internal:
        return True
    if isinstance(error, DynamoError | MemoryError | torch.OutOfMemoryError | Warning):
        return False
    return not is_general_attempt()


def compile(
    function: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    **options: Any,
) -> Callable[..., Any]:
    """`torch.compile(function, backend="adjoint", ...)`; without a function, a decorator."""
    if function is None:
        return functools.partial(
            compile, fullgraph=fullgraph, dynamic=dynamic, mode=mode, **options
        )
    Options.parse(options)  # A wrong option is an error here, not at the first call.
    compiled: Callable[..., Any] = torch.compile(
        function,
        backend="adjoint",
        fullgraph=fullgraph,
        dynamic=dynamic,
        mode=mode,
        options=options or None,
    )
    return compiled
