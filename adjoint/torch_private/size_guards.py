"""Guards on sizes: those that a compilation adds, and those that torch's operators leave open."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from weakref import WeakKeyDictionary

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import (
    ShapeEnv,
    free_unbacked_symbols,
    statically_known_true,
)
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from adjoint.open_types import OpArgument
from adjoint.torch_private.symbols import expression

__all__ = [
    "ShapeEnv",
    "SizeSpecialized",
    "allow_data_dependent_sizes",
    "assumed",
    "assumptions",
    "guard_open_decisions",
    "guards_of",
    "is_guarded_one",
    "never_zero",
]

_ASSUMED: WeakKeyDictionary[ShapeEnv, list[sympy.Basic]] = WeakKeyDictionary()


@contextlib.contextmanager
def assumptions(shape_env: ShapeEnv | None) -> Iterator[list[sympy.Basic]]:
    """Collect the guards that torch adds in this context, after those of earlier contexts.

    Dynamo does not check guards added after it has generated its own, so whoever runs what was
    built in the context must check these assumptions.
    """
    known = assumed(shape_env)
    if shape_env is None:
        yield known
        return
    before, frozen = len(shape_env.guards), shape_env.frozen
    shape_env.frozen = False
    try:
        yield known
    finally:
        shape_env.frozen = frozen
        found = [guard.expr for guard in shape_env.guards[before:]]
        known += [expr for expr in found if expr not in known]


@contextlib.contextmanager
def allow_data_dependent_sizes(shape_env: ShapeEnv | None) -> Iterator[None]:
    """Allow data-dependent (unbacked) sizes and numbers, which Dynamo refuses by default."""
    if shape_env is None:
        yield
        return
    settings = shape_env.settings
    shape_env.settings = dataclasses.replace(
        settings, allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True
    )
    try:
        yield
    finally:
        shape_env.settings = settings


def assumed(shape_env: ShapeEnv | None) -> list[sympy.Basic]:
    """The assumptions collected so far; the list grows with later ones."""
    return [] if shape_env is None else _ASSUMED.setdefault(shape_env, [])


def guards_of(shape_env: ShapeEnv) -> list[sympy.Basic]:
    """All guards on sizes, without duplicates."""
    return list(dict.fromkeys(guard.expr for guard in shape_env.guards))


def never_zero(shape_env: ShapeEnv, symbols: Iterable[sympy.Symbol]) -> list[sympy.Basic]:
    """For each symbol with a positive lower bound, the condition that it is not 0.

    Such a bound is no guard of torch's.  The conditions are not simplified, because sympy takes
    symbols to be positive and would make each of them true.
    """
    bounded = [each for each in symbols if shape_env.var_to_range[each].lower > 0]
    return [sympy.Ne(symbol, 0, evaluate=False) for symbol in bounded]


_aten = torch.ops.aten
_SQUEEZES = frozenset(
    op
    for packet in (_aten.squeeze, _aten.squeeze_, _aten.squeeze_copy)
    for op in (packet.default, packet.dim, packet.dims)
)


_EXTREMA = frozenset(
    op
    for packet in (_aten.max, _aten.min, _aten.amax, _aten.amin, _aten.argmax, _aten.argmin)
    for name in ("default", "dim")
    if (op := getattr(packet, name, None)) is not None
) | {_aten.aminmax.default, _aten.median.dim, _aten.nanmedian.dim, _aten.mode.default}

_BATCH_NORMS = frozenset(
    {
        _aten.native_batch_norm.default,
        _aten._native_batch_norm_legit.default,
        _aten._native_batch_norm_legit.no_stats,
        _aten._native_batch_norm_legit_no_training.default,
        _aten._native_batch_norm_legit_functional.default,
        _aten._batch_norm_with_update.default,
        _aten._batch_norm_no_update.default,
        _aten.cudnn_batch_norm.default,
    }
)


class SizeSpecialized(Exception):
    """A program traced for a symbolic size is valid only for its value in this call.

    The frame is compiled again with the size as a number.
    """


def guard_open_decisions(
    op: object, args: Sequence[OpArgument], kwargs: Mapping[str, OpArgument]
) -> None:
    """Guard on properties of sizes that `op` depends on, where general shapes leave them open."""
    if op in _SQUEEZES:
        _guard_squeezed_sizes(*args, **kwargs)
    elif op is _aten.slice.Tensor:
        _guard_slice(*args, **kwargs)
    elif op is _aten.diagonal.default:
        _guard_diagonal(*args, **kwargs)
    elif op is _aten.select.int:
        _guard_selected(*args, **kwargs)
    elif op in _EXTREMA:
        _guard_extremum(*args, **kwargs)
    elif op in _BATCH_NORMS:
        _guard_normalized(*args, **kwargs)


def _guard_squeezed_sizes(x: torch.Tensor, dim: int | Sequence[int] | None = None) -> None:
    """Guard on whether squeezed sizes are 1; for general shapes torch keeps the axes."""
    axes = range(x.dim()) if dim is None else (dim,) if isinstance(dim, int) else dim
    sizes: list[object] = [x.shape[axis] for axis in axes if x.dim()]
    for size in sizes:
        if is_guarded_one(size):
            raise SizeSpecialized(f"the size {size} is 1, and is squeezed")


def is_guarded_one(size: object) -> bool:
    """Whether a symbolic size is 1, which becomes a guard; its expression stays what it is."""
    if not isinstance(size, torch.SymInt) or free_unbacked_symbols(size):
        return False
    return bool(size == 1) and not size.node.expr.is_Integer


def _guard_slice(
    x: torch.Tensor, dim: int = 0, start: object = None, end: object = None, step: object = 1
) -> None:
    """Guard on where the slice starts and ends; torch would make its size data-dependent."""
    _guard_index(x, dim, start)
    _guard_index(x, dim, end)


def _guard_diagonal(x: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> None:
    """Guard on where the diagonal starts."""
    if offset:
        _guard_index(x, dim2 if offset > 0 else dim1, offset)


def _guard_selected(x: torch.Tensor, dim: int, index: int) -> None:
    """Guard on the existence of the selected element."""
    _guard_index(x, dim, index)
    size = x.shape[dim]
    if not free_unbacked_symbols((index, size)):
        _guard_at_least(size, index + 1 if index >= 0 else -index)


def _guard_extremum(
    x: torch.Tensor, dim: int | Sequence[int] | None = None, *_: object, **__: object
) -> None:
    """Guard on axes not being empty: the extremum of an empty axis is an error."""
    axes = range(x.dim()) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    for axis in axes if x.dim() else ():
        _guard_at_least(x.shape[axis], 1)


def _guard_normalized(x: torch.Tensor, *_: object, **__: object) -> None:
    """Guard on there being something to normalize.

    `torch.batch_norm` calls no kernel for an empty batch, and leaves the running statistics alone;
    the kernels divide by the number of elements.
    """
    sizes: list[object] = list(x.shape)
    for size in sizes:
        if isinstance(size, torch.SymInt) and not free_unbacked_symbols(size):
            if size.node.hint == 0:
                raise SizeSpecialized(f"the size {size} is 0, and nothing is normalized")
            _guard_at_least(size, 1)


def _guard_at_least(size: object, least: object) -> None:
    """Guard on `size >= least`, and raise the lower bounds of its symbols to 1.

    Sympy takes symbols to be positive, so torch does not add a guard against size 0 by itself.
    """
    if isinstance(size, torch.SymInt) and not free_unbacked_symbols(size) and size >= least:
        for symbol in expression(size).free_symbols:
            size.node.shape_env._update_var_to_range(symbol, ValueRanges(1, int_oo))


def _guard_index(x: torch.Tensor, dim: int, index: object) -> None:
    """Guard on the sign of the index, and on whether it is within the axis."""
    size = x.shape[dim]
    if isinstance(index, int) and abs(index) == 1:
        _guard_at_least(size, 1)
    if not isinstance(index, torch.SymInt) or free_unbacked_symbols((index, size)):
        return
    if statically_known_true(index >= 0) or statically_known_true(index < 0):
        return
    if index >= 0:
        bool(index <= size)
    else:
        bool(index >= -size)
