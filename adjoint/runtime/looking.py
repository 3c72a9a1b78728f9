"""What a library op returns is looked at, the first time that a binding runs.

A plan is made for what fakes promise.  Where an op returns another dtype, shape or layout, or
memory that it was given, nothing may be read as promised: the run ends with `Differs`, and whoever
has the graph makes it anew from what is true.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from adjoint.loops.plan import Invoke, Promise, Size
from adjoint.torch_private import trees
from adjoint.torch_private.corrected_fakes import is_known, learn, learn_alias
from adjoint.torch_private.fake import storage_key


class Differs(Exception):
    """An op did not return what the plan was made for.  What the caller can see is as before."""

    def __init__(self, op: Any, what: str, line: str, is_learned: bool) -> None:
        super().__init__(f"{op} returned {what}")
        self.line = line
        self.is_learned = is_learned
        """What is made anew will know of it."""


@contextlib.contextmanager
def drawing_again(device: torch.device) -> Iterator[None]:
    """If what runs inside is `Differs`, the random numbers that it has drawn are drawn again."""
    generators = [torch.default_generator]
    if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
        generators.append(torch.cuda.default_generators[device.index])
    states = [each.get_state() for each in generators]
    try:
        yield
    except Differs:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        raise


class Sized(Protocol):
    """Knows what sizes are."""

    def ints(self, values: Sequence[Size]) -> tuple[int, ...]: ...


def looked(
    step: Invoke, sizes: Sized, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
) -> Any:
    """What `call` returns, if it is as promised."""
    result = call(*args, **kwargs)
    for place, leaf in enumerate(trees.leaves(result)):
        promise = step.promises[place] if place < len(step.promises) else None
        if promise is None or not isinstance(leaf, torch.Tensor):
            continue
        wrong = _wrong(leaf, promise, sizes)
        if wrong == "strides" and is_known(step.op, args, kwargs, result):
            # They differ from call to call; what reads them looks at them.
            continue
        if wrong is not None:
            what = f"a tensor of {_shown(leaf)} where {_promised(promise, sizes)} was expected"
            can_learn = wrong in ("dtype", "strides")
            raise Differs(
                step.op, what, step.line, can_learn and learn(step.op, args, kwargs, result)
            )
    if not step.aliases and _shares_memory(result, (args, kwargs)):
        raise Differs(step.op, "memory of an argument", step.line, learn_alias(step.op))
    return result


def _wrong(tensor: torch.Tensor, promise: Promise, sizes: Sized) -> str | None:
    if tensor.layout is not torch.strided:
        return None
    if tensor.dtype is not promise.dtype:
        return "dtype"
    if tensor.device.type != promise.device.type:
        return "device"
    shape, strides = sizes.ints(promise.shape), sizes.ints(promise.strides)
    if tuple(tensor.shape) != shape:
        return "shape"
    if tensor.numel() == 0:
        return None
    axes = zip(shape, tensor.stride(), strides, strict=True)
    return "strides" if any(size > 1 and one != other for size, one, other in axes) else None


def _shares_memory(result: Any, given: Any) -> bool:
    memories = {_memory(leaf) for leaf in trees.leaves(given)} - {None}
    return any(_memory(leaf) in memories for leaf in trees.leaves(result))


def _memory(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.numel() == 0:
        return None
    return storage_key(leaf)


def _shown(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype}, {tuple(tensor.shape)} by {tensor.stride()} on {tensor.device}"


def _promised(promise: Promise, sizes: Sized) -> str:
    shape, strides = sizes.ints(promise.shape), sizes.ints(promise.strides)
    return f"{promise.dtype}, {shape} by {strides} on {promise.device}"
