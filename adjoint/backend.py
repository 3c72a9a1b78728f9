"""The backend that `torch.compile(f, backend="adjoint")` finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from adjoint.compiler import compile_graph
from adjoint.options import Options
from adjoint.torch_private.dynamo import keep_shapes_general

keep_shapes_general("adjoint")


def adjoint(
    graph_module: fx.GraphModule,
    examples: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile what Dynamo captured."""
    return compile_graph(graph_module, examples, Options.parse(options or {}))
