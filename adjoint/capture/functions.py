"""Custom `autograd.Function`s: both halves are captured, and the derivative stays the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from adjoint.capture.emission import as_under, current_mode
from adjoint.capture.subgraph import Body
from adjoint.capture.tracer import Tracer
from adjoint.errors import CaptureError
from adjoint.graph.operations import apply_function


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
    autograd knows to come from this function.
    """
    if function is _reentrant_checkpoint():
        return _checkpointed(tracer, *args, **kwargs)
    if tracer.is_paused:
        return original(*args, **kwargs)
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
    with tracer.quietly():
        cotangents = [torch.empty_like(each) for each in tensors]
    with torch.enable_grad():
        reverse.entry = body.entry
        gradients = reverse.run(lambda *c: function.backward(context, *c), cotangents)  # type: ignore[attr-defined]
    gradients = list(gradients) if isinstance(gradients, tuple) else [gradients]
    # What a body takes from outside is known once its results have been read.
    reverse.read(gradients)
    saved = list(reverse.scope.lifted)
    body.read((tensors, saved))
    operands = list(body.scope.lifted)
    by_argument = {
        id(arg): gradient for arg, gradient in zip(args, gradients, strict=False) if _is(arg)
    }
    backward = reverse.close([by_argument.get(id(operand)) for operand in operands])
    forward = body.close((tensors, saved))
    emitter = tracer.emitter
    fixed = tuple(i for i, each in enumerate(tensors) if not each.requires_grad)
    node = emitter.call(
        apply_function,
        (
            emitter.attribute("forward", forward),
            emitter.attribute("backward", backward),
            fixed,
            *tracer.nodes(operands),
        ),
        value=tuple(tensors),
    )
    tracer.register(tuple(tensors), node)
    return result


def _reentrant_checkpoint() -> type:
    from torch.utils.checkpoint import CheckpointFunction

    return CheckpointFunction


def _checkpointed(tracer: Tracer, run_function: Any, preserve_rng_state: bool, *args: Any) -> Any:
    """The old form of checkpoint is a custom function; as a mark it needs no derivative."""
    tracer.regions.enter()
    try:
        return run_function(*args)
    finally:
        tracer.regions.leave()


def _needs_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _is(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
