"""Choices that are the same for all turns of a loop.

A row put together of several tensors reads each element from one of them.  Where the parts begin at
multiples of what a thread takes at a time, all its elements are from the same one: a thread chooses
once, and reads neighbours as one.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from adjoint.emit.atomics import counters_of, is_multiple
from adjoint.loops.expressions import Apply, Constant, Counter, Expression, Guarded, children
from adjoint.loops.statements import Loop, expressions, walk


def choice_in(loop: Loop, settled: Mapping[int, Expression]) -> tuple[Guarded, Expression] | None:
    """An expression with a choice that all turns of `loop` make alike, and its condition.

    `settled`: what others are, for which the choice has been made.
    """
    seen: set[int] = set()

    def look(expression: Expression) -> tuple[Guarded, Expression] | None:
        if id(expression) in seen:
            return None
        seen.add(id(expression))
        if id(expression) in settled:
            return look(settled[id(expression)])
        if isinstance(expression, Guarded):
            condition = for_all_turns(expression.condition, loop)
            if condition is not None:
                return expression, condition
        found = map(look, children(expression))
        return next((each for each in found if each is not None), None)

    for statement in walk(loop.body):
        for each in expressions(statement):
            found = look(each)
            if found is not None:
                return found
    return None


def for_all_turns(condition: Expression, loop: Loop) -> Expression | None:
    """A condition that says the same without the counter of `loop`; None if there is none."""
    if loop.counter not in counters_of(condition):
        return condition
    turns = loop.stop.value if isinstance(loop.stop, Constant) else 0
    match condition:
        case Apply("and", (left, right)):
            both = [for_all_turns(each, loop) for each in (left, right)]
            return None if None in both else Apply("and", tuple(both), torch.bool)  # type: ignore[arg-type]
        case Apply("lt" | "ge" as order, (Apply("add", (rest, Counter(name))), Constant(value))):
            # Between two multiples of the number of turns, no turn comes to another one.
            first = loop.counter not in counters_of(rest) and is_multiple(rest, int(turns) or 1)
            if name == loop.counter and turns and first and int(value) % int(turns) == 0:
                return Apply(order, (rest, condition.args[1]), torch.bool)
    return None
