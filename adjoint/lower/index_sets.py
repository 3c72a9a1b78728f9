"""Index set splitting: a loop over the elements of a concatenation becomes a loop for each part.

    for i in range(96):                            for i in range(64):
        b[i] = x[i] if i < 64 else y[i - 64]   ->      b[i] = x[i]
                                                   for i in range(64, 96):
                                                       b[i] = y[i - 64]

A CPU vectorizes loops without branches.  Concatenations, paddings and the transposes of slices
compare the counters of their loops with constants; between two such constants each condition always
holds, or never.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch

from adjoint.loops.expressions import (
    Apply,
    Constant,
    Counter,
    Expression,
    Guarded,
    Name,
    apply,
    integer,
    substituted,
)
from adjoint.loops.expressions import walk as walk_expression
from adjoint.loops.statements import (
    Accumulator,
    Assign,
    Kernel,
    Loop,
    Mapping,
    Statement,
    Update,
    expressions,
    walk,
    with_expressions,
)

# Parts of one loop.
MAX_PARTS = 64

# Expressions in all parts of a loop together, and by which factor there may be more than before:
# each part is compiled.
MAX_EXPRESSIONS = 2048
MAX_GROWTH = 4

_COMPARISONS = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}


def split_index_sets(kernel: Kernel) -> Kernel:
    """The kernel with loops split where conditions on their counters change."""
    found = _all(kernel.body)
    if not any(isinstance(each, Apply) and each.operator in _COMPARISONS for each in found):
        return kernel
    kept = {name for each in walk(kernel.body) for name, _ in _per(each)}
    body = _split(kernel.body, kept)
    return kernel if body is kernel.body else replace(kernel, body=body)


def _all(body: tuple[Statement, ...]) -> list[Expression]:
    """The expressions of statements, each once."""
    seen: set[int] = set()
    found = [each for statement in walk(body) for each in expressions(statement)]
    return [part for each in found for part in walk_expression(each, seen)]


def _per(statement: Statement) -> tuple[tuple[str, int], ...]:
    """The loops that an accumulator has a variable for each iteration of."""
    return statement.per if isinstance(statement, Accumulator) else ()


def _split(body: tuple[Statement, ...], kept: set[str]) -> tuple[Statement, ...]:
    """Statements with the loops in them split, the outer ones first; `kept`: counters of loops
    that stay whole."""
    made: list[Statement] = []
    for statement in body:
        if not isinstance(statement, Loop):
            made.append(statement)
            continue
        for part in _parts(statement, kept):
            inner = _split(part.body, kept)
            made.append(part if inner is part.body else replace(part, body=inner))
    same = len(made) == len(body) and all(a is b for a, b in zip(made, body, strict=True))
    return body if same else tuple(made)


def _parts(loop: Loop, kept: set[str]) -> list[Loop]:
    """The loops that a loop becomes; the loop itself if it is not split."""
    if loop.mapping is Mapping.PARALLEL or loop.counter in kept:
        return [loop]
    inside = _all(loop.body)
    cuts = {cut for each in inside for cut in _cuts(each, loop.counter)}
    if isinstance(loop.start, Constant):
        cuts = {cut for cut in cuts if cut > int(loop.start.value)}
    if isinstance(loop.stop, Constant):
        cuts = {cut for cut in cuts if cut < int(loop.stop.value)}
    if not cuts or len(cuts) >= MAX_PARTS:
        return [loop]
    bounds = itertools.pairwise([None, *sorted(cuts), None])
    names = [each.name for each in walk(loop.body) if isinstance(each, Assign | Accumulator)]
    parts = [
        _between(loop, first, last, {each: f"{each}.{number}" for each in names})
        for number, (first, last) in enumerate(bounds)
    ]
    # Expressions that all parts share are compiled once for each part.
    count = sum(len(_all(each.body)) for each in parts)
    return parts if count <= max(MAX_EXPRESSIONS, MAX_GROWTH * len(inside)) else [loop]


def _position(expression: Expression, counter: str) -> int | None:
    """What an expression adds to the counter; None if it is something else."""
    match expression:
        case Counter(name):
            return 0 if name == counter else None
        case Apply("add", (left, Constant(value))) | Apply("add", (Constant(value), left)):
            inner = _position(left, counter)
            return None if inner is None else inner + int(value)
        case Apply("sub", (left, Constant(value))):
            inner = _position(left, counter)
            return None if inner is None else inner - int(value)
        case _:
            return None


def _comparison(expression: Expression, counter: str) -> tuple[str, int] | None:
    """The operator and the number of a comparison of the counter with a number."""
    match expression:
        case Apply(operator, (left, Constant(value))) if operator in _COMPARISONS:
            offset = _position(left, counter)
            return None if offset is None else (operator, int(value) - offset)
        case _:
            return None


def _cuts(expression: Expression, counter: str) -> tuple[int, ...]:
    """The values of the counter at which a comparison may change from the value before."""
    match _comparison(expression, counter):
        case ("lt" | "ge", bound):
            return (bound,)
        case ("le" | "gt", bound):
            return (bound + 1,)
        case ("eq" | "ne", bound):
            return (bound, bound + 1)
        case _:
            return ()


def _between(loop: Loop, first: int | None, last: int | None, names: dict[str, str]) -> Loop:
    """The iterations from `first` to before `last`, between which no comparison changes.

    None: from the start of the loop, or to its end.  `names`: of what is assigned inside, in this
    part, since a kernel has each name once.
    """
    memo: dict[int, Expression] = {}
    # One of them is a number: any counter between them says what holds for all.
    inside = first if first is not None else last - 1 if last is not None else 0

    def settled(expression: Expression) -> Expression | None:
        found = _comparison(expression, loop.counter)
        if found is not None:
            operator, bound = found
            return Constant(_COMPARISONS[operator](inside, bound), torch.bool)
        match expression:
            case Name(name, dtype) if name in names:
                return Name(names[name], dtype)
            case Guarded(condition, value, otherwise) | Apply(
                "select", (condition, value, otherwise)
            ):
                known = changed(condition)
                if isinstance(known, Constant):
                    return changed(value if known.value else otherwise)
            case Apply("and", (left, right)) if expression.dtype == torch.bool:
                one, other = changed(left), changed(right)
                if isinstance(one, Constant):
                    return other if one.value else one
                if isinstance(other, Constant):
                    return one if other.value else other
        return None

    def changed(expression: Expression) -> Expression:
        return substituted(expression, settled, memo)

    def statement_of(each: Statement) -> Statement:
        new = with_expressions(each, changed)
        if isinstance(new, Assign | Accumulator | Update) and new.name in names:
            return replace(new, name=names[new.name])
        if isinstance(new, Loop):
            return replace(new, body=tuple(map(statement_of, new.body)))
        return new

    start = loop.start if first is None else _bound("maximum", loop.start, first)
    stop = loop.stop if last is None else _bound("minimum", loop.stop, last)
    return replace(loop, start=start, stop=stop, body=tuple(map(statement_of, loop.body)))


def _bound(operator: str, bound: Expression, cut: int) -> Expression:
    """A bound of a loop that is cut there, which is inside of constant bounds."""
    is_constant = isinstance(bound, Constant)
    return integer(cut) if is_constant else apply(operator, bound, integer(cut))
