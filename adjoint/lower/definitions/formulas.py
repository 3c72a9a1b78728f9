"""Pointwise operators: a formula of `loops/pointwise.py`, applied to broadcast arguments."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from adjoint.graph.metadata import value_at, value_of
from adjoint.loops.expressions import Expression, cast, constant
from adjoint.loops.pointwise import MASKS, TABLE, Pointwise, computed_in
from adjoint.lower.definitions.elements import Definition, Mapped, Reader, decline_if
from adjoint.lower.sizes import product, size_of
from adjoint.lower.views import MultiIndex, broadcast, dtype_of, shape_of
from adjoint.torch_private.symbols import is_unbacked_int

aten = torch.ops.aten


def by_formula(node: fx.Node) -> Mapped | None:
    """The definition by a pointwise formula, in the types in which eager computes."""
    entry = TABLE[node.target]
    result = dtype_of(node)
    numbers = [a for a in (*node.args, *node.kwargs.values()) if not isinstance(a, fx.Node)]
    if any(isinstance(number, complex) for number in numbers):
        return None
    if not _are_supported(node):
        return None
    if _is_left_to_eager(node, entry, result):
        return None
    promoted = _promoted(node) if entry.compares else result
    argument_dtype = computed_in(promoted)
    masks = MASKS.get(node.target, ())
    options = {k: v for k, v in node.kwargs.items() if k not in _LAYOUT}

    def element(index: MultiIndex, reader: Reader) -> Expression:
        def argument(place: int, arg: object) -> object:
            if _is_size(arg):
                return cast(reader.size(size_of(value_at(arg))), argument_dtype)
            if not isinstance(arg, fx.Node):
                if isinstance(arg, (int, float)) and (entry.compares or entry.rounds):
                    return constant(arg, promoted).value
                return arg
            value = reader.read(arg, broadcast(index, shape_of(arg)))
            return value if place in masks else cast(value, argument_dtype)

        args = [argument(place, arg) for place, arg in enumerate(node.args)]
        kwargs = {name: argument(-1, arg) for name, arg in options.items()}
        if entry.typed:
            kwargs["result"] = result
        return cast(entry.formula(*args, **kwargs), result)

    if node.target is aten._to_copy.default:
        source: fx.Node = node.args[0]  # type: ignore[assignment]
        return Mapped(lambda index, reader: cast(reader.read(source, index), result))
    return Mapped(element)


def _are_supported(node: fx.Node) -> bool:
    """Whether all arguments are tensors or numbers, among them symbolic sizes where one may be."""
    given = [a for a in (*node.args, *node.kwargs.values()) if isinstance(a, fx.Node)]
    sizes = [a for a in (*node.args, *node.kwargs.values()) if _is_size(a)]
    if any(isinstance(a, torch.SymInt | torch.SymFloat) and not _is_size(a) for a in node.args):
        return False
    tensors = [a for a in given if isinstance(value_of(a), torch.Tensor)]
    if not tensors or len(tensors) + sum(isinstance(a, fx.Node) for a in sizes) < len(given):
        return False
    if not sizes:
        return True
    return node.target in _OF_SIZES and len(sizes) == 1 and _is_size(node.args[1])


def _is_size(arg: object) -> bool:
    """Whether an argument is a symbolic size that follows from the sizes of inputs."""
    number = value_at(arg)
    return isinstance(number, torch.SymInt) and not is_unbacked_int(number)


# Operators whose second argument may be a symbolic size.
_OF_SIZES = frozenset(
    getattr(packet, overload)
    for packet in (aten.add, aten.sub, aten.mul, aten.div)
    for overload in ("Tensor", "Scalar")
)


def _is_left_to_eager(node: fx.Node, entry: Pointwise, result: torch.dtype) -> bool:
    """Whether eager raises: for integer powers, and integer division that may be by zero.

    Also floor division of half types by a tensor, which eager rounds at each step.
    """
    if result.is_floating_point:
        by = node.args[1] if node.target in _FLOOR_DIVISIONS else None
        return result.itemsize == 2 and isinstance(by, fx.Node)
    if node.target in (aten.pow.Scalar, aten.pow.Tensor_Tensor):
        return True
    by = None if entry.divides is None else node.args[entry.divides]
    return isinstance(by, fx.Node | torch.SymInt) or (isinstance(by, (int, float)) and by == 0)


_FLOOR_DIVISIONS = (aten.div.Tensor_mode, aten.floor_divide.default)
# Keyword arguments that do not change the values.
_LAYOUT = frozenset({"memory_format", "layout", "device", "pin_memory", "non_blocking", "dtype"})


def _promoted(node: fx.Node) -> torch.dtype:
    values = [value_at(arg) for arg in node.args if isinstance(arg, (fx.Node, int, float))]
    if len(values) == 1:
        dtype: torch.dtype = values[0].dtype
        return dtype
    return torch.result_type(values[0], values[1])


def _mse_loss_backward(
    node: fx.Node, cotangent: fx.Node, x: fx.Node, y: fx.Node, reduction: int
) -> Mapped:
    dtype = computed_in(torch.promote_types(dtype_of(x), dtype_of(y)))
    decline_if(not dtype.is_floating_point)
    count = product(shape_of(x))

    def element(index: MultiIndex, reader: Reader) -> Expression:
        g = cast(reader.read(cotangent, broadcast(index, shape_of(cotangent))), dtype)
        gap = cast(reader.read(x, index), dtype) - cast(reader.read(y, index), dtype)
        by = 2.0 if reduction != 1 else constant(2, dtype) / cast(reader.size(count), dtype)
        return cast(gap * by * g, dtype_of(node))

    return Mapped(element)


RULES: dict[object, Callable[..., Definition]] = {
    aten.mse_loss_backward.default: _mse_loss_backward,
}
