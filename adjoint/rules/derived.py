"""Rules nobody wrote: torch's own formula for one op, traced.

The op is run once more on fakes that require grad, without being emitted, and autograd is asked for its
vector-Jacobian product; what autograd computes is emitted.  With a `composition`, what is run is the
composition.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from adjoint.torch_private import trees
from adjoint.torch_private.composites import by_torch_formula
from adjoint.torch_private.operators import OpOverload


def pull_back(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    active: Sequence[torch.Tensor],
    twin: Callable[[torch.Tensor, bool], torch.Tensor],
    cotangents: Sequence[Any],
) -> dict[int, torch.Tensor]:
    """The cotangents of the `active` arguments of `function(*args, **kwargs)`, by their identity.

    `twin` makes a leaf with the value of a traced tensor; `cotangents` has one entry for each result.
    """
    twins: dict[int, torch.Tensor] = {}
    wanted = {id(tensor) for tensor in active}

    def leaf(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in twins:
            twins[id(value)] = twin(value, id(value) in wanted)
        return twins[id(value)]

    with torch.enable_grad():
        args, kwargs = trees.map_leaves(leaf, (args, kwargs))
        with _as_defined(function):
            result = function(*args, **kwargs)
        results = trees.leaves(result)
        pairs = [
            (out, cotangent)
            for out, cotangent in zip(results, cotangents, strict=True)
            if cotangent is not None and isinstance(out, torch.Tensor) and out.requires_grad
        ]
        if not pairs:
            return {}
        inputs = [twins[id(tensor)] for tensor in active]
        gradients = torch.autograd.grad(
            [out for out, _ in pairs],
            inputs,
            [cotangent for _, cotangent in pairs],
            create_graph=True,
            allow_unused=True,
        )
    return {
        id(tensor): gradient
        for tensor, gradient in zip(active, gradients, strict=True)
        if gradient is not None
    }


def _as_defined(function: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    is_op = isinstance(function, OpOverload)
    return by_torch_formula(function) if is_op else contextlib.nullcontext()
