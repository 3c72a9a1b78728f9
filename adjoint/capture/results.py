"""The outputs of a captured graph, and the calling convention that makes results of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from adjoint.capture.input_changes import InputChanges
from adjoint.capture.inputs import Inputs
from adjoint.capture.outputs import Outputs
from adjoint.capture.recipes import Recipes
from adjoint.errors import CaptureError
from adjoint.graph.calling import CallingConvention, Constant, FromCaller, FromGraph, Write
from adjoint.graph.descriptors import EffectTokenOut, Result
from adjoint.graph.metadata import inputs_of, set_output_descriptors
from adjoint.graph.reachability import dependents
from adjoint.open_types import TorchValue
from adjoint.torch_private import symbols, trees
from adjoint.trace.tracer import Tracer


def return_results(
    tracer: Tracer, inputs: Inputs, leaves: Sequence[tuple[str, object]]
) -> CallingConvention:
    """Let the traced graph return what makes `leaves`, the results of the program with their paths.

    Returns the calling convention of the graph.
    """
    outputs = Outputs()
    recipes = Recipes(tracer, inputs, outputs)
    changes = InputChanges(tracer, inputs, recipes)
    writes = changes.writes()
    results = tuple(
        _result(tracer, recipes, leaf, Result(index, f"result{path}"))
        for index, (path, leaf) in enumerate(leaves)
    )
    metadata_changes = changes.metadata()
    # Views are replayed while the graph is made known to autograd: after writes to inputs, but
    # before anything else that changes their memory.
    are_early = all(each.recorded and isinstance(each.to, FromCaller) for each in writes)
    view_values: tuple[tuple[int, int], ...] = ()
    if are_early and not metadata_changes:
        view_values = _view_values(tracer, recipes, results, leaves, writes)
    if tracer.scope.token is not None:
        assert tracer.scope.entry_token is not None
        inputs.describe_token(tracer.scope.entry_token)
        outputs.add(tracer.scope.token, EffectTokenOut(0))
    graph = tracer.emitter.graph
    convention = CallingConvention(
        sources=tuple(inputs.sources[node] for node in inputs_of(graph)),
        metadata_changes=metadata_changes,
        writes=writes,
        requires_grad_changes=changes.requires_grad(),
        versions=changes.versions(),
        recipes=tuple(recipes.all),
        results=results,
        placements=changes.placements(),
        view_values=view_values,
    )
    graph.output(tuple(outputs.nodes))
    set_output_descriptors(graph, outputs.described())
    return convention


def _result(tracer: Tracer, recipes: Recipes, leaf: object, descriptor: Result) -> int:
    """The position of the recipe for one leaf of what the program returned."""
    if isinstance(leaf, torch.Tensor):
        return recipes.for_result(leaf, descriptor)
    if isinstance(leaf, symbols.SYMBOLIC):
        node = tracer.emitter.number(leaf)
        if isinstance(node, fx.Node):
            return recipes.add(FromGraph(recipes.outputs.add(node, descriptor)))
        return recipes.add(Constant(node))
    if any(isinstance(each, torch.Tensor) for each in trees.leaves(_attributes(leaf))):
        raise CaptureError(
            f"a result of type {type(leaf).__name__}",
            "it holds tensors, and capture does not know how to take it apart",
            "register it with torch.utils._pytree.register_pytree_node, or return the tensors",
            tracer.emitter.source(),
        )
    return recipes.add(Constant(leaf))


def _view_values(
    tracer: Tracer,
    recipes: Recipes,
    results: Sequence[int],
    leaves: Sequence[tuple[str, TorchValue]],
    writes: Sequence[Write],
) -> tuple[tuple[int, int], ...]:
    """(output, recipe) for returned views from whose values other results are computed.

    Such a view is replayed outside the graph, and the graph returns its value too, so that the
    other results get their autograd history from the view.
    """
    views = {
        position: leaf
        for position, (_, leaf) in zip(results, leaves, strict=True)
        if recipes.is_plain_view(position) and leaf.requires_grad
    }
    for position, leaf in views.items():
        recipes.derive_from_result(position, leaf)
    values: dict[int, int] = {}
    outputs = set(recipes.outputs.nodes)
    for position, leaf in views.items():
        node = tracer.node(leaf)
        if node.op != "call_function" or node in outputs or not _reaches(node, outputs):
            continue
        # After a write through the view, its base is computed from the view, not the reverse.
        base = recipes.base_node(recipes.all[position], writes)
        if base is None or not _reaches(node, {base}):
            values[recipes.outputs.replay_value(node)] = position
    return tuple(values.items())


def _reaches(node: fx.Node, targets: set[fx.Node]) -> bool:
    """Whether one of `targets` is computed from `node`."""
    return not targets.isdisjoint(dependents(node.users))


def _attributes(value: object) -> dict[str, object]:
    """The attributes of an object; functions and classes are taken to have none."""
    if callable(value):
        return {}
    return dict(getattr(value, "__dict__", {}))
