"""Verifies loop nests: names are defined before use, and types agree."""

from __future__ import annotations

from collections.abc import Mapping as Names

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
    walk,
)
from adjoint.loops.operators import OPERATORS
from adjoint.loops.show import show
from adjoint.loops.statements import (
    Accumulator,
    Assign,
    Buffer,
    Kernel,
    Loop,
    Mapping,
    Merge,
    Statement,
    Store,
    TeamMemory,
    Update,
    expressions,
)
from adjoint.loops.statements import walk as walk_statements

# The dtypes that kernels compute with.
DTYPES = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    }
)


class KernelError(Exception):
    """A kernel is malformed: a bug of the stage that built it."""


def verify(kernel: Kernel) -> Kernel:
    """The kernel; raises `KernelError` if it is malformed."""
    _Check(kernel).block(kernel.body, {}, {}, top=True)
    return kernel


class _Check:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.buffers = {buffer.name: buffer for buffer in kernel.buffers}
        self.arrays: dict[str, tuple[torch.dtype, tuple[str, ...]]] = {}
        self.memory: set[str] = set()

    def refuse(self, why: str) -> KernelError:
        return KernelError(f"kernel {self.kernel.name}: {why}\n{show(self.kernel)}")

    def block(
        self,
        body: tuple[Statement, ...],
        names: Names[str, torch.dtype],
        variables: Names[str, torch.dtype],
        top: bool = False,
    ) -> None:
        names, variables = dict(names), dict(variables)
        for statement in body:
            # An accumulator with several elements is visible where its counters are.
            for name, (dtype, counters) in self.arrays.items():
                if all(counter in names for counter in counters):
                    variables[name] = dtype
            for expression in expressions(statement):
                self.expression(expression, {**names, **variables})
            match statement:
                case Loop(counter, start, stop, inner, mapping):
                    for bound in (start, stop):
                        if bound.dtype != torch.int64:
                            raise self.refuse(
                                f"the loop over {counter} is bounded by a {bound.dtype}"
                            )
                    if counter in names or counter in variables:
                        raise self.refuse(f"{counter} counts two loops, one within the other")
                    if mapping is Mapping.PARALLEL:
                        if not top:
                            raise self.refuse(f"the parallel loop over {counter} is not at the top")
                        # It is emitted as a function of its own: no name from outside is visible.
                        names, variables = {}, {}
                        self.team_memory(inner)
                    self.block(inner, {**names, counter: torch.int64}, variables)
                    if mapping is Mapping.PARALLEL:
                        for name in self.memory:
                            del self.buffers[name]
                        self.memory.clear()
                case Accumulator(name, value, per) if per:
                    if name in self.arrays or not all(counter in names for counter, _ in per):
                        raise self.refuse(f"{name} is not one for each turn of loops around it")
                    self.arrays[name] = (value.dtype, tuple(counter for counter, _ in per))
                case Assign(name, value) | Accumulator(name, value):
                    if name in names or name in variables:
                        raise self.refuse(f"{name} is assigned twice")
                    scope = names if isinstance(statement, Assign) else variables
                    scope[name] = value.dtype
                case Update(name, operator, value):
                    self.operator(operator)
                    if name not in variables:
                        raise self.refuse(f"{name} is updated, but is no accumulator here")
                    if variables[name] != value.dtype:
                        raise self.refuse(
                            f"{name} of type {variables[name]} is updated by a {value.dtype}"
                        )
                case Store(buffer, offset, value) | Merge(buffer, offset, _, value):
                    if isinstance(statement, Merge):
                        self.operator(statement.operator)
                    self.offset(offset)
                    target = self.buffers.get(buffer)
                    if target is None or not target.written or target.dtype != value.dtype:
                        raise self.refuse(f"a value of type {value.dtype} is stored in {buffer}")
                case TeamMemory(name):
                    if name not in self.memory:
                        raise self.refuse(f"{name} does not stand in the parallel loop itself")
                case _:
                    assert_never(statement)

    def team_memory(self, body: tuple[Statement, ...]) -> None:
        """One loop that the team divides writes it, and later loops only read it.

        Then the synchronization at the end of each such loop is enough.
        """
        for each in body:
            if isinstance(each, TeamMemory):
                if each.name in self.buffers or each.count <= 0:
                    raise self.refuse(f"{each.name} is no new memory")
                self.memory.add(each.name)
                self.buffers[each.name] = Buffer(each.name, each.dtype, written=True)
        ready: set[str] = set()
        for statement in body if self.memory else ():
            inside = list(walk_statements((statement,)))
            changed = {s.buffer for s in inside if isinstance(s, Store | Merge)} & self.memory
            parts = [part for s in inside for e in expressions(s) for part in walk(e)]
            read = {part.buffer for part in parts if isinstance(part, Load)} & self.memory
            read |= {s.buffer for s in inside if isinstance(s, Merge)} & self.memory
            is_divided = isinstance(statement, Loop) and statement.mapping is Mapping.VECTOR
            for name in sorted(changed):
                if not is_divided:
                    raise self.refuse(f"{name} is stored in by no loop that the team shares out")
                if name in read | ready:
                    raise self.refuse(f"{name} is stored in when it may be read")
            for name in sorted(read - ready):
                raise self.refuse(f"{name} is read before anything is stored in it")
            ready |= changed

    def operator(self, name: str) -> None:
        if name not in OPERATORS:
            raise self.refuse(f"there is no operator {name}")
        if OPERATORS[name].arity != 2:
            raise self.refuse(f"{name} does not combine two values")

    def offset(self, offset: Expression) -> None:
        if offset.dtype != torch.int64:
            raise self.refuse(f"an offset of type {offset.dtype}")

    def expression(self, expression: Expression, names: Names[str, torch.dtype]) -> None:
        for part in walk(expression):
            if part.dtype not in DTYPES:
                raise self.refuse(f"{part.dtype} is no type of kernels")
            match part:
                case Constant() | Cast():
                    pass
                case Counter(name) | Name(name):
                    if name not in names:
                        raise self.refuse(f"{name} is used before it is defined")
                    if names[name] != part.dtype:
                        raise self.refuse(f"{name} of type {names[name]} is used as {part.dtype}")
                case Extent(name):
                    if name not in self.kernel.extents:
                        raise self.refuse(f"{name} is no extent of the kernel")
                case Load(buffer, offset, dtype):
                    self.offset(offset)
                    source = self.buffers.get(buffer)
                    if source is None or source.dtype != dtype:
                        raise self.refuse(f"a value of type {dtype} is read from {buffer}")
                case Guarded(condition, value, otherwise):
                    if condition.dtype != torch.bool:
                        raise self.refuse(f"a guard of type {condition.dtype}")
                    if value.dtype != otherwise.dtype:
                        raise self.refuse(f"{value.dtype} or {otherwise.dtype}")
                case Apply():
                    self.apply(part)
                case _:
                    assert_never(part)

    def apply(self, call: Apply) -> None:
        if call.operator not in OPERATORS:
            raise self.refuse(f"there is no operator {call.operator}")
        try:
            result = OPERATORS[call.operator].result(tuple(arg.dtype for arg in call.args))
        except TypeError as error:
            raise self.refuse(f"{call.operator} of {error}") from error
        if result != call.dtype:
            raise self.refuse(f"{call.operator} gives {result}, not {call.dtype}")
