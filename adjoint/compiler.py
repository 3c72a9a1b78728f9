"""The sentence: capture -> differentiate -> optimize -> partition -> lower -> emit -> load.

The derivative is built when autograd first asks for it; `building.py` has the stages from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import fx

from adjoint.building import Build
from adjoint.capture.direct import capture_call
from adjoint.capture.dynamo import capture_graph
from adjoint.graph.boundary import capturing, location_of_graph
from adjoint.graph.captured import CapturedProgram
from adjoint.observing import Observer
from adjoint.options import Options
from adjoint.runtime.program import Program
from adjoint.runtime.reference import run_call
from adjoint.torch_private.dynamo import in_eager


def compile_graph(
    graph_module: fx.GraphModule,
    examples: Sequence[Any],
    options: Options,
    saw: Observer | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo's; `saw` observes it, or the progress on a terminal does."""
    build = Build(options, saw, told=set())
    what = partial(location_of_graph, graph_module)
    with build.during("capturing", graph_module):
        primal = build.saw("capture", capture_graph(graph_module, examples))

    def captured_anew(inputs: Sequence[Any]) -> CapturedProgram:
        with capturing(what, checked=True), build.during("capturing", graph_module):
            return capture_graph(graph_module, inputs, anew=True)

    return Program(
        primal,
        captured_anew,
        build.program,
        in_eager(graph_module) if options.unsupported == "eager" else None,
    )


def capture(
    function: Callable[..., Any], *args: Any, dynamic: bool = False, **kwargs: Any
) -> CapturedProgram:
    """The pure graph of `function(*args, **kwargs)`, with what its inputs and outputs are."""
    return capture_call(function, args, kwargs, dynamic)


def run(captured: CapturedProgram, *args: Any, **kwargs: Any) -> Any:
    """Call a captured function with the reference executor."""
    return run_call(captured, args, kwargs)
