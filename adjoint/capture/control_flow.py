"""Capturing higher-order operators (`cond`, `while_loop`, `scan`, `map`, checkpoints) and their
bodies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from adjoint.capture.functions import apply_graphs
from adjoint.errors import CaptureError
from adjoint.failing import call_user_code
from adjoint.graph.metadata import describe_value
from adjoint.open_types import OpKeywords, TorchValue
from adjoint.torch_private import trees
from adjoint.torch_private.batches import is_at_vmap_level, run_below_vmap
from adjoint.torch_private.checkpoint import forward_context, split_arguments
from adjoint.torch_private.functorch import applied_by_level, is_functorch_wrapper
from adjoint.torch_private.operators import HigherOrderOperator, dense_kernel, recorded_loop
from adjoint.torch_private.trees import TreeSpec
from adjoint.trace.interpretation import Interpreter
from adjoint.trace.scope import Liftable
from adjoint.trace.subgraph import Body, match_lifted, opaque
from adjoint.trace.tracer import Tracer

operators = torch.ops.higher_order


def call(
    tracer: Tracer,
    op: HigherOrderOperator,
    args: tuple[object, ...],
    kwargs: OpKeywords,
) -> object:
    """Capture a call of `op`: as a node with bodies, or as the ops that its dense kernel runs."""
    handler = HANDLERS.get(op.name())
    if handler is not None:
        return handler(tracer, *args, **kwargs)
    kernel = dense_kernel(op)
    if kernel is None:
        raise CaptureError(
            f"the higher-order operator {op.name()}",
            "capture knows neither its body nor what it computes",
            "express it with ordinary ops, or keep it outside the compiled function",
            tracer.emitter.source(),
        )
    return kernel(*args, **kwargs)


def _cond(
    tracer: Tracer,
    pred: object,
    true: Callable[..., object],
    false: Callable[..., object],
    operands: Sequence[object],
) -> object:
    """`true(*operands)` or `false(*operands)`; both bodies take the same inputs."""
    if not isinstance(pred, torch.Tensor):
        return _run(tracer, true if pred else false, operands)
    flat, spec = trees.flatten(tuple(operands))
    if any(map(is_at_vmap_level, (pred, *flat))):
        both = [_unflattened(tracer, branch, spec) for branch in (true, false)]
        return _cond_over_batch(tracer, pred, both, flat)
    _refuse_levels(tracer, "cond", [pred, *flat])
    bodies = [Body(tracer), Body(tracer)]
    outputs = [
        trees.flatten(body.run(_unflattened(tracer, branch, spec), flat))
        for body, branch in zip(bodies, (true, false), strict=True)
    ]
    (on_true, tree), (on_false, other_tree) = outputs
    _refuse_levels(tracer, "cond", [*on_true, *on_false])
    _refuse_writes(tracer, "cond", bodies)
    alike = [_kind(each) for each in on_true] == [_kind(each) for each in on_false]
    if tree != other_tree or not alike:
        returned = [describe_value(trees.unflatten(out, spec)) for out, spec in outputs]
        raise CaptureError(
            "cond",
            f"its branches return {returned[0]} and {returned[1]}",
            "return the same number of tensors, with the same shapes and dtypes, from both",
            tracer.emitter.source(),
        )
    lifted = match_lifted(bodies, (on_true, on_false))
    graphs = [body.close(out) for body, out in zip(bodies, (on_true, on_false), strict=True)]
    emitter = tracer.emitter
    branches = [emitter.attribute(n, g) for n, g in zip(("true", "false"), graphs, strict=True)]
    inputs = [*flat, *lifted]
    node_args = (tracer.node(pred), *branches, tuple(tracer.nodes(inputs)))
    return _emit(tracer, operators.cond, node_args, on_true, tree, inputs)


class _Flattened:
    """A function that returns the leaves of what another one returns."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        self._form: TreeSpec | None = None

    def __call__(self, *values: object) -> tuple[object, ...]:
        leaves, self._form = trees.flatten(self._function(*values))
        return tuple(leaves)

    def unflatten(self, leaves: Sequence[object]) -> object:
        """Leaves in the form of what the function returned."""
        assert self._form is not None, "the function was called"
        return trees.unflatten(leaves, self._form)


