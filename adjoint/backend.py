"""The backend of `torch.compile(f, backend="adjoint")`, and its short form `adjoint.compile`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import CodeType

import torch
from torch import fx

from adjoint.checking import Checker
from adjoint.compiler import Compiler
from adjoint.errors import CaptureError, OutsideHistoryError, SourceLine
from adjoint.garbage import full_collections_wait
from adjoint.graph.boundary import capturing, location_of_graph, warn_of_fallback
from adjoint.graph.captured import CapturedProgram
from adjoint.observing import Compilation, Observer, timed_compilation, unobserved
from adjoint.open_types import UserFunction
from adjoint.options import Options, options_given
from adjoint.progress import PROGRESS
from adjoint.reasons import phrased
from adjoint.runtime import executable, profiling
from adjoint.runtime.entry import EntryPoint
from adjoint.torch_private.dynamo import (
    DynamoError,
    adapt_frames,
    compiled_function,
    in_eager,
    is_general_attempt,
    recompilation_reasons,
    sizes_become_symbols,
)
from adjoint.trace.subclasses import has_own_dispatch

# The modes of `torch.compile` as options.  There is no autotuning.
MODES: dict[str, dict[str, object]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"cuda_graphs": True},
    "max-autotune-no-cudagraphs": {"cuda_graphs": False},
}


def _parse(given: Mapping[str, object] | Options | None, mode: str | None) -> Options:
    """The options of a user's mapping and mode."""
    if mode is not None and mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}; choose from: {', '.join(MODES)}")
    asked = {} if mode is None else MODES[mode]
    options = options_given(given)
    for name, value in asked.items():
        if name in options and options[name] != value:
            raise ValueError(f"mode {mode!r} means {name}={value}, and options say {options[name]}")
    return Options.parse({**asked, **options})


def _is_final(error: Exception) -> bool:
    """Whether compiling the frame again with specialized sizes would fail in the same way."""
    if isinstance(error, CaptureError):
        return not error.is_internal
    return isinstance(error, MemoryError | torch.OutOfMemoryError | Warning)


@contextlib.contextmanager
def _tracing(options: Mapping[str, object], code: CodeType) -> Iterator[None]:
    """The context around Dynamo's tracing of a frame: progress is shown, watchers are told, and
    garbage is left for later."""
    line = SourceLine(code.co_filename, code.co_firstlineno, code.co_name, "")
    compilation = Compilation(code.co_name, "torch.compile", line)
    with full_collections_wait(), timed_compilation(compilation, _reason):
        if options_given(options).get("progress") is False:
            yield
            return
        with PROGRESS.during("tracing", lambda: line):
            yield


def _reason() -> str:
    """Why the frame is compiled again; empty if it is not."""
    reasons = recompilation_reasons()
    return phrased(reasons[0], sizes_become_symbols()) if reasons else ""


adapt_frames("adjoint", _is_final, OutsideHistoryError, _tracing)
profiling.install()


def adjoint(
    graph_module: fx.GraphModule,
    examples: Sequence[object],
    *,
    options: Mapping[str, object] | Options | None = None,
    mode: str | None = None,
    observer: Observer | None = None,
) -> UserFunction:
    """Compile what Dynamo captured; `observer` is shown every stage of every order."""
    parsed = _parse(options, mode)
    if any(isinstance(each, torch.Tensor) and has_own_dispatch(each) for each in examples):
        # Fakes of the caller's, for instance, which have no memory that kernels could read.
        parsed = replace(parsed, target="reference")
    what = functools.partial(location_of_graph, graph_module)
    checker = None if parsed.check is None else Checker(parsed)
    try:
        with capturing(what, checked=True):
            entry = compile_graph(graph_module, examples, parsed, observer, checker)
            return entry if checker is None else checker.beside(entry, in_eager(graph_module))
    except Exception as error:
        if parsed.unsupported != "eager" or not _runs_in_eager(error):
            raise
        source = error.source if isinstance(error, CaptureError) else None
        warn_of_fallback(f"runs in eager torch: {error}", source)
        return in_eager(graph_module)


def compile_graph(
    graph_module: fx.GraphModule,
    examples: Sequence[object],
    options: Options,
    observer: Observer | None = None,
    checker: executable.Checker | None = None,
) -> EntryPoint:
    """Compile a graph of Dynamo's; `checker`: compares gradients with eager's."""
    function = compiled_function()
    compiler = Compiler(options, observer or unobserved, function, set(), checker)
    primal = compiler.captured(graph_module, examples)

    def captured_anew(inputs: Sequence[object]) -> CapturedProgram:
        place = functools.partial(location_of_graph, graph_module)
        reason = "arguments share memory in another pattern"
        again = Compilation(function, "capture", place().source, reason)
        with capturing(place, checked=True), timed_compilation(again):
            return compiler.captured(graph_module, inputs, anew=True)

    eager = in_eager(graph_module) if options.unsupported == "eager" else None
    return EntryPoint(primal, captured_anew, compiler.differentiable, eager)


def _runs_in_eager(error: Exception) -> bool:
    """Whether the graph may run in eager torch instead, which may raise its own error."""
    if isinstance(error, CaptureError) and not error.is_internal:
        return True
    if isinstance(error, DynamoError | MemoryError | torch.OutOfMemoryError | Warning):
        return False
    return not is_general_attempt()


def compile(
    function: Callable[..., object] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    **options: object,
) -> UserFunction:
    """`torch.compile(function, backend="adjoint", ...)`; without a function, a decorator.

    >>> import torch, adjoint
    >>> adjoint.compile(lambda x: x.square().sum())(torch.ones(3))
    tensor(3.)
    """
    if function is None:
        settings: dict[str, object] = {"fullgraph": fullgraph, "dynamic": dynamic, "mode": mode}
        return functools.partial(compile, **settings, **options)  # type: ignore[arg-type]
    _parse(options, mode)  # A wrong option is an error here, not at the first call.
    if mode is not None and options:  # `torch.compile` takes only one of them.
        options, mode = {**MODES[mode], **options}, None
    compiled: Callable[..., object] = torch.compile(
        function,
        backend="adjoint",
        fullgraph=fullgraph,
        dynamic=dynamic,
        mode=mode,
        options=options or None,  # type: ignore[arg-type]
    )
    return compiled
