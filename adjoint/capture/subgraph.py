"""Bodies that stay graphs of their own: branches, loop bodies, halves of custom functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from adjoint.capture.emission import Emitter, current_mode
from adjoint.capture.purity import remove_dead_code
from adjoint.capture.tracer import Scope, Tracer
from adjoint.graph.evaluation import evaluate
from adjoint.graph.metadata import Mode


def graph_module(emitter: Emitter, entry: Mode) -> fx.GraphModule:
    """The finished graph of `emitter` as a module."""
    root = torch.nn.Module()
    for name, value in emitter.attributes.items():
        if isinstance(value, torch.Tensor):
            root.register_buffer(name, value)
        else:
            setattr(root, name, value)
    module = fx.GraphModule(root, emitter.graph)
    module.meta["entry_mode"] = entry
    return module


class Body:
    """A function captured inside another: its graph, and what it takes from around it."""

    def __init__(self, tracer: Tracer, outer: Scope | None = None) -> None:
        self.tracer = tracer
        self.scope = Scope(tracer.quietly, outer or tracer.scope)
        self.entry = current_mode()

    def run(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Call `function` on `arguments`, which become the body's first inputs."""
        with self.tracer.inside(self.scope):
            for argument in arguments:
                if isinstance(argument, torch.Tensor):
                    self.scope.input(argument, "operand")
                else:
                    self.scope.emitter.placeholder("operand", argument)
            return function(*arguments)

    def written(self) -> list[Any]:
        """The tensors from outside that the body wrote to."""
        outside = [*self.scope.lifted]
        return [
            t
            for t in outside
            if isinstance(t, torch.Tensor) and self.scope.aliases[id(t)].storage.writes
        ]

    def close(self, outputs: Any) -> fx.GraphModule:
        """The body as a graph that returns `outputs`, a tree of tensors and numbers."""
        with self.tracer.inside(self.scope):
            nodes = self.tracer.nodes(outputs)
        graph = self.scope.emitter.graph
        graph.output(nodes)
        remove_dead_code(graph)
        module = graph_module(self.scope.emitter, self.entry)
        if any(n.meta.get("mode", self.entry) != self.entry for n in graph.nodes):
            # The generated code of a graph module knows nothing of no_grad regions.
            module.forward = functools.partial(_run, module)
        return module


def _run(module: fx.GraphModule, *inputs: Any) -> Any:
    return evaluate(module, inputs)