def _cond_over_batch(
    tracer: Tracer,
    pred: torch.Tensor,
    branches: Sequence[Callable[..., object]],
    flat: Sequence[object],
) -> object:
    """`vmap` of `cond`: a `cond` of batches, or, if `pred` is batched, both branches and a
    `where`."""
    if is_at_vmap_level(pred):
        (on_true, tree), (on_false, other_tree) = (trees.flatten(each(*flat)) for each in branches)
        if tree != other_tree:
            raise CaptureError(
                "cond",
                "its branches return results of different forms",
                "return the same number of tensors from both",
                tracer.emitter.source(),
            )
        chosen = [torch.where(pred, *pair) for pair in zip(on_true, on_false, strict=True)]
        return trees.unflatten(chosen, tree)
    flattened = [_Flattened(each) for each in branches]

    def run(plain: list[object], axes: tuple[int | None, ...]) -> Sequence[object]:
        true, false = (torch.func.vmap(each, axes) for each in flattened)
        results: Sequence[object] = operators.cond(pred, true, false, tuple(plain))
        return results

    return flattened[0].unflatten(run_below_vmap(run, flat))


def _while_loop(
    tracer: Tracer,
    condition: Callable[..., object],
    step: Callable[..., object],
    carried: Sequence[object],
    additional: Sequence[object] = (),
) -> object:
    """Carry values through `step` while `condition` holds; its other results are stacked."""
    _refuse_levels(tracer, "while_loop", [*carried, *additional])
    inside = [
        tracer.unknown_number() if isinstance(each, int) else _carried(tracer, each)
        for each in carried
    ]
    bodies = [Body(tracer), Body(tracer)]
    go_on = bodies[0].run(_unflattened(tracer, condition), [*inside, *additional])
    outputs, tree = trees.flatten(bodies[1].run(_unflattened(tracer, step), [*inside, *additional]))
    _refuse_levels(tracer, "while_loop", [go_on, *outputs])
    _refuse_writes(tracer, "while_loop", bodies)
    lifted = match_lifted(bodies, (go_on, outputs))
    graphs = [bodies[0].close(go_on), bodies[1].close(outputs)]
    emitter = tracer.emitter
    body_nodes = [emitter.attribute(n, g) for n, g in zip(("while", "do"), graphs, strict=True)]
    node_args = (
        *body_nodes,
        tuple(tracer.nodes(carried)),
        tuple(tracer.nodes([*additional, *lifted])),
    )
    inputs = [*carried, *additional, *lifted]
    shown = [
        tracer.unknown_number() if isinstance(each, (int, torch.SymInt)) else each
        for each in outputs[: len(carried)]
    ]
    each_step = outputs[len(carried) :]
    if not each_step:
        return _emit(tracer, operators.while_loop, node_args, shown, tree, inputs)
    shown += _stacked(tracer, each_step, tracer.unknown_number(of_tensor=True))
    return _emit(tracer, recorded_loop, node_args, shown, tree, inputs)


def _scan(
    tracer: Tracer,
    combine: Callable[..., object],
    init: Sequence[object],
    xs: Sequence[torch.Tensor],
    additional_inputs: Sequence[object] = (),
) -> object:
    """Carry `init` through `combine` along the first axis of `xs`; its other results are
    stacked."""
    additional = list(additional_inputs)
    if any(map(is_at_vmap_level, [*init, *xs, *additional])):
        return _scan_over_batch(_unflattened(tracer, combine), init, xs, additional)
    _refuse_levels(tracer, "scan", [*init, *xs, *additional])
    inside = [_carried(tracer, each) for each in init]
    arguments = [*inside, *_first_slices(tracer, xs), *additional]
    graph, outputs, tree, lifted = _step(tracer, "scan", combine, arguments)
    node_args = (
        tracer.emitter.attribute("combine", graph),
        tracer.nodes(init),
        tracer.nodes(xs),
        tuple(tracer.nodes([*additional, *lifted])),
    )
    carry, each_step = outputs[: len(init)], outputs[len(init) :]
    shown = [*carry, *_stacked(tracer, each_step, xs[0].shape[0])]
    inputs = [*init, *xs, *additional, *lifted]
    return _emit(tracer, operators.scan, node_args, shown, tree, inputs)


