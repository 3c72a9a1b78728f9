"""Capturing a program: run it once on fake inputs, then say what it computed, changed and returned."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from adjoint.capture.emission import current_mode
from adjoint.capture.front import Front
from adjoint.capture.inputs import Inputs, Leaf
from adjoint.capture.purity import remove_dead_code
from adjoint.capture.results import Results
from adjoint.capture.source import line_of_traceback
from adjoint.capture.subgraph import graph_module
from adjoint.capture.tracer import Tracer
from adjoint.errors import CaptureError
from adjoint.graph.captured import Captured
from adjoint.graph.descriptors import Captured as CapturedInput
from adjoint.graph.metadata import set_output_descriptors
from adjoint.graph.verify import verify
from adjoint.torch_private import trees
from adjoint.torch_private.fake import (
    DATA_DEPENDENT,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from adjoint.torch_private.modes import (
    control_flow_calls_its_operator,
    custom_functions_applied_by,
    enable_python_dispatcher,
)


class Capture:
    """One capture: the program's inputs, found and yet to be found, and its graph."""

    def __init__(
        self, fake_mode: FakeTensorMode, make_fake: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        """`make_fake` gives the fake of a real tensor that the program turns out to close over."""
        self.tracer = Tracer(fake_mode, self.adopt)
        self.inputs = Inputs(self.tracer)
        self.closed_over: list[torch.Tensor] = []
        self._make_fake = make_fake
        self._fakes: dict[int, torch.Tensor] = {}

    def adopt(self, real: torch.Tensor) -> torch.Tensor:
        """The fake that stands for `real`, a tensor from outside, which becomes an input."""
        if isinstance(real, FakeTensor):
            return real
        if id(real) not in self._fakes:
            with self.tracer.paused():
                fake = self._make_fake(real)
            self._fakes[id(real)] = fake
            self.closed_over.append(real)
            descriptor = CapturedInput(len(self.closed_over) - 1, _closure_name(real))
            with self.tracer.inside(self.tracer.root):
                self.inputs.add([Leaf(fake, descriptor)])
        return self._fakes[id(real)]

    def run(self, program: Callable[[], Any], leaves: Sequence[Leaf]) -> tuple[Captured, Any]:
        """Capture `program`, which takes `leaves`; also what its results are put back into."""
        mode = current_mode()
        self.inputs.add(leaves)
        with self._watching():
            result = program()
        with self.tracer.fake_mode, torch.no_grad():
            paths, spec = trees.flatten_with_paths(result)
            results = Results(self.tracer, self.inputs)
            calling = results.calling(paths)
            graph = self.tracer.emitter.graph
            graph.output(tuple(results.outputs))
        remove_dead_code(graph)
        set_output_descriptors(graph, tuple(d for d in results.descriptors if d is not None))
        module = graph_module(self.tracer.emitter, mode)
        verify(module)
        return Captured(module, calling), spec

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        front = Front(self.tracer, self.adopt)
        with (
            _named_errors(self.tracer),
            _autocast_cache_cleared(),
            self.tracer.fake_mode,
            enable_python_dispatcher(),
            self.tracer,
            front,
            control_flow_calls_its_operator(),
            custom_functions_applied_by(front.apply_custom_function),
        ):
            yield


@contextlib.contextmanager
def _named_errors(tracer: Tracer) -> Iterator[None]:
    """Torch's complaints about what fakes cannot do, as errors that name the user's line."""
    try:
        yield
    except DATA_DEPENDENT as error:
        raise CaptureError(
            "a value that decides what the program does next",
            f"the graph must not depend on data ({_first_line(error)})",
            "use torch.where or torch.cond, or keep this part outside the compiled function",
            _line_in(error),
        ) from error
    except UnsupportedOperatorException as error:
        raise CaptureError(
            f"op {error.func}",
            "it has no fake implementation, so its result's shape is unknown",
            "register one with torch.library.register_fake",
            _line_in(error),
        ) from error


@contextlib.contextmanager
def _autocast_cache_cleared() -> Iterator[None]:
    """Autocast remembers casts of parameters: fake ones must not stay remembered."""
    try:
        yield
    finally:
        torch.clear_autocast_cache()


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _line_in(error: Exception) -> Any:
    return line_of_traceback(error.__traceback__)


def _closure_name(tensor: torch.Tensor) -> str:
    return "parameter" if isinstance(tensor, torch.nn.Parameter) else "tensor"
