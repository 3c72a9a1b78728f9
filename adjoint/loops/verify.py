"""Whether a loop nest is well formed: names defined before use, types that agree."""

from __future__ import annotations

from adjoint.loops.expressions import Apply, Counter, Expression, Extent, Guarded, Load, Name, walk
from adjoint.loops.operators import OPERATORS
from adjoint.loops.show import show
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
)


class KernelError(Exception):
    """A kernel that is not well formed: a defect of the stage that made it."""


def verify(kernel: Kernel) -> Kernel:
    """The kernel, or an error that says what is wrong with it."""
    _Check(kernel).block(kernel.body, frozenset(), frozenset(), top=True)
    return kernel


class _Check:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.buffers = {buffer.name: buffer for buffer in kernel.buffers}

    def refuse(self, why: str) -> KernelError:
        return KernelError(f"kernel {self.kernel.name}: {why}\n{show(self.kernel)}")

    def block(
        self,
        body: tuple[Statement, ...],
        names: frozenset[str],
        variables: frozenset[str],
        top: bool = False,
    ) -> None:
        for statement in body:
            for expression in expressions(statement):
                self.expression(expression, names | variables)
            match statement:
                case Loop(counter, _, _, inner, mapping):
                    if mapping is Mapping.PARALLEL and not top:
                        raise self.refuse(f"the parallel loop over {counter} is not at the top")
                    if counter in names | variables:
                        raise self.refuse(f"{counter} counts two loops, one within the other")
                    self.block(inner, names | {counter}, variables)
                case Assign(name):
                    if name in names | variables:
                        raise self.refuse(f"{name} is assigned twice")
                    names |= {name}
                case Accumulator(name):
                    if name in names | variables:
                        raise self.refuse(f"{name} is assigned twice")
                    variables |= {name}
                case Update(name, operator, _):
                    self.operator(operator)
                    if name not in variables:
                        raise self.refuse(f"{name} is updated, but is no accumulator here")
                case Store(buffer, _, value) | Merge(buffer, _, _, value):
                    if isinstance(statement, Merge):
                        self.operator(statement.operator)
                    held = self.buffers.get(buffer)
                    if held is None or not held.written or held.dtype != value.dtype:
                        raise self.refuse(f"a value of type {value.dtype} is stored in {buffer}")

    def operator(self, name: str) -> None:
        if OPERATORS[name].arity != 2:
            raise self.refuse(f"{name} does not combine two values")

    def expression(self, expression: Expression, names: frozenset[str]) -> None:
        for each in walk(expression):
            if isinstance(each, Counter | Name) and each.name not in names:
                raise self.refuse(f"{each.name} is used before it is defined")
            if isinstance(each, Extent) and each.name not in self.kernel.extents:
                raise self.refuse(f"{each.name} is no extent of the kernel")
            if isinstance(each, Load):
                held = self.buffers.get(each.buffer)
                if held is None or held.dtype != each.dtype:
                    raise self.refuse(f"a value of type {each.dtype} is read from {each.buffer}")
            if isinstance(each, Guarded) and each.value.dtype != each.otherwise.dtype:
                raise self.refuse(f"{each.value.dtype} or {each.otherwise.dtype}")
            if isinstance(each, Apply):
                try:
                    OPERATORS[each.operator].result(tuple(arg.dtype for arg in each.args))
                except TypeError as error:
                    raise self.refuse(f"{each.operator} of {error}") from error