def _scan_over_batch(
    combine: Callable[..., object],
    init: Sequence[object],
    xs: Sequence[torch.Tensor],
    additional: Sequence[object],
) -> object:
    """`vmap` of `scan`: a `scan` of batches.  All carried values are batched from the first step,
    because any of them may become batched in a later one."""
    flattened = _Flattened(combine)

    def run(plain: list[TorchValue], axes: tuple[int | None, ...]) -> Sequence[object]:
        placed = list(zip(plain, axes, strict=True))
        size = next(each.shape[axis] for each, axis in placed if axis is not None)
        start, end = len(init), len(init) + len(xs)
        carried = [
            each.expand(size, *each.shape) if axis is None else each.movedim(axis, 0)
            for each, axis in placed[:start]
        ]
        # `scan` slices along axis 0, so the batch goes to axis 1.
        sliced = [
            each if axis is None else each.movedim(axis, 1) for each, axis in placed[start:end]
        ]
        of_slices = [None if axis is None else 0 for axis in axes[start:end]]
        step = torch.func.vmap(flattened, (*[0] * start, *of_slices, *axes[end:]))
        results = operators.scan(step, carried, sliced, tuple(plain[end:]))
        return [*results[:start], *(each.movedim(1, 0) for each in results[start:])]

    return flattened.unflatten(run_below_vmap(run, [*init, *xs, *additional]))


def _map(
    tracer: Tracer,
    function: Callable[..., object],
    xs: Sequence[torch.Tensor],
    additional: Sequence[object] = (),
) -> object:
    """Apply `function` to each slice along the first axis of `xs`."""
    xs = list(xs)
    if any(map(is_at_vmap_level, [*xs, *additional])):
        return _scan_over_batch(_unflattened(tracer, function), [], xs, additional)
    _refuse_levels(tracer, "map", [*xs, *additional])
    arguments = [*_first_slices(tracer, xs), *additional]
    graph, outputs, tree, lifted = _step(tracer, "map", function, arguments)
    node_args = (
        tracer.emitter.attribute("each", graph),
        tracer.nodes(xs),
        tracer.nodes([*additional, *lifted]),
    )
    shown = _stacked(tracer, outputs, xs[0].shape[0])
    return _emit(tracer, operators.map_impl, node_args, shown, tree, [*xs, *additional, *lifted])


def _step(
    tracer: Tracer, name: str, function: Callable[..., object], arguments: list[object]
) -> tuple[torch.fx.GraphModule, list[TorchValue], trees.TreeSpec, list[Liftable]]:
    """The graph of one step of a loop, its results, their pytree spec, and what it lifts."""
    body = Body(tracer)
    outputs, tree = trees.flatten(body.run(_unflattened(tracer, function), arguments))
    _refuse_levels(tracer, name, outputs)
    _refuse_writes(tracer, name, [body])
    lifted = match_lifted([body], [outputs])
    return body.close(outputs), outputs, tree, lifted


def _checkpoint(
    tracer: Tracer, body: torch.fx.GraphModule, *args: object, **kwargs: object
) -> object:
    """Trace a checkpointed function inline, with its nodes marked as a checkpoint region."""
    _, own = split_arguments(kwargs)
    tracer.regions.enter()
    try:
        with forward_context(body):
            return _run(tracer, body, args, own)
    finally:
        tracer.regions.leave()


