"""Capturing a graph from Dynamo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import fx

from adjoint.capture.inputs import Leaf
from adjoint.capture.program import Capture
from adjoint.forms.dynamo_graphs import DynamoGround
from adjoint.graph.captured import CapturedProgram
from adjoint.graph.descriptors import Argument, Buffer, Parameter, PlainInput, SymbolicSize
from adjoint.torch_private import dynamo, dynamo_inputs
from adjoint.torch_private.fake import FakeTensorMode, make_fake, new_fake_mode
from adjoint.torch_private.modes import without_observers
from adjoint.trace.interpretation import Interpreter


class CaptureCache(Protocol):
    """The cache of captures."""

    def captured(
        self, ground_of: Callable[[], DynamoGround], make: Callable[[], CapturedProgram]
    ) -> CapturedProgram:
        """The cached capture of a graph, or what `make` captures, which is then cached."""
        ...


def capture_graph(
    graph_module: fx.GraphModule,
    examples: Sequence[object],
    anew: bool = False,
    kept: CaptureCache | None = None,
) -> CapturedProgram:
    """Capture a graph from Dynamo for inputs like `examples`.

    `anew`: a later capture, outside of Dynamo, for inputs that alias in another pattern.  `kept`:
    the cache of captures, if there is one.
    """
    with dynamo.COMPILING, without_observers():
        return _capture_graph(graph_module, examples, anew, kept)


def _capture_graph(
    graph_module: fx.GraphModule, examples: Sequence[object], anew: bool, kept: CaptureCache | None
) -> CapturedProgram:
    fake_mode, fakes = (None, []) if anew else dynamo_inputs.fresh_fakes(graph_module, examples)
    if fake_mode is None:
        kept = None
        fake_mode = new_fake_mode()
        fakes = [
            make_fake(fake_mode, each, False, f"input{index}")
            if isinstance(each, torch.Tensor)
            else each
            for index, each in enumerate(examples)
        ]
    placeholders = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    descriptors = _descriptors([dynamo_inputs.source_name(node) for node in placeholders], examples)
    leaves = [Leaf(*pair) for pair in zip(fakes, descriptors, strict=True)]
    make = partial(_captured, graph_module, fake_mode, leaves)
    if kept is None:
        return make()
    inputs = [
        (given, leaf.value, leaf.descriptor) for given, leaf in zip(examples, leaves, strict=True)
    ]
    return kept.captured(partial(DynamoGround, graph_module, fake_mode, inputs), make)


def _captured(
    graph_module: fx.GraphModule, fake_mode: FakeTensorMode, leaves: Sequence[Leaf]
) -> CapturedProgram:
    capture = Capture(fake_mode, lambda real: make_fake(fake_mode, real, False, "closure"))
    interpreter = Interpreter(graph_module, capture.tracer)
    fakes = [leaf.value for leaf in leaves]
    captured, _ = capture.run(partial(interpreter.run, *fakes), leaves)
    if capture.closed_over:
        return captured.closing_over(capture.closed_over)
    return captured


def _descriptors(
    sources: Sequence[str], examples: Sequence[object]
) -> list[PlainInput | SymbolicSize]:
    """What the inputs are, by the expressions that refer to them.

    A module of the user's frame may have the name of a submodule of `self`, or of a module of
    another frame.  Parameters that only the whole expression tells apart are named by it.
    """
    paths = [dynamo_inputs.module_path(source) for source in sources]
    shared = {path for path, times in Counter(paths).items() if times > 1}
    return [
        _descriptor(index, source, source if path is not None and path in shared else path, example)
        for index, (source, path, example) in enumerate(zip(sources, paths, examples, strict=True))
    ]


def _descriptor(
    index: int, source: str, name: str | None, example: object
) -> PlainInput | SymbolicSize:
    if not isinstance(example, torch.Tensor):
        return SymbolicSize(source)
    if name is None:
        return Argument(index, source)
    return Parameter(name) if isinstance(example, torch.nn.Parameter) else Buffer(name)
