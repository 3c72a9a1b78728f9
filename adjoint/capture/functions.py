"""Capturing custom `autograd.Function`s: the forward and the backward become bodies of one node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations

import torch
from torch import fx
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import CheckpointFunction

from adjoint.errors import CaptureError
from adjoint.failing import call_user_code
from adjoint.graph.boundary import is_raised_in_user_code
from adjoint.graph.leaves import requires_grad
from adjoint.graph.operations import apply_function
from adjoint.open_types import AutogradContext, OpArguments, OpKeywords, UserFunction
from adjoint.source import user_line
from adjoint.torch_private.autograd import applied
from adjoint.torch_private.custom_functions import (
    MAX_NESTED_BACKWARDS,
    is_once_differentiable,
    was_once_differentiable,
)
from adjoint.torch_private.dynamo import differentiable_backward
from adjoint.torch_private.fake import storage_key
from adjoint.torch_private.functorch import functorch_is_active
from adjoint.torch_private.patches import is_of_custom_op, materializes_grads
from adjoint.trace.emission import as_under, current_mode
from adjoint.trace.interpretation import Interpreter
from adjoint.trace.subgraph import Body, match_lifted, opaque
from adjoint.trace.tracer import Tracer

# With at most this many results, a backward is captured for each pattern of missing cotangents.
_MAX_RESULTS_FOR_PATTERNS = 4

# The function by which torch implements backward hooks of modules.
_MODULE_HOOK_FUNCTION = "BackwardHookFunction"


def apply(
    tracer: Tracer,
    original: Callable[..., object],
    function: type,
    args: OpArguments,
    kwargs: OpKeywords,
) -> object:
    """Apply `function` as eager does, and capture its forward and its backward as bodies.

    The forward runs inside torch's own `apply`, so that its results have the autograd node of this
    function.  After `ctx.set_materialize_grads(False)` there is a backward for each pattern of
    missing cotangents.
    """
    if function is CheckpointFunction:
        return _checkpointed(tracer, *args, **kwargs)
    if tracer.is_paused or function.__module__ == CheckpointFunction.__module__:
        # Checkpoint's own helper functions have no derivative.
        return call_user_code(original, *args, **kwargs)
    if functorch_is_active():
        # A level of `torch.func` in the program applies it again, outside of the level.
        return call_user_code(original, *args, **kwargs)
    if is_of_custom_op(function):
        # The op itself becomes the node, and has the derivative.
        return call_user_code(original, *args, **kwargs)
    if not (torch.is_grad_enabled() and any(requires_grad(arg) for arg in args)):
        return call_user_code(original, *args, **kwargs)
    if function.__name__ == _MODULE_HOOK_FUNCTION:
        raise CaptureError(
            "a backward hook of a module",
            "it acts when autograd runs, on nodes that a graph does not have",
            "use a hook on a tensor, or torch.compile(..., backend='adjoint')",
            tracer.emitter.source(),
        )
    body = Body(tracer)
    result = body.run(partial(original, *args, **kwargs), ())
    results = list(result) if isinstance(result, tuple) else [result]
    tensors = [each for each in results if isinstance(each, torch.Tensor)]
    context = next((each.grad_fn for each in tensors if each.grad_fn is not None), None)
    if (
        body.written()
        or context is None
        or type(context).__name__ != function.__name__ + "Backward"
    ):
        raise CaptureError(
            f"the custom function {function.__name__}",
            "it writes to its arguments, or returns one of them",
            "return a new tensor from its forward",
            tracer.emitter.source(),
        )
    fixed = tuple(i for i, each in enumerate(tensors) if not each.requires_grad)
    places = [place for place, each in enumerate(results) if isinstance(each, torch.Tensor)]

    def pull_back(given: tuple[int, ...], *cotangents: torch.Tensor) -> dict[int, torch.Tensor]:
        by_place = dict(zip((places[index] for index in given), cotangents, strict=True))
        each = [by_place.get(place) for place in range(len(results))]
        gradients = call_user_code(function.backward, context, *each)  # type: ignore[attr-defined]
        found = gradients if isinstance(gradients, tuple) else (gradients,)
        _check_count(tracer, function, args, found)
        return _by_operand(args, found)

    is_nested = tracer.reversing.count(function) == MAX_NESTED_BACKWARDS
    patterns = [] if is_nested else _patterns(context, tensors)
    reverses: list[tuple[tuple[int, ...] | None, Body, dict[int, torch.Tensor]]] = []
    failures: list[Exception] = []
    for pattern in patterns:
        given = tuple(range(len(tensors))) if pattern is None else pattern
        with tracer.paused(), torch.enable_grad():
            # Cotangents require grad, so that functions applied to them are captured with
            # derivatives.
            anything = torch.empty((), device=tensors[0].device, requires_grad=True)
            cotangents = opaque([tensors[index] for index in given], [anything], "a cotangent")
        reverse = Body(tracer, body.scope)
        reverse.entry = body.entry
        tracer.reversing.append(function)
        try:
            with torch.enable_grad():
                gradients = reverse.run(partial(pull_back, given), cotangents)
                reverse.read(gradients)
        except Exception as error:
            # A backward that fails for a pattern fails only when that pattern occurs, in eager and
            # here.
            if pattern is patterns[0] and not is_raised_in_user_code(error):
                raise
            failures.append(error)
            continue
        finally:
            tracer.reversing.pop()
        reverses.append((pattern, reverse, gradients))
    if failures and not any(pattern for pattern, _, _ in reverses):
        raise failures[0]
    # What a body lifts is known once its results have been read.
    saved = match_lifted([each for _, each, _ in reverses], [each for _, _, each in reverses])
    body.read((tensors, saved))
    # An argument that only the backward uses (a straight-through estimator) is an operand too.
    known = set().union(*(gradients for _, _, gradients in reverses))
    body.read([arg for arg in args if id(arg) in known or (is_nested and requires_grad(arg))])
    operands = list(body.scope.lifted)
    backwards = [
        (pattern, reverse.close([gradients.get(id(operand)) for operand in operands]))
        for pattern, reverse, gradients in reverses
    ]
    forward = body.close((tensors, saved))
    emitter = tracer.emitter
    node = emitter.call(
        apply_function,
        (
            emitter.attribute("forward", forward),
            tuple((given, emitter.attribute("backward", each)) for given, each in backwards),
            fixed,
            is_once_differentiable(function.backward),  # type: ignore[attr-defined]
            *tracer.nodes(operands),
        ),
        value=tuple(tensors),
    )
    tracer.register(tuple(tensors), node)
    _note_views(tracer, tensors, operands)
    return result


def _note_views(
    tracer: Tracer, results: Sequence[torch.Tensor], operands: Sequence[object]
) -> None:
    """Note which results of a custom function are views of operands, or of other results."""
    owners = {
        storage_key(each): tracer.alias(each).storage
        for each in operands
        if isinstance(each, torch.Tensor)
    }
    owners.pop(None, None)
    for result in results:
        storage, memory = tracer.alias(result).storage, storage_key(result)
        owner = storage if memory is None else owners.setdefault(memory, storage)
        if owner is not storage:
            storage.lent_by = (owner, owner.writes)


def apply_custom_op(run: Callable[[], object]) -> object:
    """Run a custom op below autograd, with its node marked with the mode of the call."""
    with as_under(current_mode()):
        return call_user_code(run)


def _patterns(context: object, results: Sequence[torch.Tensor]) -> list[tuple[int, ...] | None]:
    """The patterns of present cotangents to capture a backward for, the full one first.

    None stands for all, with missing ones materialized as zeros.  For many results only the full
    pattern is captured, and the graph raises when it meets another.
    """
    if materializes_grads(context):
        return [None]
    differentiable = [index for index, each in enumerate(results) if each.requires_grad]
    fewest = 0 if len(differentiable) <= _MAX_RESULTS_FOR_PATTERNS else len(differentiable)
    counts = range(len(differentiable), fewest - 1, -1)
    return [choice for count in counts for choice in combinations(differentiable, count)]


def apply_graphs(
    tracer: Tracer,
    forward: fx.GraphModule,
    backward: fx.GraphModule,
    *operands: object,
    **marks: Sequence[int],
) -> object:
    """Apply a custom function that Dynamo has traced into two graphs.

    Dynamo's backward takes a cotangent for each result, and does not tell whether the function
    called `ctx.set_materialize_grads(False)`: missing cotangents are zeros.  What the forward
    writes to (`ctx.mark_dirty`) and returns is a copy, which is then written to the operand: so the
    node has no effects, and autograd has the history of eager.
    """
    saved: list[object] = []
    dirty = _dirty_operands(forward, marks.get("dirty_idx", ()))

    def run_forward(ctx: AutogradContext, *args: object) -> object:
        own = [_copy(arg) if place in dirty.values() else arg for place, arg in enumerate(args)]
        results, saved[:] = Interpreter(forward, tracer).run(*own)
        fixed = marks.get("non_differentiable_idx", ())
        ctx.mark_non_differentiable(*(results[index] for index in fixed))
        return results

    def run_backward(ctx: object, *cotangents: object) -> object:
        return Interpreter(differentiable_backward(backward), tracer).run(*cotangents, *saved)

    reverse = (
        once_differentiable(run_backward) if was_once_differentiable(backward) else run_backward
    )
    halves = {"forward": staticmethod(run_forward), "backward": staticmethod(reverse)}
    function = type("CustomFunction", (torch.autograd.Function,), halves)
    results = applied(function, *operands)
    if not dirty:
        return results
    written = list(results) if isinstance(results, tuple) else [results]
    for index, place in dirty.items():
        operand = operands[place]
        assert isinstance(operand, torch.Tensor), "only tensors are marked as dirty"
        written[index] = operand.copy_(written[index])
    return tuple(written)


def _dirty_operands(forward: fx.GraphModule, results: Sequence[int]) -> dict[int, int]:
    """By the index of each result that is a dirty operand: the operand's."""
    inputs = forward.graph.find_nodes(op="placeholder")
    match forward.graph.output_node().args[0]:
        case ((*returned,), _):
            return {index: inputs.index(returned[index]) for index in results}
        case other:
            raise AssertionError(f"a forward returns results and saved values, not {other}")


