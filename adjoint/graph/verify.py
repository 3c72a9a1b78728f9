"""The invariants of a graph.

* Nodes are in topological order and well formed, as torch.fx understands it.
* Nodes are operators: functional ATen or custom ones, higher-order ones, those of
  `adjoint.graph.operations` and `partial_writes`, and arithmetic on numbers.
* A node that computes carries a fake value and the autograd mode it ran under.
* No two nodes carry the same fake tensor: rules and tracers identify a node by its fake tensor.
* Each input and each output has a descriptor, and no two have the same.

The same holds for subgraphs, except that their inputs and outputs are operands of the operator
around them and have no descriptors.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch.fx import Graph, GraphModule, Node

from adjoint.graph.captured import CapturedProgram
from adjoint.graph.derivative import Backward, Derivative, Joint
from adjoint.graph.descriptors import Input, Output
from adjoint.graph.metadata import (
    descriptor_of,
    has_descriptor,
    has_mode,
    has_output_descriptors,
    has_value,
    input_descriptors,
    inputs_of,
    output_descriptors,
    output_node,
    outputs_of,
    source_of,
    value_of,
    value_or_none,
)
from adjoint.graph.show import show_call, show_target
from adjoint.graph.subgraphs import subgraphs_of
from adjoint.torch_private import trees
from adjoint.torch_private.operators import (
    HigherOrderOperator,
    OpOverload,
    implicitly_written_arguments,
    written_arguments,
)

OWN_OPERATIONS = ("adjoint.graph.operations", "adjoint.graph.partial_writes")


class GraphError(Exception):
    """A graph breaks an invariant: a bug in the stage or pass that made it, not in user code."""


def verify(graph_module: GraphModule) -> None:
    """Raise `GraphError` if the graph, or a graph inside it, breaks an invariant."""
    _verify_nodes(graph_module)
    _verify_inputs(graph_module.graph)
    _verify_outputs(graph_module.graph)


def _verify_nodes(graph_module: GraphModule) -> None:
    graph = graph_module.graph
    _verify_order(graph)
    try:
        graph.lint()
    except (RuntimeError, ValueError) as error:
        raise GraphError(f"torch.fx finds the graph malformed: {error}") from error
    _verify_return(graph)
    _verify_values(graph)
    for node in graph.nodes:
        if node.op == "call_function":
            _verify_call(node)
        elif node.op not in ("placeholder", "get_attr", "output"):
            raise _broken(node, f"is a {node.op}; only operators are legal, as call_function")
    for name, subgraph in subgraphs_of(graph_module).items():
        _verify_subgraph(name, subgraph)


def _verify_subgraph(name: str, subgraph: GraphModule) -> None:
    try:
        _verify_nodes(subgraph)
    except GraphError as error:
        raise GraphError(f"in subgraph {name}: {error}") from error


def _verify_order(graph: Graph) -> None:
    # torch.fx checks this too, but its message is the whole graph.
    defined: set[Node] = set()
    for node in graph.nodes:
        for operand in node.all_input_nodes:
            if operand.graph is not graph:
                raise _broken(node, f"uses {operand.name}, which belongs to another graph")
            if operand not in defined:
                raise _broken(node, f"uses {operand.name} before it is defined")
        defined.add(node)


def _verify_values(graph: Graph) -> None:
    owners: dict[int, Node] = {}
    for node in graph.nodes:
        value = value_or_none(node)
        if node.op in ("placeholder", "call_function") and isinstance(value, torch.Tensor):
            owner = owners.setdefault(id(value), node)
            if owner is not node:
                raise _broken(node, f"carries the fake tensor of {owner.name}")


def _verify_return(graph: Graph) -> None:
    try:
        output_node(graph)
    except LookupError as error:
        raise GraphError(str(error)) from error


def _verify_call(node: Node) -> None:
    target = node.target
    if isinstance(target, OpOverload):
        named = {
            p.name: value for p, value in zip(target._schema.arguments, node.args, strict=False)
        }
        if written := written_arguments(target) + implicitly_written_arguments(
            target, {**named, **node.kwargs}
        ):
            raise _broken(node, f"mutates {', '.join(written)}; every operator must be functional")
    elif not isinstance(target, HigherOrderOperator) and _makes_tensors_in_python(node):
        raise _broken(node, f"calls {show_target(target)}, which is not an operator of torch.ops")
    if any(isinstance(leaf, torch.Tensor) for leaf in trees.leaves((node.args, node.kwargs))):
        raise _broken(node, "has a tensor as argument; values of a graph are nodes")
    if not has_value(node):
        raise _broken(node, "carries no fake value")
    if not has_mode(node):
        raise _broken(node, "does not say which autograd mode it ran under")


def _makes_tensors_in_python(node: Node) -> bool:
    """Whether the node calls a Python function that computes tensors; any may compute numbers."""
    if node.target is operator.getitem or not has_value(node):
        return False
    if getattr(node.target, "__module__", None) in OWN_OPERATIONS:
        return False
    return any(isinstance(leaf, torch.Tensor) for leaf in trees.leaves(value_of(node)))


def _verify_inputs(graph: Graph) -> None:
    for node in inputs_of(graph):
        if not has_descriptor(node):
            raise _broken(node, "is an input without a descriptor")
        if not isinstance(descriptor_of(node), Input):
            raise _broken(node, f"is an input, but {descriptor_of(node)!r} describes no input")
    _verify_unique("inputs", input_descriptors(graph))


def _verify_outputs(graph: Graph) -> None:
    node, outputs = output_node(graph), outputs_of(graph)
    if not has_output_descriptors(graph):
        raise _broken(node, f"returns {len(outputs)} values without descriptors")
    descriptors = output_descriptors(graph)
    if len(descriptors) != len(outputs):
        raise _broken(node, f"returns {len(outputs)} values with {len(descriptors)} descriptors")
    for descriptor in descriptors:
        if not isinstance(descriptor, Output):
            raise _broken(node, f"returns values, but {descriptor!r} describes no output")
    _verify_unique("outputs", descriptors)


def _verify_unique(kind: str, descriptors: tuple[Input, ...] | tuple[Output, ...]) -> None:
    seen: set[Input | Output] = set()
    for descriptor in descriptors:
        if descriptor in seen:
            raise GraphError(f"two {kind} have the descriptor {descriptor.describe()!r}")
        seen.add(descriptor)


def _broken(node: Node, what: str) -> GraphError:
    """`node add_ = aten.add_.Tensor(x, 1) mutates self`, and the user's line below it."""
    call = f" = {show_call(node)}" if node.op in ("call_function", "get_attr") else ""
    source = source_of(node)
    place = "" if source is None else f"\n  at {source}"
    return GraphError(f"node {node.name}{call} {what}{place}")


def verify_made(stage: str, made: object) -> None:
    """Verify all graphs that a stage made; an error names the stage."""
    try:
        for graph_module in _graphs_in(made):
            verify(graph_module)
    except GraphError as error:
        raise GraphError(f"after {stage}: {error}") from error


def _graphs_in(made: object) -> Iterator[GraphModule]:
    """The graphs of what a stage made; a plan, kernels and a program have none."""
    match made:
        case GraphModule():
            yield made
        case CapturedProgram() | Joint() | Backward():
            yield made.graph_module
        case Derivative():
            yield made.graph_module
            if made.executed is not None:
                yield made.executed
            if made.first is not None:
                yield made.first.graph_module
        case _:
            pass
