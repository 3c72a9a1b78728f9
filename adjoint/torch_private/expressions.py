"""Expressions over sizes as nested lists, and back.

    s0 * 2 + 1      ["Add", 1, ["Mul", 2, ["Symbol", "s0", "positive integer"]]]

Reading builds the same expression: one that would be read back as another is refused by `written`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterator, Sequence
from typing import TypeAlias

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.utils._sympy import functions
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from adjoint.open_types import TorchValue
from adjoint.torch_private.size_guards import assumptions

# The kinds of symbols that torch makes.
_KINDS: dict[str, dict[str, bool]] = {
    "positive integer": {"integer": True, "positive": True},
    "natural": {"integer": True, "nonnegative": True},
    "integer": {"integer": True},
    "real": {"real": True},
    "number": {},
}

_SYMPY = (
    *("Add", "Mul", "Pow", "Max", "Min", "Mod", "Eq", "Ne", "Lt", "Le", "Gt", "Ge"),
    *("And", "Or", "Not", "Abs", "Piecewise", "floor", "ceiling"),
)
_TORCH = (
    *("FloorDiv", "CleanDiv", "CeilDiv", "ModularIndexing", "PythonMod", "IntTrueDiv"),
    *("FloatTrueDiv", "PowByNatural", "FloatPow", "ToFloat", "TruncToInt", "FloorToInt"),
    *("CeilToInt", "RoundToInt", "TruncToFloat", "Where", "Identity", "BitwiseFn_bitwise_and"),
)
_FUNCTIONS: dict[str, type[sympy.Basic]] = {
    **{name: getattr(sympy, name) for name in _SYMPY},
    # Torch's Mod, Max and Min are not sympy's.
    **{
        f"torch.{name}": getattr(functions, name)
        for name in (*_TORCH, "Mod", "Max", "Min")
        if hasattr(functions, name)
    },
}
_NAMES = {function: name for name, function in _FUNCTIONS.items()}
_AS_WRITTEN = frozenset({"Add", "Mul", "Eq", "Ne", "Lt", "Le", "Gt", "Ge"})

# Expressions of sizes are small; a text that is deeper is no expression of ours.
MAX_DEPTH = 100


@functools.lru_cache(maxsize=65536)
def _written(expr: sympy.Basic) -> object:
    tree = _tree(expr)
    if _read(tree, 0) != expr:
        raise ValueError(f"{expr} would be read otherwise")
    return tree


def written(expr: sympy.Basic) -> object:
    """The lists of an expression; raises `ValueError` if they cannot represent a part of it."""
    return int(expr) if expr.is_Integer else _written(expr)


def read(tree: object) -> sympy.Basic:
    """The expression of lists; raises `ValueError`."""
    return _read(tree, 0)


def _tree(expr: sympy.Basic) -> object:
    match expr:
        case sympy.Integer():
            return int(expr)
        case sympy.Symbol():
            return ["Symbol", expr.name, _kind(expr)]
        case sympy.Float():
            return ["Float", float(expr).hex()]
        case sympy.Rational():
            return ["Rational", int(expr.p), int(expr.q)]
        case _ if expr is sympy.true or expr is sympy.false:
            return ["truth", bool(expr)]
        case _:
            name = _NAMES.get(type(expr))
            if name is None:
                raise ValueError(f"{type(expr).__name__} in {expr} has no form")
            if name == "Piecewise":
                return [name, *([_tree(value), _tree(holds)] for value, holds in expr.args)]
            return [name, *map(_tree, expr.args)]


def _kind(symbol: sympy.Symbol) -> str:
    for kind, flags in _KINDS.items():
        if sympy.Symbol(symbol.name, **flags) == symbol:
            return kind
    raise ValueError(f"the symbol {symbol} has other assumptions than sizes have")


def _read(tree: object, depth: int) -> object:
    if type(tree) is int:
        return sympy.Integer(tree)
    if depth > MAX_DEPTH or not isinstance(tree, list) or not tree:
        raise ValueError(f"{str(tree)[:80]} is no expression")
    name, *parts = tree
    if name == "Symbol":
        text, kind = parts
        if not isinstance(text, str) or not text.isidentifier() or kind not in _KINDS:
            raise ValueError(f"{str(parts)[:80]} is no symbol")
        return sympy.Symbol(text, **_KINDS[kind])
    if name == "Rational":
        top, bottom = parts
        if type(top) is not int or type(bottom) is not int or not bottom:
            raise ValueError(f"{str(parts)[:80]} is no quotient")
        return sympy.Rational(top, bottom)
    if name == "Float":
        (text,) = parts
        return sympy.Float(float.fromhex(text))
    if name == "truth":
        return sympy.true if parts == [True] else sympy.false
    if name not in _FUNCTIONS:
        raise ValueError(f"there is no {str(name)[:80]!r}")
    if name == "Piecewise":
        pairs = [[_read(part, depth + 1) for part in pair] for pair in parts]
        return sympy.Piecewise(*[(value, holds) for value, holds in pairs])
    args = [_read(part, depth + 1) for part in parts]
    if name == "Pow" and not _is_small_power(*args):
        raise ValueError("a power of sizes has a small exponent")
    if name in _AS_WRITTEN:
        # What was written is simplified already; sympy takes long to look for more, and imports
        # a part of itself for it.
        return _FUNCTIONS[name](*args, evaluate=False)
    return _FUNCTIONS[name](*args)


def _is_small_power(base: object, exponent: sympy.Basic) -> bool:
    """Whether it can be computed: `2 ** 10 ** 10` would not end."""
    return bool(exponent.is_Integer and abs(int(exponent)) <= 64)


# Symbolic numbers ---------------------------------------------------------------------------------


def of_number(value: torch.SymInt | torch.SymFloat) -> sympy.Basic:
    """The expression of a number, without replacements by guards."""
    expr: sympy.Basic = value.node._expr
    return expr


def simplified(value: torch.SymInt | torch.SymFloat) -> sympy.Basic:
    """The expression of a number, without symbols that a guard equates with something else."""
    expr, shape_env = of_number(value), value.node.shape_env
    if shape_env is None or expr.free_symbols.isdisjoint(shape_env.replacements):
        return expr
    found: sympy.Basic = shape_env.replace(expr)
    return found


def symbols_in(numbers: Sequence[TorchValue]) -> frozenset[sympy.Symbol]:
    """The symbols of some symbolic numbers, without those that a guard equates with others."""
    return frozenset(symbol for each in numbers for symbol in simplified(each).free_symbols)


@functools.lru_cache(maxsize=65536)
def _shown(expr: sympy.Basic) -> str:
    return str(expr)


def environment(shape_env: ShapeEnv | None, numbers: Sequence[object]) -> list[str]:
    """What torch knows of the symbols in `numbers` besides their values in the captured call.

    The values are left out: code that branches on one of them adds an assumption with a guard.
    """
    if shape_env is None or not numbers:
        return []
    known = symbols_in(numbers)
    state = sorted(f"{_shown(a)} := {_shown(b)}" for a, b in shape_env.replacements.items())
    state += [_shown(guard.expr) for guard in shape_env.guards]
    for symbol in sorted(known, key=str):
        state.append(f"{symbol} in {shape_env.var_to_range.get(symbol)}")
    return list(dict.fromkeys(state))


# Symbols with the least and the greatest value that torch takes them to have; None: no bound.
Ranges: TypeAlias = tuple[tuple[str, int | None, int | None], ...]


def ranges(shape_env: ShapeEnv | None, symbols: Collection[sympy.Symbol]) -> Ranges:
    """The bounds of symbols, which some operators narrow without a guard."""
    if shape_env is None:
        return ()
    pairs = [(each, shape_env.var_to_range.get(each)) for each in sorted(symbols, key=str)]
    return tuple(
        (each.name, _bound(known.lower), _bound(known.upper))
        for each, known in pairs
        if known is not None
    )


def _bound(value: object) -> int | None:
    return int(value) if isinstance(value, sympy.Integer) else None


def narrow(shape_env: ShapeEnv | None, symbols: Collection[sympy.Symbol], known: Ranges) -> None:
    """Narrow the bounds of symbols to those that were known when something was made."""
    by_name = {each.name: each for each in symbols}
    for name, lower, upper in known:
        symbol = by_name.get(name)
        if shape_env is not None and symbol is not None:
            bounds = ValueRanges(
                -int_oo if lower is None else lower, int_oo if upper is None else upper
            )
            if shape_env.var_to_range.get(symbol) != bounds:
                shape_env._update_var_to_range(symbol, bounds)


@contextlib.contextmanager
def without_guards(shape_env: ShapeEnv | None) -> Iterator[None]:
    """Let torch ask about sizes, as it does of every new tensor, without recording the answers."""
    if shape_env is None:
        yield
        return
    known, replacements = len(shape_env.guards), dict(shape_env.replacements)
    with shape_env.suppress_guards():
        yield
    if len(shape_env.guards) != known or shape_env.replacements != replacements:
        raise ValueError("what is read would assume something about sizes")


def assume(
    shape_env: ShapeEnv | None, assumed: Sequence[sympy.Basic], is_noted: bool = True
) -> bool:
    """Assume what a cached derivative or program assumes about sizes.

    False, and nothing is assumed, if the sizes of the captured call violate it.  `is_noted`: each
    is added to `assumed(shape_env)`, which the runtime checks because Dynamo does not.
    """
    if shape_env is None:
        return not assumed
    known = {guard.expr for guard in shape_env.guards}
    new = [expr for expr in assumed if expr not in known]
    try:
        with shape_env.suppress_guards():
            if not all(bool(shape_env.evaluate_expr(expr)) for expr in new):
                return False
    except GuardOnDataDependentSymNode:
        return False
    with assumptions(shape_env) if is_noted else contextlib.nullcontext():
        for expr in new:
            shape_env.evaluate_expr(expr)
    return True


def number(
    shape_env: ShapeEnv | None, kind: str, expr: sympy.Basic
) -> float | torch.SymInt | torch.SymFloat:
    """A symbolic number of this expression, over symbols that `shape_env` has."""
    if shape_env is None:
        raise ValueError("sizes are symbols where there are none")
    unknown = [each for each in expr.free_symbols if each not in shape_env.var_to_range]
    if unknown:
        raise ValueError(f"there is no size {unknown[0]}")
    if kind == "float":
        return shape_env.create_symfloatnode(expr, hint=None)
    return shape_env.create_symintnode(expr, hint=None)
