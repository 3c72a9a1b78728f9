"""Tracing a graph of torch.fx, such as Dynamo makes, node by node."""

from __future__ import annotations

from torch import fx

from adjoint.failing import call_user_code, works_on
from adjoint.source import line_of_stack_trace
from adjoint.trace.tracer import Tracer


class Interpreter(fx.Interpreter):
    """Runs a graph under the tracer, which it gives the source line of each node."""

    def __init__(self, graph_module: fx.GraphModule, tracer: Tracer) -> None:
        super().__init__(graph_module)
        self.tracer = tracer
        # With it torch prints the graph into its trace log where an error passes, which may fail
        # itself, and adds to the text of the error.  Ours names the op and the line.
        self.extra_traceback = False

    @works_on("node")
    def run_node(self, node: fx.Node) -> object:
        line = line_of_stack_trace(node.stack_trace)
        if line is not None:
            self.tracer.emitter.line = line
        return call_user_code(super().run_node, node)
