"""Loop nests and plans as text.

kernel tanh_sum(x: f32, out: f32 written; s0, s1)
    parallel for i in range(s0):
        var total = 0.0
        vector for j in range(s1):
            total += tanh(x[i * s1 + j])
        out[i] = total
"""

from __future__ import annotations

from collections.abc import Iterator
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
from adjoint.loops.plan import Launch, LibraryCall, Plan, Product, RowTiles
from adjoint.loops.statements import (
    Accumulator,
    Assign,
    Kernel,
    Loop,
    Mapping,
    Merge,
    Statement,
    Store,
    TeamMemory,
    Update,
    body_of,
    expressions,
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
    team = f" by teams of {kernel.team}" if kernel.team > 1 else ""
    team += f", {kernel.tile.rows} by {kernel.tile.columns}" if kernel.tile else ""
    lines = [f"kernel {kernel.name}({buffers}{extents}){team}"]
    lines += [f"    # {line}" for line in (*kernel.lines, *kernel.remarks)]
    lines += _block(kernel.body, 1)
    return "\n".join(lines) + "\n"


def identity(kernel: Kernel) -> str:
    """A key that two kernels share only if they compute the same; names and user lines aside.

    Each expression occurs in it once, however often it is used: as a tree of text a kernel may be
    exponentially larger.
    """
    numbers = _Numbering()

    def lines(body: tuple[Statement, ...], depth: int) -> Iterator[str]:
        for statement in body:
            operands = [numbers.of(expression) for expression in expressions(statement)]
            yield f"{depth} {type(statement).__name__} {_fields(statement)} {operands}"
            yield from lines(body_of(statement), depth + 1)

    body = list(lines(kernel.body, 0))
    return "\n".join(
        map(str, [kernel.buffers, kernel.extents, kernel.team, kernel.tile, *numbers.known, *body])
    )


def identity_of(expression: Expression) -> str:
    """A key that two expressions share only if they compute the same."""
    numbers = _Numbering()
    numbers.of(expression)
    return "\n".join(numbers.known)


class _Numbering:
    """Value numbering: equal expressions have one number."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self._numbers: dict[int, int] = {}

    def of(self, expression: Expression) -> int:
        if id(expression) not in self._numbers:
            parts = [self.of(child) for child in children(expression)]
            text = f"{_own(expression)} {parts}"
            self._numbers[id(expression)] = self.known.setdefault(text, len(self.known))
        return self._numbers[id(expression)]


def _own(expression: Expression) -> str:
    """An expression without its children."""
    match expression:
        case Constant(value, dtype):
            return f"{value!r} {dtype}"
        case Apply(operator, _, dtype):
            return f"{operator} {dtype}"
        case Load(buffer, _, dtype):
            return f"{buffer}[] {dtype}"
        case Extent(name) | Counter(name) | Name(name):
            return f"{type(expression).__name__} {name} {expression.dtype}"
        case Cast(_, dtype):
            return f"cast {dtype}"
        case Guarded():
            return "guarded"
        case _:
            assert_never(expression)


def _fields(statement: Statement) -> str:
    """The fields of a statement, without its expressions and its body."""
    return " ".join(
        f"{name}={value}"
        for name in statement.__slots__
        if isinstance(value := getattr(statement, name), str | int | tuple | Mapping | torch.dtype)
        and name != "body"
    )


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
        case Accumulator(name, value, per):
            each = f"[{', '.join(counter for counter, _ in per)}]" if per else ""
            yield f"var {name}{each} = {show_expression(value)}"
        case Update(name, operator, value):
            yield _merged(name, operator, value)
        case Store(buffer, offset, value):
            yield f"{buffer}[{show_expression(offset)}] = {show_expression(value)}"
        case Merge(buffer, offset, operator, value, shared):
            word = "shared " if shared else ""
            yield word + _merged(f"{buffer}[{show_expression(offset)}]", operator, value)
        case TeamMemory(name, dtype, count):
            yield f"team {name}: {short(dtype)}[{count}]"
        case _:
            assert_never(statement)


def _merged(target: str, operator: str, value: Expression) -> str:
    if operator in INFIX:
        return f"{target} {INFIX[operator]}= {show_expression(value)}"
    return f"{target} = {operator}({target}, {show_expression(value)})"


def show_plan(plan: Plan) -> str:
    """The kernels, products and library calls of a plan; those of row tiles are indented."""
    lines: list[str] = []
    for step in plan.steps:
        match step:
            case Launch(kernel):
                lines.append(show(kernel))
            case Product():
                lines.append(_part(step))
            case LibraryCall(target):
                lines.append(f"call {getattr(target, '__name__', target)}\n")
            case RowTiles(rows, _, begin, body):
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
