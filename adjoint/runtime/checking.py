"""Checks what library ops return, the first time that a binding runs.

A plan is made for the dtypes, shapes, strides and aliasing that fake tensors predict.  Where an op
returns something else, kernels would read the wrong memory: the run stops with `UnexpectedResult`
before any kernel does, and the caller compiles the graph again with what was observed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import fx

from adjoint.graph.metadata import source_of, value_or_none
from adjoint.loops.plan import ExpectedTensor, LibraryCall, Size
from adjoint.torch_private import trees
from adjoint.torch_private.fake import storage_key
from adjoint.torch_private.learned_fakes import is_known, layout_of, learn, learn_alias
from adjoint.torch_private.operators import OpOverload


class UnexpectedResult(Exception):
    """An op did not return what the plan was made for.  No effect is visible to the caller."""

    def __init__(self, op: object, what: str, line: str, is_learned: bool) -> None:
        super().__init__(f"{op} returned {what}")
        self.line = line
        self.is_learned = is_learned
        """The observation is kept, so that the graph compiled again will expect it."""


@contextlib.contextmanager
def restoring_generators(device: torch.device) -> Iterator[None]:
    """On `UnexpectedResult`, reset the generators: the next run draws the same random numbers."""
    generators = [torch.default_generator]
    if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
        generators.append(torch.cuda.default_generators[device.index])
    states = [generator.get_state() for generator in generators]
    try:
        yield
    except UnexpectedResult:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        raise


class SizeValues(Protocol):
    """The values of symbolic sizes."""

    def ints(self, values: Sequence[Size]) -> tuple[int, ...]: ...


def checked_call(
    step: LibraryCall,
    sizes: SizeValues,
    call: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """`call(*args, **kwargs)`; raises `UnexpectedResult` unless it is what `step` expects."""
    result = call(*args, **kwargs)
    for position, leaf in enumerate(trees.leaves(result)):
        expected = step.expected[position] if position < len(step.expected) else None
        if expected is None or not isinstance(leaf, torch.Tensor):
            continue
        difference = _difference(leaf, expected, sizes)
        if difference == "strides" and not _can_expect(step.op, args, kwargs, result, leaf):
            # What reads the result checks its strides itself.
            continue
        if difference is not None:
            what = f"a tensor of {_actual(leaf)} where {_expected(expected, sizes)} was expected"
            can_learn = difference in ("dtype", "strides")
            raise UnexpectedResult(
                step.op, what, step.line, can_learn and learn(step.op, args, kwargs, result)
            )
    if not step.aliases and _shares_memory(result, (args, kwargs)):
        raise UnexpectedResult(step.op, "memory of an argument", step.line, learn_alias(step.op))
    return result


def check_dtypes(
    node: fx.Node, args: tuple[object, ...], kwargs: dict[str, object], result: object
) -> None:
    """Raise `UnexpectedResult` if an op that runs op by op returns another dtype than its fake.

    Kernels of other programs read the result; strides and sizes they compare themselves.
    """
    if not isinstance(node.target, OpOverload):
        return
    pairs = zip(trees.leaves(result), trees.leaves(value_or_none(node)), strict=False)
    for leaf, fake in pairs:
        if not isinstance(leaf, torch.Tensor) or not isinstance(fake, torch.Tensor):
            continue
        if leaf.dtype is not fake.dtype:
            what = f"a tensor of {leaf.dtype} where {fake.dtype} was expected"
            is_learned = learn(node.target, args, kwargs, result)
            raise UnexpectedResult(node.target, what, str(source_of(node) or ""), is_learned)


def _can_expect(
    op: object,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    result: object,
    leaf: torch.Tensor,
) -> bool:
    """Whether the graph compiled again would expect the strides of `leaf`.

    It would not if `leaf` has gaps between its elements, as a result with the strides of a slice
    has, or if calls of this kind return different strides.
    """
    return layout_of(leaf) is not None and not is_known(op, args, kwargs, result)


def _difference(tensor: torch.Tensor, expected: ExpectedTensor, sizes: SizeValues) -> str | None:
    """The first property of `tensor` that is not as expected."""
    if tensor.layout is not torch.strided:
        return None
    if tensor.dtype is not expected.dtype:
        return "dtype"
    if tensor.device.type != expected.device.type:
        return "device"
    shape, strides = sizes.ints(expected.shape), sizes.ints(expected.strides)
    if tuple(tensor.shape) != shape:
        return "shape"
    if tensor.numel() == 0:
        return None
    axes = zip(shape, tensor.stride(), strides, strict=True)
    return "strides" if any(size > 1 and one != other for size, one, other in axes) else None


def _shares_memory(result: object, arguments: object) -> bool:
    storages = {_storage(leaf) for leaf in trees.leaves(arguments)} - {None}
    return any(_storage(leaf) in storages for leaf in trees.leaves(result))


def _storage(leaf: object) -> object:
    if not isinstance(leaf, torch.Tensor) or leaf.numel() == 0:
        return None
    return storage_key(leaf)


def _actual(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype}, {tuple(tensor.shape)} by {tensor.stride()} on {tensor.device}"


def _expected(expected: ExpectedTensor, sizes: SizeValues) -> str:
    shape, strides = sizes.ints(expected.shape), sizes.ints(expected.strides)
    return f"{expected.dtype}, {shape} by {strides} on {expected.device}"
