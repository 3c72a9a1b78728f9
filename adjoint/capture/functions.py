"""Custom `autograd.Function`s: both halves are captured, and the derivative stays the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import CheckpointFunction

from adjoint.errors import CaptureError
from adjoint.graph.operations import apply_function
from adjoint.torch_private.dynamo import differentiable_backward
from adjoint.trace.emission import as_under, current_mode
from adjoint.trace.interpretation import Interpreter
from adjoint.trace.subgraph import Body, opaque
from adjoint.trace.tracer import Tracer


def _nothing(ctx: Any) -> None: ...


# A backward that is wrapped so may not be differentiated itself.
_ONCE_DIFFERENTIABLE: Any = once_differentiable(_nothing)

# How torch.library gives a custom op its derivative: the op itself is the node, and has it.
_OF_CUSTOM_OPS = "GeneratedBackwardFor_"


def apply(
    tracer: Tracer,
    original: Callable[..., Any],
    function: type,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Apply `function` as eager does, its forward and its backward captured as bodies.

    The forward runs inside torch's own `apply`, so that the program goes on with tensors which
    autograd knows to come from this function.  The captured backward is given a cotangent of zeros
    for a result that has none, also after `ctx.set_materialize_grads(False)`.
    """
    if function is CheckpointFunction:
        return _checkpointed(tracer, *args, **kwargs)
    if tracer.is_paused or function.__module__ == CheckpointFunction.__module__:
        return original(*args, **kwargs)  # Checkpoint has functions of its own, without derivative.
    if function.__name__.startswith(_OF_CUSTOM_OPS):
        with as_under(current_mode()):
            return original(*args, **kwargs)
    if not (torch.is_grad_enabled() and any(_needs_grad(arg) for arg in args)):
        return original(*args, **kwargs)
    body = Body(tracer)
    result = body.run(lambda: original(*args, **kwargs), ())
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
    reverse = Body(tracer, body.scope)
    with tracer.paused(), torch.enable_grad():
        # They may depend on anything, and functions applied to them keep their derivatives then.
        anything = torch.empty((), device=tensors[0].device, requires_grad=True)
        cotangents = opaque(tensors, [anything], "a cotangent")

    def pull_back(*cotangents: torch.Tensor) -> dict[int, torch.Tensor]:
        gradients = function.backward(context, *cotangents)  # type: ignore[attr-defined]
        return _by_operand(args, gradients if isinstance(gradients, tuple) else (gradients,))

    with torch.enable_grad():
        reverse.entry = body.entry
        gradients = reverse.run(pull_back, cotangents)
    # What a body takes from outside is known once its results have been read.
    reverse.read(gradients)
    saved = list(reverse.scope.lifted)
    body.read((tensors, saved))
    # An argument that only the backward knows of (a straight-through estimator) is an operand too.
    body.read([arg for arg in args if id(arg) in gradients])
    operands = list(body.scope.lifted)
    backward = reverse.close([gradients.get(id(operand)) for operand in operands])
    forward = body.close((tensors, saved))
    emitter = tracer.emitter
    fixed = tuple(i for i, each in enumerate(tensors) if not each.requires_grad)
    node = emitter.call(
        apply_function,
        (
            emitter.attribute("forward", forward),
            emitter.attribute("backward", backward),
            fixed,
            _is_once_differentiable(function),
            *tracer.nodes(operands),
        ),
        value=tuple(tensors),
    )
    tracer.register(tuple(tensors), node)
    return result


def apply_graphs(
    tracer: Tracer, forward: fx.GraphModule, backward: fx.GraphModule, *operands: Any, **marks: Any
) -> Any:
    """Apply a custom function that Dynamo has taken apart."""
    saved: list[Any] = []

    def run_forward(ctx: Any, *args: Any) -> Any:
        results, saved[:] = Interpreter(forward, tracer).run(*args)
        fixed = marks.get("non_differentiable_idx", ())
        ctx.mark_non_differentiable(*(results[index] for index in fixed))
        ctx.mark_dirty(*(results[index] for index in marks.get("dirty_idx", ())))
        return results

    def run_backward(ctx: Any, *cotangents: Any) -> Any:
        return Interpreter(differentiable_backward(backward), tracer).run(*cotangents, *saved)

    halves = {"forward": staticmethod(run_forward), "backward": staticmethod(run_backward)}
    function: Any = type("CustomFunction", (torch.autograd.Function,), halves)
    return function.apply(*operands)


def _by_operand(
    args: tuple[Any, ...], gradients: tuple[torch.Tensor | None, ...]
) -> dict[int, torch.Tensor]:
    """The gradient of each tensor among `args`; of one that is there twice, the sum of both."""
    found: dict[int, torch.Tensor] = {}
    for arg, gradient in zip(args, gradients, strict=False):
        if isinstance(arg, torch.Tensor) and gradient is not None:
            found[id(arg)] = found[id(arg)] + gradient if id(arg) in found else gradient
    return found


def _is_once_differentiable(function: type) -> bool:
    backward = function.backward  # type: ignore[attr-defined]
    return getattr(backward, "__code__", None) is _ONCE_DIFFERENTIABLE.__code__


def _checkpointed(tracer: Tracer, run_function: Any, preserve_rng_state: bool, *args: Any) -> Any:
    """The old form of checkpoint is a custom function; as a mark it needs no derivative."""
    tracer.regions.enter()
    try:
        return run_function(*args)
    finally:
        tracer.regions.leave()


def _needs_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
