"""Tensors that hold one number everywhere, found and folded.

    f(full(a), full(b)) = full(f(a, b))          x ** 0 = full(1)

for f that is correctly rounded on every device, computed in eager torch on tensors of one element.
Such tensors are the cotangents that an inner gradient starts with, and the derivative of x ** 1.

It runs on graphs that are about to run: there nothing depends on whether `full(1)` has the history
of `x ** 0`.
"""

from __future__ import annotations

import torch
from torch import fx

from adjoint.graph.metadata import computes_tensor, tensor_of
from adjoint.rewrite.engine import rewrite
from adjoint.rewrite.matching import arguments
from adjoint.rewrite.patterns import Match, Rest, Wildcard, call, one_of
from adjoint.rewrite.rules import Replacement, rewrites
from adjoint.torch_private.fake import unset_fake_temporarily
from adjoint.torch_private.operators import OpOverload

aten = torch.ops.aten

# Operators that fill a tensor, and the name of the argument that holds the number.
FILLS: dict[object, str | float] = {
    aten.full.default: "fill_value",
    aten.full_like.default: "fill_value",
    aten.new_full.default: "fill_value",
    aten.scalar_tensor.default: "s",
    aten.zeros.default: 0,
    aten.zeros_like.default: 0,
    aten.new_zeros.default: 0,
    aten.ones.default: 1,
    aten.ones_like.default: 1,
    aten.new_ones.default: 1,
}

# Views that keep every element, or take or repeat some.
VIEWS = frozenset(
    {
        aten.detach.default,
        aten.alias.default,
        aten.expand.default,
        aten.permute.default,
        aten.t.default,
        aten.transpose.int,
        aten.view.default,
        aten._unsafe_view.default,
        aten.unsqueeze.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.slice.Tensor,
        aten.select.int,
        aten.clone.default,
    }
)


def uniform_value(argument: object) -> bool | int | float | None:
    """The number that an argument is, or that a tensor holds everywhere; None if it is not known.

    A number in a tensor is rounded to its dtype.
    """
    if isinstance(argument, (bool, int, float)):
        return argument
    if not isinstance(argument, fx.Node) or not computes_tensor(argument):
        return None
    node = argument
    while node.target in VIEWS:
        node = node.args[0]  # type: ignore[assignment]
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return None
    fill = FILLS.get(node.target)
    if isinstance(fill, str):
        fill = arguments(node.target, node.args, node.kwargs)[fill]
    if not isinstance(fill, (bool, int, float)):
        return None
    return _rounded(fill, tensor_of(node).dtype)


def _rounded(number: bool | int | float, dtype: torch.dtype) -> bool | int | float | None:
    if dtype.is_complex:
        return None
    with unset_fake_temporarily():
        try:
            found: bool | int | float = torch.tensor(number, dtype=dtype, device="cpu").item()
        except (RuntimeError, OverflowError):
            return None
    return found


x = Wildcard("x")

# Correctly rounded, so that every device computes the same.
FOLDED = (
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.mul.Tensor,
    aten.div.Tensor,
    aten.neg.default,
    aten._to_copy.default,
    aten.where.self,
)


@rewrites(call(aten.pow.Tensor_Scalar, x, one_of(0, 0.0)))
def fold_power_zero(match: Match) -> Replacement | None:
    """x ** 0 = 1, for NaN, too"""
    return _filled(match.root, 1)


@rewrites(call(FOLDED, Rest("rest")))
def fold_uniform(match: Match) -> Replacement | None:
    """f(full(a), full(b)) = full(f(a, b))"""
    root = match.root
    known = {each: uniform_value(each) for each in root.all_input_nodes}
    values = {each: value for each, value in known.items() if value is not None}
    if not values or len(values) < len(known):
        return None
    with unset_fake_temporarily(), torch.no_grad():
        args, kwargs = fx.map_arg(
            (root.args, root.kwargs),
            lambda each: torch.full((1,) * tensor_of(each).dim(), values[each]).to(
                tensor_of(each).dtype
            ),
        )
        if isinstance(kwargs.get("device"), torch.device):
            kwargs = {**kwargs, "device": torch.device("cpu")}
        result = root.target(*args, **kwargs)  # type: ignore[operator]
        number = result.item()
    is_known = isinstance(number, (bool, int, float)) and result.dtype == tensor_of(root).dtype
    return _filled(root, number) if is_known else None


def _filled(root: fx.Node, number: bool | int | float) -> Replacement | None:
    value = tensor_of(root)
    shape: list[object] = list(value.shape)
    # The layout of symbolic sizes is not asked for: that would be a guard.
    if not all(isinstance(size, int) for size in shape) or not value.is_contiguous():
        return None
    return call(
        aten.full.default,
        shape,
        number,
        dtype=value.dtype,
        layout=torch.strided,
        device=value.device,
        pin_memory=False,
    )


RULES = (fold_power_zero, fold_uniform)


def fold_uniform_values(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Compute what is the same number everywhere when compiling."""
    return rewrite(graph_module, RULES, "fold-uniform-values")
