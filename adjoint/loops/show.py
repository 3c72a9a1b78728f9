"""Loop nests as a program to read.

kernel tanh_sum(x: f32, out: f32 written; s0, s1)
    parallel for i in range(s0):
        var total = 0.0
        vector for j in range(s1):
            total += tanh(x[i * s1 + j])
        out[i] = total
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from textwrap import indent

import torch
from typing_extensions import assert_never

from adjoint.loops.expressions import (
    Apply,
    Cast,
    Constant,
    Counter,
    Expression,
    Extent,
    Guarded,
    Load,
    Name,
    children,
)
from adjoint.loops.plan import Invoke, Launch, Plan, Product, Tiles
from adjoint.loops.statements import (
    Accumulator,
    Assign,
    Kernel,
    Loop,
    Mapping,
    Merge,
    Statement,
    Store,
    Update,
    expressions,
    walk,
)

INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "floordiv": "//",
    "mod": "%",
    "and": "&",
    "or": "|",
    "xor": "^",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}


def short(dtype: torch.dtype) -> str:
    """f32 for torch.float32."""
    name = str(dtype).removeprefix("torch.")
    for long, letter in (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i")):
        if name.startswith(long):
            return letter + name.removeprefix(long)
    return name


def show_expression(expression: Expression) -> str:
    match expression:
        case Constant(value):
            return repr(value)
        case Extent(name) | Counter(name) | Name(name):
            return name
        case Load(buffer, offset):
            return f"{buffer}[{show_expression(offset)}]"
        case Cast(arg, dtype):
            return f"{short(dtype)}({show_expression(arg)})"
        case Guarded(condition, value, otherwise):
            parts = [show_expression(each) for each in (value, condition, otherwise)]
            return f"({parts[0]} if {parts[1]} else {parts[2]})"
        case Apply(operator, args):
            shown = [show_expression(arg) for arg in args]
            if operator in INFIX and len(shown) == 2:
                return f"({shown[0]} {INFIX[operator]} {shown[1]})"
            return f"{operator}({', '.join(shown)})"
        case _:
            assert_never(expression)


def show(kernel: Kernel) -> str:
    buffers = ", ".join(
        f"{b.name}: {short(b.dtype)}{' written' if b.written else ''}" for b in kernel.buffers
    )
    extents = "; " + ", ".join(kernel.extents) if kernel.extents else ""
    lines = [f"kernel {kernel.name}({buffers}{extents})"]
    lines += [f"    # {line}" for line in kernel.lines]
    lines += _block(kernel.body, 1)
    return "\n".join(lines) + "\n"


def identity(kernel: Kernel) -> str:
    """A text that two kernels share only if they compute the same; where from does not matter.

    To read, a constant is a number; but 1.0 / 3.0 is another in float32 than in float64.
    """
    dtypes = [
        short(constant.dtype)
        for statement in walk(kernel.body)
        for expression in expressions(statement)
        for constant in _constants(expression)
    ]
    return f"{show(replace(kernel, name='', lines=()))}constants: {' '.join(dtypes)}\n"


def _constants(expression: Expression) -> Iterator[Constant]:
    """As often as they are shown, in the order of what is shown."""
    if isinstance(expression, Constant):
        yield expression
    for child in children(expression):
        yield from _constants(child)


def _block(body: tuple[Statement, ...], depth: int) -> Iterator[str]:
    for statement in body:
        for line in _statement(statement):
            yield "    " * depth + line
        if isinstance(statement, Loop):
            yield from _block(statement.body, depth + 1)


def _statement(statement: Statement) -> Iterator[str]:
    match statement:
        case Loop(counter, start, stop, _, mapping):
            bounds = [] if isinstance(start, Constant) and start.value == 0 else [start]
            inside = ", ".join(show_expression(each) for each in (*bounds, stop))
            word = "" if mapping is Mapping.SERIAL else f"{mapping.value} "
            yield f"{word}for {counter} in range({inside}):"
        case Assign(name, value):
            yield f"{name} = {show_expression(value)}"
        case Accumulator(name, value):
            yield f"var {name} = {show_expression(value)}"
        case Update(name, operator, value):
            yield _merged(name, operator, value)
        case Store(buffer, offset, value):
            yield f"{buffer}[{show_expression(offset)}] = {show_expression(value)}"
        case Merge(buffer, offset, operator, value):
            yield _merged(f"{buffer}[{show_expression(offset)}]", operator, value)
        case _:
            assert_never(statement)


def _merged(target: str, operator: str, value: Expression) -> str:
    if operator in INFIX:
        return f"{target} {INFIX[operator]}= {show_expression(value)}"
    return f"{target} = {operator}({target}, {show_expression(value)})"


def show_plan(plan: Plan) -> str:
    """The kernels and calls of a plan; what runs row by row stands under its region."""
    lines: list[str] = []
    for step in plan.steps:
        match step:
            case Launch(kernel):
                lines.append(show(kernel))
            case Invoke(target):
                lines.append(f"call {getattr(target, '__name__', target)}\n")
            case Tiles(rows, _, begin, body):
                lines.append(f"for some of {rows} rows at a time:\n")
                parts = [show(each.kernel) for each in begin]
                parts += [_part(each) for each in body]
                lines += [indent(part, "    ") for part in parts]
            case _:
                assert_never(step)
    return "".join(lines)


def _part(step: Launch | Product) -> str:
    if isinstance(step, Launch):
        return show(step.kernel)
    rows, columns, inner = step.shape
    return f"product [{rows}, {inner}] x [{inner}, {columns}]{' summed' * step.sums}\n"
