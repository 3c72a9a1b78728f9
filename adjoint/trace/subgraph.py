"""Tracing bodies into graphs of their own: branches, loop bodies, halves of custom functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx

from adjoint.errors import CaptureError
from adjoint.failing import call_user_code
from adjoint.graph.metadata import Mode, set_entry_mode
from adjoint.graph.purity import remove_dead_code
from adjoint.open_types import OpArgument, TorchValue
from adjoint.source import user_line
from adjoint.torch_private.autograd import applied
from adjoint.torch_private.graph_modules import module_of
from adjoint.trace.emission import Emitter, current_mode
from adjoint.trace.scope import Liftable, Scope
from adjoint.trace.tracer import Tracer


def finish_graph(emitter: Emitter, entry: Mode) -> fx.GraphModule:
    """The finished graph of `emitter` as a module."""
    root = torch.nn.Module()
    for name, value in emitter.attributes.items():
        if isinstance(value, torch.Tensor):
            root.register_buffer(name, value)
        else:
            setattr(root, name, value)
    module = module_of(root, emitter.graph)
    set_entry_mode(module, entry)
    return module


class Body:
    """A function traced inside another: its scope, and what it lifts from outside."""

    def __init__(self, tracer: Tracer, outer: Scope | None = None) -> None:
        self.tracer = tracer
        self.scope = Scope(tracer.untraced, outer or tracer.scope)
        self.entry = current_mode()
        self._operands: list[object] = []

    def run(self, function: Callable[..., object], arguments: Sequence[object]) -> TorchValue:
        """Call `function` on `arguments`, which become the body's first inputs."""
        self._operands = list(arguments)
        with self.tracer.inside(self.scope):
            for argument in arguments:
                if isinstance(argument, torch.Tensor):
                    self.scope.input(argument, "operand")
                else:
                    self.scope.emitter.placeholder("operand", argument)
            return call_user_code(function, *arguments)

    def written(self) -> list[torch.Tensor]:
        """The operands and lifted tensors that the body wrote to."""
        outside = [*self._operands, *self.scope.lifted]
        return [
            t
            for t in outside
            if isinstance(t, torch.Tensor) and self.scope.aliases[id(t)].storage.writes
        ]

    def read(self, outputs: object) -> OpArgument:
        """The nodes of `outputs`, a tree of tensors and numbers."""
        with self.tracer.inside(self.scope):
            return self.tracer.nodes(outputs)

    def close(self, outputs: object) -> fx.GraphModule:
        """The body as a graph that returns `outputs`."""
        nodes = self.read(outputs)
        self.scope.emitter.graph.output(nodes)
        module = finish_graph(self.scope.emitter, self.entry)
        remove_dead_code(module.graph)
        module.recompile()
        return module


def match_lifted(bodies: Sequence[Body], outputs: Sequence[object]) -> list[Liftable]:
    """Give all bodies the same lifted inputs, in the same order, after their operands."""
    lifted: list[Liftable] = []
    for body, output in zip(bodies, outputs, strict=True):
        body.read(output)  # What a body lifts is known once its results have been read.
        lifted += [each for each in body.scope.lifted if not _among(each, lifted)]
    for body in bodies:
        with body.tracer.inside(body.scope):
            nodes = [body.scope.lifted_node(each) for each in lifted]
        for node in nodes:
            # Each is moved behind all other inputs, so that their order becomes that of `lifted`.
            last = [n for n in body.scope.emitter.graph.nodes if n.op == "placeholder"][-1]
            if last is not node:
                last.append(node)
        body.scope.emitter.recount_placeholders()
    return lifted


def _among(value: Liftable, values: Sequence[Liftable]) -> bool:
    return any(each is value for each in values)


def opaque(shown: Sequence[object], inputs: Sequence[object], name: str) -> list[TorchValue]:
    """New tensors like `shown` that autograd knows to depend on `inputs`.

    Their derivative inside the traced program is refused.
    """
    sources = [t for t in inputs if isinstance(t, torch.Tensor)]
    line = user_line()

    class Opaque(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, *args: object) -> tuple[object, ...]:
            return tuple(
                torch.empty_like(each) if isinstance(each, torch.Tensor) else each for each in shown
            )

        @staticmethod
        def backward(ctx: object, *cotangents: object) -> tuple[object, ...]:
            raise CaptureError(
                f"a derivative of {name} inside the captured function",
                "its body is differentiated only when the whole program is",
                "take the derivative outside the compiled function",
                line,
            )

    return list(applied(Opaque, *sources))
