"""The backend that `torch.compile(f, backend="adjoint")` finds, and its short form."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from adjoint.compiler import compile_graph
from adjoint.errors import CaptureError, FallbackWarning
from adjoint.options import Options
from adjoint.torch_private.dynamo import adapt_frames

# The names that torch.compile gives its modes.  They ask for more or less effort in making code,
# which the reference target has none of.
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

adapt_frames("adjoint", CaptureError)


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
    try:
        return compile_graph(graph_module, examples, parsed)
    except CaptureError as error:
        if parsed.unsupported != "eager":
            raise
        warnings.warn(f"runs in eager torch: {error}", FallbackWarning, stacklevel=2)
        return graph_module.forward


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
