"""Loop unswitching: conditions that are the same for all iterations of an unrolled loop.

An element of a concatenation is read from one of its parts.  Where the parts begin at multiples of
the trip count, all iterations read from the same part.  Then the branch is taken once, outside the
loop, and adjacent elements are loaded as one vector.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from adjoint.emit.atomics import counters_of, is_multiple
from adjoint.loops.expressions import Apply, Constant, Counter, Expression, Guarded, children
from adjoint.loops.statements import Loop, expressions, walk


def uniform_guard(
    loop: Loop, settled: Mapping[int, Expression]
) -> tuple[Guarded, Expression] | None:
    """A guarded expression whose condition all iterations of `loop` share, and that condition.

    `settled`: guarded expressions that have been branched on, and the value they take here.
    """
    seen: set[int] = set()

    def search(expression: Expression) -> tuple[Guarded, Expression] | None:
        if id(expression) in seen:
            return None
        seen.add(id(expression))
        if id(expression) in settled:
            return search(settled[id(expression)])
        if isinstance(expression, Guarded):
            condition = hoisted(expression.condition, loop)
            if condition is not None:
                return expression, condition
        found = map(search, children(expression))
        return next((guard for guard in found if guard is not None), None)

    for statement in walk(loop.body):
        for expression in expressions(statement):
            found = search(expression)
            if found is not None:
                return found
    return None


def hoisted(condition: Expression, loop: Loop) -> Expression | None:
    """An equivalent condition without the counter of `loop`; None if iterations may differ."""
    if loop.counter not in counters_of(condition):
        return condition
    trips = int(loop.stop.value) if isinstance(loop.stop, Constant) else 0
    match condition:
        case Apply("and", (left, right)):
            one, other = hoisted(left, loop), hoisted(right, loop)
            if one is None or other is None:
                return None
            return Apply("and", (one, other), torch.bool)
        case Apply(
            "lt" | "ge" as order, (Apply("add", (rest, Counter(name))), Constant(value) as bound)
        ) if name == loop.counter and trips:
            # rest + counter < bound for all counters below trips, or for none: rest and the bound
            # are multiples of trips.
            is_aligned = loop.counter not in counters_of(rest) and is_multiple(rest, trips)
            if is_aligned and int(value) % trips == 0:
                return Apply(order, (rest, bound), torch.bool)
            return None
        case _:
            return None
