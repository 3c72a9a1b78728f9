"""Loops of few steps, written out in a graph that is about to run.

    scan(f, c, xs)  =  c_n, stack(y_1, ..., y_n)    where    c_i, y_i = f(c_(i - 1), xs[i])

A loop runs the operators of its body one by one; written out, they are kernels that fuse with what
is around them.  The loop stays where its number of steps is not constant, where it would become a
large graph, and where a step has loops or branches itself.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from adjoint.failing import works_on
from adjoint.graph.copying import copied
from adjoint.graph.leaves import detached
from adjoint.graph.metadata import arguments_of, set_value, tensor_of, value_of
from adjoint.graph.operations import LOOPS
from adjoint.graph.origins import begin, for_part_of
from adjoint.graph.purity import remove_dead_code
from adjoint.graph.subgraphs import body_of, subgraphs_of
from adjoint.optimize.inlining import inlined, put_result
from adjoint.rewrite.refreshing import computing_fakes_of, fake_value, same_values
from adjoint.torch_private import trees
from adjoint.torch_private.operators import OpOverload

aten = torch.ops.aten

MAX_UNROLLED_TRIPS = 64

# Of all steps together.
MAX_UNROLLED_NODES = 1024


def unroll_loops(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A copy with the steps of short loops written out; the graph itself if it has none."""
    if not any(_steps(graph_module, node) for node in graph_module.graph.nodes):
        return graph_module
    made = copied(graph_module)
    with computing_fakes_of(graph_module):
        for node in list(made.graph.nodes):
            if _steps(made, node):
                _unroll(made, node)
    remove_dead_code(made.graph)
    return made


def _steps(graph_module: fx.GraphModule, node: fx.Node) -> int:
    """The number of steps of a loop that is written out; 0 for any other node."""
    loop = LOOPS.get(node.target)
    if loop is None or loop.xs is None or not _takes_tensors(node):
        return 0
    arguments = arguments_of(node)
    count: object = tensor_of(loop.part(arguments, loop.xs)[0]).shape[0]
    if not isinstance(count, int) or count > MAX_UNROLLED_TRIPS:
        return 0
    body = body_of(graph_module, arguments[loop.body])
    is_large = count * len(body.graph.nodes) > MAX_UNROLLED_NODES
    return 0 if is_large or subgraphs_of(body) else count


def _takes_tensors(node: fx.Node) -> bool:
    """Whether all operands are tensors, and results are taken one by one."""
    loop = LOOPS[node.target]
    operands = loop.operands(arguments_of(node))
    are_tensors = all(
        isinstance(each, fx.Node) and isinstance(value_of(each), torch.Tensor) for each in operands
    )
    return are_tensors and all(user.target is operator.getitem for user in node.users)


@works_on("node")
def _unroll(graph_module: fx.GraphModule, node: fx.Node) -> None:
    loop, arguments = LOOPS[node.target], arguments_of(node)
    body = body_of(graph_module, arguments[loop.body])
    carried = list(loop.part(arguments, loop.init))
    xs, others = (loop.part(arguments, place) for place in (loop.xs, loop.others))
    carries, steps = len(carried), []
    for index in range(_steps(graph_module, node)):
        slices = [_call(node, aten.select.int, x, 0, index) for x in xs]
        outputs = inlined(graph_module, node, body, [*carried, *slices, *others], _adapt)
        carried = list(outputs[:carries])
        steps.append(outputs[carries:])
    stacked = [_call(node, aten.stack.default, list(each)) for each in zip(*steps, strict=True)]
    results = [*carried, *stacked]
    items = list(node.users)
    if not all(_fits(item, results[arguments_of(item)[1]]) for item in items):
        return  # What was written out is dead code.
    for item in items:
        put_result(item, results[arguments_of(item)[1]])
    node.graph.erase_node(node)


def _fits(item: fx.Node, result: object) -> bool:
    """Whether a result is laid out in memory as the loop would return it."""
    return isinstance(result, fx.Node) and same_values(value_of(result), value_of(item))


def _call(node: fx.Node, op: OpOverload, *args: object) -> fx.Node:
    """A call before a loop, as a part of it."""
    with node.graph.inserting_before(node):
        made = node.graph.call_function(op, args)  # type: ignore[arg-type]
    made.meta = for_part_of(node, fake_value(made))
    return made


def _adapt(node: fx.Node, copy: fx.Node) -> None:
    """Make the copy of a node of a body a value of its own.

    Each step has other operands than the one that was traced, perhaps with other strides.
    """
    begin(copy)
    pairs = zip(node.all_input_nodes, copy.all_input_nodes, strict=False)
    is_same = node.op == "get_attr" or (
        len(node.all_input_nodes) == len(copy.all_input_nodes)
        and all(same_values(value_of(one), value_of(other)) for one, other in pairs)
    )
    value = trees.map_leaves(detached, value_of(node)) if is_same else fake_value(copy)
    set_value(copy, value)
