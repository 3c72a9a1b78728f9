"""Transforms compiled on their first call for arguments of a kind."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from adjoint.building import Build
from adjoint.capture.direct import capture_call
from adjoint.graph.evaluation import evaluate
from adjoint.options import Options
from adjoint.runtime.bridge import Compiled as Bridged
from adjoint.runtime.calling import call
from adjoint.torch_private import trees
from adjoint.torch_private.modes import is_functorch_wrapper, outside_functorch
from adjoint.trace.tracer import Tracer, current_tracer
from adjoint.transforms.fingerprint import fingerprint
from adjoint.transforms.linear import Linearized

_BUILD = Build(Options())


def linearize(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Linearized:
    """`function` at `inputs`, in the program that is being captured."""
    tracer = current_tracer()
    assert isinstance(tracer, Tracer), "a transform runs inside a capture"
    return Linearized(tracer, _BUILD, function, inputs)


class Compiled:
    """A transform of `function`, written for a capture under way, as a function for any caller."""

    def __init__(self, transformed: Callable[..., Any], function: Callable[..., Any]) -> None:
        self._transformed = transformed
        self._function = function
        self._programs: dict[Any, _Program] = {}
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if current_tracer() is not None:
            return self._transformed(*args, **kwargs)
        leaves, spec = trees.flatten((args, kwargs))
        key = (
            spec,
            tuple(map(_kind, leaves)),
            torch.is_grad_enabled(),
            fingerprint(self._function),
        )
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = _Program(self._transformed, args, kwargs)
        return program(leaves)


class _Program:
    """A transform, captured for arguments of one kind."""

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        with outside_functorch():
            args, kwargs = trees.map_leaves(_plain, (args, kwargs))
        with outside_functorch():
            self.captured = capture_call(function, args, kwargs, dynamic=False)
        self.graph = Bridged(self.captured.graph_module, _BUILD)

    def __call__(self, leaves: Sequence[Any]) -> Any:
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        graph: Any = self.graph
        if any(is_functorch_wrapper(each) for each in tensors):
            # `torch.func` differentiates and batches the ops themselves.
            graph = functools.partial(evaluate, self.captured.graph_module)
        results = call(graph, self.captured.calling, self.captured.leaves(tensors))
        assert self.captured.signature is not None
        return trees.unflatten(results, self.captured.signature.returned)


def _plain(leaf: Any) -> Any:
    """A tensor to capture with, where a level of `torch.func` hides the data."""
    if not is_functorch_wrapper(leaf):
        return leaf
    with torch.no_grad():
        return torch.empty(leaf.shape, dtype=leaf.dtype, device=leaf.device)


def _kind(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return (type(leaf), leaf) if _hashable(leaf) else id(leaf)
    strides = leaf.stride() if leaf.layout is torch.strided else None
    return (leaf.shape, strides, leaf.dtype, leaf.device, leaf.requires_grad, type(leaf))


def _hashable(value: Any) -> bool:
    return getattr(value, "__hash__", None) is not None