def _copy(value: object) -> object:
    return value.clone() if isinstance(value, torch.Tensor) else value


class PermanentHook:
    """The handle that `register_hook` returns during a capture."""

    def remove(self) -> None:
        """Refuse: the derivative may be computed at any later time."""
        raise CaptureError(
            "the removal of a hook",
            "the graph has what the hook does to the gradient",
            "register the hook outside the compiled function",
            user_line(),
        )


def hook(tracer: Tracer, tensor: torch.Tensor, change: Callable[..., object]) -> PermanentHook:
    """`tensor.register_hook(change)`, as a custom function with this backward.

    The hook sees the sum of all gradients of the tensor, including those of earlier users.
    """
    source = tracer.emitter.source()
    node, alias = tracer.node(tensor), tracer.alias(tensor)
    if node.op == "placeholder" or alias.parent is not None:
        raise CaptureError(
            "a hook on a tensor",
            "the tensor comes from outside, or is a view",
            "register it outside the compiled function, or on a tensor that an op has computed",
            source,
        )
    earlier = list(node.users)

    class Hooked(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, value: torch.Tensor) -> torch.Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: object, cotangent: torch.Tensor) -> object:
            changed = call_user_code(change, cotangent)
            if changed is None:
                raise CaptureError(
                    "a hook that returns nothing",
                    "what it does is outside the graph, when the derivative runs",
                    "return the new gradient, or register it outside the compiled function",
                    source,
                )
            return changed

    with torch.enable_grad():
        hooked = tracer.node(applied(Hooked, tensor))
    application = hooked.all_input_nodes[0]
    if earlier:
        forward, backward, *operands = application.all_input_nodes
        if operands != [node]:
            raise CaptureError(
                "a hook on a tensor that was used before",
                "the hook uses tensors that may have been computed later",
                "register the hook right after the tensor was computed",
                source,
            )
        for each in (hooked, application, backward, forward):
            node.append(each)
        for user in earlier:
            user.replace_input_with(node, hooked)
    alias.node = hooked
    return PermanentHook()


