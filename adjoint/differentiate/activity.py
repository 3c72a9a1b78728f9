"""Activity analysis: which values of a graph a derivative flows through."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence

import torch
from torch import fx

from adjoint.graph.leaves import is_floating
from adjoint.graph.metadata import (
    arguments_of,
    has_value,
    inputs_of,
    mode_of,
    outputs_of,
    value_of,
)
from adjoint.graph.operations import (
    LOOPS,
    build_subclass,
    has_bodies,
    take_attribute,
    with_backward,
    with_data,
)
from adjoint.graph.subgraphs import body_of
from adjoint.rules.outputs import differentiable_outputs
from adjoint.rules.registry import COMPOSITIONS, NON_DIFFERENTIABLE, VJPS
from adjoint.torch_private import trees
from adjoint.torch_private.fake import FakeTensorMode, fake_mode_of
from adjoint.torch_private.operators import OpOverload, depends_on_data

_GRADIENT_CUTS = {torch.ops.aten.detach.default, build_subclass, take_attribute}


def active_nodes(graph_module: fx.GraphModule, wrt: Collection[int]) -> set[fx.Node]:
    """The nodes that depend differentiably on the inputs `wrt`, and these."""
    active = _differentiable_inputs(graph_module, wrt)
    fake_mode = fake_mode_of(graph_module)
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and _is_active(node, active, fake_mode):
            active.add(node)
    return active


def outputs_with_derivative(graph_module: fx.GraphModule, wrt: Sequence[int]) -> list[int]:
    """Positions of the outputs that depend on the inputs `wrt` by differentiable steps."""
    active = active_nodes(graph_module, wrt)
    return [i for i, n in enumerate(outputs_of(graph_module.graph)) if n in active]


def outputs_requiring_grad(graph_module: fx.GraphModule, wrt: Sequence[int]) -> list[int]:
    """Positions of the outputs that require grad, where views were made under `no_grad`.

    Without such views these are the outputs that have a derivative, and none is listed here.
    """
    if not any(is_unrecorded_view(node) for node in graph_module.graph.nodes):
        return []
    requiring = nodes_requiring_grad(graph_module, wrt)
    return [i for i, n in enumerate(outputs_of(graph_module.graph)) if n in requiring]


def active_results(body: fx.GraphModule, places: Collection[int]) -> list[bool]:
    """For each result of `body`, whether it depends differentiably on the inputs `places`."""
    active = active_nodes(body, places)
    return [node in active for node in outputs_of(body.graph)]


def active_loop_results(
    body: fx.GraphModule, carries: int, places: Collection[int]
) -> tuple[set[int], list[bool]]:
    """The inputs and results of a loop's body that are active if the inputs `places` are.

    The first `carries` results of a step are the first inputs of the next, so this is a fixpoint.
    """
    reached = set(places)
    while True:
        results = active_results(body, reached)
        more = {place for place in range(carries) if results[place]} - reached
        if not more:
            return reached, results
        reached |= more


def nodes_requiring_grad(graph_module: fx.GraphModule, wrt: Collection[int]) -> set[fx.Node]:
    """The nodes that require grad in eager torch if the inputs `wrt` do.

    A view made under `no_grad` requires grad if its base does, and so does what is computed from
    it, though no derivative flows through the view.
    """
    requiring = _differentiable_inputs(graph_module, wrt)
    fake_mode = fake_mode_of(graph_module)
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and (
            (is_unrecorded_view(node) and node.args[0] in requiring)
            or _is_active(node, requiring, fake_mode)
        ):
            requiring.add(node)
    return requiring


def _differentiable_inputs(graph_module: fx.GraphModule, wrt: Collection[int]) -> set[fx.Node]:
    inputs = inputs_of(graph_module.graph)
    chosen = (inputs[place] for place in wrt)
    return {node for node in chosen if has_value(node) and is_differentiable(value_of(node))}


def is_unrecorded_view(node: fx.Node) -> bool:
    """Whether the node is a view through which no derivative flows because of its autograd mode."""
    view = isinstance(node.target, OpOverload) and node.target.is_view
    return view and node.target not in _GRADIENT_CUTS and not _is_recorded(node)


def _is_recorded(node: fx.Node) -> bool:
    return mode_of(node).grad_enabled and not mode_of(node).inference


def _is_active(node: fx.Node, active: set[fx.Node], fake_mode: FakeTensorMode) -> bool:
    if node.target in _GRADIENT_CUTS or not (has_value(node) and is_differentiable(value_of(node))):
        return False
    if node.target is operator.getitem:
        several, path = getitem_path(node)
        if several.target is with_backward and path[0] in several.args[1]:  # type: ignore[operator]
            return False
        if several not in active:
            return False
        is_active: object = True
        if has_bodies(several):
            is_active = _active_results_of_bodies(several, active)
        elif isinstance(several.target, OpOverload):
            is_active = _active_results_of_op(several, active, fake_mode)
        for index in path:
            is_active = is_active[index] if isinstance(is_active, Sequence) else is_active
        return any(trees.leaves(is_active))
    if not _is_recorded(node):
        return False
    if node.target is with_data:
        return node.args[0] in active
    if not any(argument in active for argument in node.all_input_nodes):
        return False
    if _is_differentiable_op(node.target):
        return True
    # A step function has a derivative, zero; ops like `zeros_like` and `histc` have none.
    return any(trees.leaves(_active_results_of_op(node, active, fake_mode)))


def _is_differentiable_op(target: object) -> bool:
    """Whether it is known that a call has a derivative; otherwise torch is asked."""
    if target in NON_DIFFERENTIABLE:
        return False
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return True
    # Asked about these, torch would make up a size that only data can tell.
    return target in VJPS or target in COMPOSITIONS or depends_on_data(target)


def getitem_path(node: fx.Node) -> tuple[fx.Node, tuple[int, ...]]:
    """The call that `node` selects a result of, and the indices of the chain of `getitem`s."""
    path: tuple[int, ...] = ()
    while node.target is operator.getitem:
        node, index = arguments_of(node)
        path = (index, *path)
    return node, path


def _active_results_of_op(
    node: fx.Node, active: set[fx.Node], fake_mode: FakeTensorMode
) -> tuple[object, ...]:
    """For each result of a call, whether a derivative flows to it from the active arguments."""
    if not isinstance(node.target, OpOverload):
        return (True,)
    args, kwargs = fx.map_arg((node.args, node.kwargs), value_of)
    values = [value_of(n) for n in node.all_input_nodes if n in active]
    out = value_of(node)
    return differentiable_outputs(node.target, args, kwargs, out, values, fake_mode)


def _active_results_of_bodies(node: fx.Node, active: set[fx.Node]) -> list[bool]:
    """For each result of a branch or loop, whether a derivative flows to it."""
    module = node.graph.owning_module
    assert module is not None
    args = arguments_of(node)
    if node.target is torch.ops.higher_order.cond:
        _, *branches, operands = args
        places = [place for place, each in enumerate(operands) if each in active]
        found = [active_results(body_of(module, each), places) for each in branches]
        return [any(each) for each in zip(*found, strict=True)]
    loop = LOOPS[node.target]
    places = [place for place, each in enumerate(loop.operands(args)) if each in active]
    return active_loop_results(body_of(module, args[loop.body]), loop.carries(args), places)[1]


def is_differentiable(value: object) -> bool:
    """Whether a value is a floating-point or complex tensor, or a sequence that contains one."""
    if isinstance(value, (tuple, list)):
        return any(map(is_differentiable, value))
    return is_floating(value)
