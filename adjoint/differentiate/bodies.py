"""Reverse mode through operators with bodies: the reverse of a body is a body.

`scan` and `map` have no rule here: they are differentiated as the loops that they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from adjoint.graph.descriptors import Argument, Result
from adjoint.graph.metadata import (
    Mode,
    outputs_of,
    set_descriptor,
    set_output_descriptors,
)
from adjoint.graph.purity import remove_dead_code
from adjoint.trace.tracer import Tracer

Differentiate = Callable[[fx.GraphModule, Sequence[int], Sequence[int]], fx.GraphModule]

aten = torch.ops.aten


def reverse_cond(
    tracer: Tracer,
    differentiate: Differentiate,
    branches: Sequence[fx.GraphModule],
    pred: Any,
    operands: Sequence[Any],
    cotangents: Sequence[Any],
    wrt: Sequence[int],
) -> list[torch.Tensor]:
    """The cotangents of the operands `wrt` of a `cond`: a `cond` of the reverse branches.

    A branch computes again what its derivative needs.  Both branches give a cotangent to the same
    operands, so a zero is a tensor here.
    """
    of = [place for place, each in enumerate(cotangents) if each is not None]
    with tracer.paused():
        reverse = [_reverse(differentiate, branch, of, wrt) for branch in branches]
    inputs = [*operands, *(cotangents[place] for place in of)]
    with tracer.quietly():
        results = [torch.empty_like(operands[place]) for place in wrt]
    emitter = tracer.emitter
    names = ("reverse_true", "reverse_false")
    bodies = [emitter.attribute(n, g) for n, g in zip(names, reverse, strict=True)]
    args = (tracer.nodes(pred), *bodies, tuple(tracer.nodes(inputs)))
    node = emitter.call(torch.ops.higher_order.cond, args, mode=Mode(), value=tuple(results))
    tracer.register(tuple(results), node)
    return results


def _reverse(
    differentiate: Differentiate, body: fx.GraphModule, of: Sequence[int], wrt: Sequence[int]
) -> fx.GraphModule:
    """The graph from the inputs of `body` and cotangents to cotangents of its inputs `wrt`."""
    inputs = [node for node in body.graph.nodes if node.op == "placeholder"]
    for index, node in enumerate(inputs):
        set_descriptor(node, Argument(index, f"operand[{index}]"))
    returned = outputs_of(body.graph)
    described = tuple(Result(index, f"result[{index}]") for index in range(len(returned)))
    set_output_descriptors(body.graph, described)
    joint = differentiate(body, of, wrt)
    gradients = outputs_of(joint.graph)[len(returned) :]
    operands = [node for node in joint.graph.nodes if node.op == "placeholder"]
    output = next(node for node in joint.graph.nodes if node.op == "output")
    with joint.graph.inserting_before(output):
        complete = tuple(
            _zeros(joint.graph, operands[place]) if gradient is None else gradient
            for place, gradient in zip(wrt, gradients, strict=True)
        )
    output.args = (complete,)
    output.meta.pop("descriptors", None)
    remove_dead_code(joint.graph)
    joint.recompile()
    return joint


def _zeros(graph: fx.Graph, like: fx.Node) -> fx.Node:
    zeros = graph.call_function(aten.zeros_like.default, (like,))
    zeros.meta.update(val=like.meta["val"], mode=Mode(), source=like.meta.get("source"))
    return zeros
