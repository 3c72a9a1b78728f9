from __future__ import annotations

import torch

from adjoint.torch_private.fake import new_fake_mode
from adjoint.trace.interpretation import Interpreter
from adjoint.trace.tracer import Tracer


def test_the_tracer_is_told_the_line_of_each_node() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    sine = graph.call_function(torch.sin, (x,))
    sine.stack_trace = 'File "model.py", line 3, in forward\n    y = x.sin()'
    graph.output(graph.call_function(torch.cos, (sine,)))
    tracer = Tracer(new_fake_mode(), lambda tensor: tensor)
    value = torch.ones(3)
    result = Interpreter(torch.fx.GraphModule({}, graph), tracer).run(value)
    assert torch.equal(result, value.sin().cos())
    # A node without a line keeps the last one.
    assert str(tracer.emitter.line) == "model.py:3 in forward: y = x.sin()"
