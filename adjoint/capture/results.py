"""The outputs of a captured graph, and the calling convention that makes results of them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import torch
from torch import fx

from adjoint.capture.input_changes import InputChanges
from adjoint.capture.inputs import Inputs
from adjoint.capture.outputs import Outputs
from adjoint.capture.recipes import Recipes
from adjoint.errors import CaptureError
from adjoint.graph.calling import (
    CallingConvention,
    Constant,
    FromCaller,
    FromGraph,
    Write,
)
from adjoint.graph.descriptors import EffectTokenOut, Result
from adjoint.graph.metadata import inputs_of, set_output_descriptors
from adjoint.graph.purity import is_impure
from adjoint.graph.reachability import dependents, reachable
from adjoint.open_types import TorchValue
from adjoint.torch_private import symbols, trees
from adjoint.trace.aliasing import RECORDED, Storage
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
    late = changes.late_storages(writes, metadata_changes)
    _regenerate_views(tracer, outputs.nodes, late)
    view_values = _view_values(tracer, recipes, results, leaves, writes, late)
    view_values += _values_of_input_views(tracer, recipes, writes, late)
    view_values += _values_of_moved_inputs(
        tracer, recipes, changes.moved_early(writes, metadata_changes)
    )
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
    late: set[Storage],
) -> tuple[tuple[int, int], ...]:
    """(output, recipe) for returned views from whose values other results are computed.

    Such a view is replayed outside the graph, and the graph returns its value too, so that the
    other results get their autograd history from the view.
    """
    views = {
        position: leaf
        for position, (_, leaf) in zip(results, leaves, strict=True)
        if recipes.is_plain_view(position)
        and leaf.requires_grad
        and tracer.alias(leaf).storage not in late
    }
    for position, leaf in views.items():
        recipes.derive_from_result(position, leaf)
    values: dict[int, int] = {}
    outputs = set(recipes.outputs.nodes)
    for position, leaf in views.items():
        node = tracer.node(leaf)
        if node.op != "call_function" or node in outputs or not _reaches(node, outputs):
            continue
        # Where random numbers kept their order, the base is still computed from the view.
        base = recipes.base_node(recipes.all[position], writes)
        if base is None or not _reaches(node, {base}):
            values[recipes.outputs.replay_value(node)] = position
    return tuple(values.items())


def _values_of_input_views(
    tracer: Tracer, recipes: Recipes, writes: Sequence[Write], late: set[Storage]
) -> tuple[tuple[int, int], ...]:
    """(output, recipe) for inputs that are views of what was written, and lead to results.

    Autograd gives such a view a new history after the write, of which results are a part.
    """
    values: dict[int, int] = {}
    outputs = set(recipes.outputs.nodes)
    written = {write.to.index: write.value for write in writes if not write.recorded}
    for index, alias in recipes.inputs.aliases.items():
        tensor = recipes.inputs.leaves[index].value
        if alias.storage in late:
            continue
        if not (tensor._is_view() and alias.is_regenerated) or alias.gradient_edge is None:
            continue
        node = tracer.node(tensor)
        if node.op != "call_function" or not _reaches(node, outputs):
            continue
        output = written.get(index)
        if output is None or recipes.outputs.nodes[output] is not node:
            if node in outputs:
                continue
            output = recipes.outputs.replay_value(node)
        values[output] = recipes.add(FromCaller(index))
    return tuple(values.items())


def _values_of_moved_inputs(
    tracer: Tracer, recipes: Recipes, moved: set[int]
) -> tuple[tuple[int, int], ...]:
    """(output, recipe) for inputs that have a new history by view ops, and lead to results."""
    values: dict[int, int] = {}
    outputs = set(recipes.outputs.nodes)
    for index in sorted(moved):
        tensor = recipes.inputs.leaves[index].value
        node = tracer.node(tensor)
        has_history = tracer.alias(tensor).gradient_edge is not None
        is_new = node.op == "call_function" and node not in outputs
        if has_history and is_new and _reaches(node, outputs):
            values[recipes.outputs.replay_value(node)] = recipes.add(FromCaller(index))
    return tuple(values.items())


def _regenerate_views(tracer: Tracer, outputs: Sequence[fx.Node], late: set[Storage]) -> None:
    """Read views that were written to from their bases, where these are results.

    A write through a view computes the base from the view.  What comes after it has its history
    through the base in eager, because autograd regenerates the view.
    """
    for root in list(tracer.scope.aliases.values()):
        written = root.storage.written
        path = list(written[-1].ancestors()) if written else []
        base = root.node
        if root.storage in late or root not in path or base is None or base not in outputs:
            continue
        if root.tensor is None or not root.tensor.requires_grad:
            continue
        shown = base
        for each in reversed(path[: path.index(root)]):
            if each.step is None or each.starts_family or each.stamp != root.storage.writes:
                break
            shown = each.step.emit(tracer.emitter, shown, RECORDED)
            if each.node is not None and each.node not in outputs:
                each.node = shown if _read_from(shown, each.node, base) else each.node


def _read_from(shown: fx.Node, written: fx.Node, base: fx.Node) -> bool:
    """Compute from `shown` what is computed from `written`, except for `base`.

    False if effects or random numbers would change their order.
    """
    before = reachable([base], attrgetter("all_input_nodes"))
    users = [user for user in written.users if user not in before]
    later = dependents(users)
    if any(map(is_impure, later)):
        return False
    place = shown
    for node in [node for node in shown.graph.nodes if node in later]:
        place.append(node)
        place = node
    for user in users:
        user.replace_input_with(written, shown)
    return True


def _reaches(node: fx.Node, targets: set[fx.Node]) -> bool:
    """Whether one of `targets` is computed from `node`."""
    return not targets.isdisjoint(dependents(node.users))


def _attributes(value: object) -> dict[str, object]:
    """The attributes of an object; functions and classes are taken to have none."""
    if callable(value):
        return {}
    return dict(getattr(value, "__dict__", {}))
