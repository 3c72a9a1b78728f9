"""What a program decides by its sizes, where torch takes every size to be positive.

Sympy's symbols of sizes are positive also for general shapes, whose sizes may be 0.  So `n != 0` is
true, `max(n, 1)` is `n`, and no guard says so.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

import sympy
import torch
from torch.fx.experimental.sym_node import magic_methods
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from adjoint.torch_private.size_guards import SizeSpecialized
from adjoint.torch_private.symbols import expression

__all__ = ["program_decides"]

# Comparisons and extrema: what positive symbols decide before a guard could.
_METHODS = ("eq", "ne", "lt", "le", "gt", "ge", "sym_max", "sym_min")


class _Deciding(threading.local):
    """Whether this thread runs a user's program with general shapes."""

    active = False


_DECIDING = _Deciding()


@contextlib.contextmanager
def program_decides() -> Iterator[None]:
    """A context in which what a program decides because a size is not 0 is a guard.

    Decisions inside torch's operators are not: see `size_guards.guard_open_decisions`.
    """
    _observe_sizes()
    before, _DECIDING.active = _DECIDING.active, True
    try:
        yield
    finally:
        _DECIDING.active = before


@functools.cache
def _observe_sizes() -> None:
    """Let `SymInt` tell of its comparisons and extrema, in threads that ask for it."""
    for method in _METHODS:
        symbolic: Callable[..., sympy.Basic] = magic_methods[method]  # type: ignore[assignment]
        name = f"__{method}__"
        setattr(torch.SymInt, name, _observed(vars(torch.SymInt)[name], symbolic))


def _observed(
    original: Callable[..., object], symbolic: Callable[..., sympy.Basic]
) -> Callable[..., object]:
    """The method `original` of sizes, whose result has the expression `symbolic` of operands."""

    @functools.wraps(original)
    def observed(self: torch.SymInt, other: object) -> object:
        if _DECIDING.active and _is_of_program(sys._getframe(1)):
            _guard_nonzero(self.node.shape_env, symbolic, (self, other))
        return original(self, other)

    return observed


def _is_of_program(frame: FrameType | None) -> bool:
    """Whether a user's program, or one of torch's modules that it calls, compares sizes here."""
    while frame is not None and frame.f_globals.get("__name__") == "torch":
        frame = frame.f_back  # `torch.sym_max` and `SymInt.__bool__`
    if frame is None:
        return False
    module = str(frame.f_globals.get("__name__"))
    if module == "torch._dynamo.utils":
        return frame.f_code.co_name == "run_node"  # Dynamo runs a node of the program
    if module == "torch._dynamo.symbolic_convert":
        return True  # The truth of a size, where the program branches on it
    own = module.partition(".")[0] in ("torch", "adjoint")
    return not own or module.startswith(("torch.nn.", "torch.distributions."))


def _guard_nonzero(
    shape_env: ShapeEnv | None, symbolic: Callable[..., sympy.Basic], operands: tuple[object, ...]
) -> None:
    """Guard on sizes not being 0 if the expression of operands would be another one for 0."""
    if shape_env is None or not all(isinstance(each, int | torch.SymInt) for each in operands):
        return
    exprs = [
        expression(each) if isinstance(each, torch.SymInt) else sympy.sympify(each)
        for each in operands
    ]
    may_be_zero = [s for expr in exprs for s in expr.free_symbols if _may_be_zero(shape_env, s)]
    general = {s: sympy.Symbol(s.name, integer=True, nonnegative=True) for s in may_be_zero}
    if not general or symbolic(*exprs).xreplace(general) == symbolic(
        *(expr.xreplace(general) for expr in exprs)
    ):
        return
    for symbol in general:
        if _values(shape_env)[symbol] == 0:
            raise SizeSpecialized(f"the size {symbol} is 0, and the program decides by it")
        shape_env._update_var_to_range(symbol, ValueRanges(1, int_oo))


def _may_be_zero(shape_env: ShapeEnv, symbol: sympy.Symbol) -> bool:
    """Whether a symbol that sympy takes to be positive has the bound 0."""
    return bool(
        symbol.is_positive
        and symbol in _values(shape_env)
        and shape_env.var_to_range[symbol].lower <= 0
    )


def _values(shape_env: ShapeEnv) -> Mapping[sympy.Symbol, int]:
    """The value of each symbol in this call; `var_to_val` is its name in older versions."""
    found = getattr(shape_env, "backed_var_to_val", None)
    return shape_env.var_to_val if found is None else found