def _check_count(
    tracer: Tracer,
    function: type,
    args: tuple[object, ...],
    gradients: tuple[torch.Tensor | None, ...],
) -> None:
    """Raise where autograd does: there is one gradient for each argument, then only Nones."""
    count = len(gradients)
    while count > len(args) and gradients[count - 1] is None:
        count -= 1
    if count != len(args):
        raise CaptureError(
            f"the custom function {function.__name__}",
            f"its backward returned an incorrect number of gradients (expected {len(args)}, "
            f"got {count})",
            "return a gradient, or None, for each argument of its forward",
            tracer.emitter.source(),
        )


def _by_operand(
    args: tuple[object, ...], gradients: tuple[torch.Tensor | None, ...]
) -> dict[int, torch.Tensor]:
    """By the id of each tensor among `args`: its gradient, summed if it occurs more than once."""
    found: dict[int, torch.Tensor] = {}
    # Autograd ignores Nones after the last argument's.
    for arg, gradient in zip(args, gradients, strict=False):
        if isinstance(arg, torch.Tensor) and gradient is not None:
            found[id(arg)] = found[id(arg)] + gradient if id(arg) in found else gradient
    return found


def _checkpointed(
    tracer: Tracer, run_function: UserFunction, preserve_rng_state: bool, *args: object
) -> object:
    """Trace a reentrant checkpoint, which is a custom function, inline as a checkpoint region."""
    tracer.regions.enter()
    try:
        return call_user_code(run_function, *args)
    finally:
        tracer.regions.leave()