def _inline(tracer: Tracer, body: Callable[..., object], *args: object, **kwargs: object) -> object:
    """Trace a body inline."""
    return _run(tracer, body, args, kwargs)


def _inline_named(
    tracer: Tracer, body: Callable[..., object], name: object, *args: object
) -> object:
    return _run(tracer, body, args)


def _by_level(tracer: Tracer, function: type, *args: object, **kwargs: object) -> object:
    """A custom autograd function inside levels of `torch.func`; below them, it is captured."""
    return call_user_code(applied_by_level, function, *args, **kwargs)


HANDLERS: dict[str, Callable[..., object]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "recorded_loop": _while_loop,
    "scan": _scan,
    "map_impl": _map,
    "tag_activation_checkpoint": _checkpoint,
    "wrap_activation_checkpoint": _checkpoint,
    "autograd_function_apply": apply_graphs,
    "custom_function_call": _by_level,
    "wrap": _inline,
    "invoke_subgraph": _inline_named,
}


def _emit(
    tracer: Tracer,
    op: HigherOrderOperator,
    args: tuple[object, ...],
    shown: Sequence[object],
    tree: trees.TreeSpec,
    inputs: Sequence[object],
) -> object:
    """Append a call of `op`, whose results are like `shown` and depend on `inputs`."""
    with tracer.paused():
        results = opaque(shown, inputs, op.name())
    node = tracer.emitter.call(op, args, value=tuple(results))
    tracer.register(tuple(results), node)
    return trees.unflatten(results, tree)


def _run(
    tracer: Tracer,
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: dict[str, object] | None = None,
) -> object:
    """Trace a body inline; nodes of a graph keep their source lines."""
    if isinstance(function, torch.fx.GraphModule) and not kwargs:
        return Interpreter(function, tracer).run(*args)
    return call_user_code(function, *args, **(kwargs or {}))


def _unflattened(
    tracer: Tracer, function: Callable[..., object], spec: trees.TreeSpec | None = None
) -> Callable[..., object]:
    def run(*flat: object) -> object:
        return _run(tracer, function, flat if spec is None else trees.unflatten(list(flat), spec))

    return run


def _refuse_writes(tracer: Tracer, name: str, bodies: Sequence[Body]) -> None:
    if any(body.written() for body in bodies):
        raise CaptureError(
            f"an in-place write inside {name}",
            "it changes a tensor from outside, and the body may run any number of times",
            "clone the tensor in the body, and return the new value",
            tracer.emitter.source(),
        )


def _refuse_levels(tracer: Tracer, name: str, values: Sequence[object]) -> None:
    """Refuse operands of a level of `torch.func`, and results of one: the body closed over such a
    tensor."""
    if any(map(is_functorch_wrapper, values)):
        raise CaptureError(
            f"{name} inside torch.func.grad, vmap, or another of its transforms",
            "its bodies are graphs, and tensors of that transform cannot be in a graph",
            "use adjoint.grad, vjp, jvp or jacrev there; instead of vmap, let bodies take batches",
            tracer.emitter.source(),
        )


def _carried(tracer: Tracer, first: object) -> object:
    """The operand of the body for the carried value `first`, which may require grad in later
    steps."""
    if not isinstance(first, torch.Tensor) or first.requires_grad:
        return first
    if not (first.is_floating_point() or first.is_complex()) or not torch.is_grad_enabled():
        return first
    with tracer.paused():
        return first.detach().requires_grad_().clone()


def _first_slices(tracer: Tracer, xs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    with tracer.paused():
        return [x.select(0, 0).clone() for x in xs]


def _stacked(
    tracer: Tracer, slices: Sequence[torch.Tensor], count: int | torch.SymInt
) -> list[torch.Tensor]:
    with tracer.untraced():
        return [each.new_empty((count, *each.shape)) for each in slices]


def _kind(value: object) -> tuple[object, ...]:
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape))
    return (type(value),)
