"""Wrong rules, planted so that `check` can find them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from adjoint.loops import pointwise
from adjoint.loops.expressions import Apply, Expression
from adjoint.loops.statements import Kernel, Statement, with_expressions
from adjoint.loops.statements import Loop as LoopStatement
from adjoint.lower import planning
from adjoint.lower.groups import Group
from adjoint.rules import registry

aten = torch.ops.aten


@contextlib.contextmanager
def _entry(table: dict[Any, Any], key: Any, value: Any) -> Iterator[None]:
    before = table[key]
    table[key] = value
    try:
        yield
    finally:
        table[key] = before


def wrong_kernel(op: Any) -> contextlib.AbstractContextManager[None]:
    """Kernels that compute 1.01 times what the op is."""
    right = pointwise.TABLE[op]
    formula = right.formula
    wrong = replace(right, formula=lambda *args, **kwargs: formula(*args, **kwargs) * 1.01)
    return _entry(pointwise.TABLE, op, wrong)


def wrong_rule(op: Any, slope: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    """A rule by which the op of one argument has this slope."""
    return _entry(registry.VJPS, op, lambda cotangent, out, x: (cotangent * slope(x),))


@contextlib.contextmanager
def wrong_fusion(one: str, other: str, instead: str) -> Iterator[None]:
    """A fused loop nest that has both operators computes something else `instead` of one."""
    module: Any = planning
    right = module.nest_of

    def nest_of(group: Group, stored: set[torch.fx.Node], name: str = "kernel") -> Any:
        nest = right(group, stored, name)
        ops = {str(item.node.target) for item in group.items}
        if not {one, other} <= {each.split(".")[1] for each in ops if "." in each}:
            return nest
        return replace(nest, kernel=_swapped(nest.kernel, one, instead))

    module.nest_of = nest_of
    try:
        yield
    finally:
        module.nest_of = right


def _swapped(kernel: Kernel, one: str, other: str) -> Kernel:
    def expression(given: Expression) -> Expression:
        if not isinstance(given, Apply):
            return given
        name = other if given.operator == one else given.operator
        return replace(given, operator=name, args=tuple(map(expression, given.args)))

    def statement(given: Statement) -> Statement:
        made = with_expressions(given, expression)
        if isinstance(made, LoopStatement):
            return replace(made, body=tuple(map(statement, made.body)))
        return made

    return replace(kernel, body=tuple(map(statement, kernel.body)))
