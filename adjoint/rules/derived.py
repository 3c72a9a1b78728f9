"""Derived rules: torch's own formula for one op, traced.

The op (or its `composition`) is run on fake tensors that require grad, without being emitted into
the graph.  Then autograd computes its vector-Jacobian product, and those ops are emitted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch

from adjoint.failing import call_user_code
from adjoint.graph.boundary import NotRegistered
from adjoint.open_types import AutogradContext
from adjoint.rules.registry import VJPS
from adjoint.torch_private import trees
from adjoint.torch_private.autograd import applied
from adjoint.torch_private.composites import by_torch_formula
from adjoint.torch_private.fake import is_zero_tensor
from adjoint.torch_private.operators import OpOverload, has_own_derivative


def pull_back(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    active: Sequence[torch.Tensor],
    twin: Callable[[torch.Tensor, bool], torch.Tensor],
    cotangents: Sequence[object],
) -> dict[int, torch.Tensor]:
    """The cotangents of the `active` arguments of `function(*args, **kwargs)`, by `id`.

    `twin(tensor, requires_grad)` makes an autograd leaf with the value of a traced tensor.
    `cotangents` has one entry for each result.
    """
    if isinstance(function, OpOverload) and not has_own_derivative(function):
        raise NotRegistered("no derivative is registered for it")
    twins: dict[int, torch.Tensor] = {}
    wanted = {id(tensor) for tensor in active}

    def leaf(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in twins:
            twins[id(value)] = twin(value, id(value) in wanted)
        return twins[id(value)]

    with torch.enable_grad():
        args, kwargs = trees.map_leaves(leaf, (args, kwargs))
        with _as_defined(function):
            result = call_user_code(function, *args, **kwargs)
        results = trees.leaves(result)
        pairs = [
            (out, cotangent)
            for out, cotangent in zip(results, cotangents, strict=True)
            if cotangent is not None and isinstance(out, torch.Tensor) and out.requires_grad
        ]
        if not pairs:
            return {}
        inputs = [twins[id(tensor)] for tensor in active]
        gradients = call_user_code(
            torch.autograd.grad,
            [out for out, _ in pairs],
            inputs,
            [cotangent for _, cotangent in pairs],
            create_graph=True,
            allow_unused=True,
        )
    found: Sequence[torch.Tensor | None] = gradients
    return {
        id(tensor): torch.zeros_like(tensor) if is_zero_tensor(gradient) else gradient
        for tensor, gradient in zip(active, found, strict=True)
        if gradient is not None
    }


def _as_defined(function: Callable[..., object]) -> contextlib.AbstractContextManager[None]:
    if isinstance(function, OpOverload):
        return by_torch_formula(function)
    return contextlib.nullcontext()


def by_rule(op: OpOverload, *args: object, **kwargs: object) -> torch.Tensor:
    """`op(*args, **kwargs)`, differentiated by our own rule.

    For compositions that use an op whose formula in torch cannot be traced.
    """

    class Applied(torch.autograd.Function):
        @staticmethod
        def forward(ctx: AutogradContext, *values: object) -> object:
            out = op(*values, **kwargs)
            ctx.save_for_backward(out, *(v for v in values if isinstance(v, torch.Tensor)))
            ctx.others = [None if isinstance(v, torch.Tensor) else (v,) for v in values]
            return out

        @staticmethod
        def backward(ctx: AutogradContext, *cotangents: object) -> tuple[object, ...]:
            out, *tensors = ctx.saved_tensors
            rest = iter(tensors)
            values = [next(rest) if other is None else other[0] for other in ctx.others]
            parts = list(VJPS[op](cotangents[0], out, *values, **kwargs))
            parts += [None] * (len(values) - len(parts))
            return tuple(
                (part() if callable(part) else part) if needed else None
                for part, needed in zip(parts, ctx.needs_input_grad, strict=True)
            )

    result: torch.Tensor = applied(Applied, *args)
    return result
