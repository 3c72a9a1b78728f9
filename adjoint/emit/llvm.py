"""Kernels for the CPU, as a module of LLVM IR text.

A kernel is `void @name(ptr %args, i64 %threads)`: `args` holds the address of each buffer, then
each extent.  Each parallel loop, and each run of statements between two of them, is a function of
its own with `noalias` buffers: LLVM may keep their elements in registers, and vectorize.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from adjoint.emit.arithmetic import Callees
from adjoint.emit.body import METADATA, Body
from adjoint.loops.statements import Kernel, Loop, Mapping, Statement

HEADER = """\
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
"""


def emit_module(kernels: Sequence[Kernel], attributes: str = "", vector_bytes: int = 16) -> str:
    """A module that defines every kernel.

    `attributes` are those of its functions; `vector_bytes`, those of a vector register.
    """
    callees = Callees(vector_bytes=vector_bytes, attributes=attributes)
    functions = ["\n".join(_KernelText(kernel, callees).text()) for kernel in kernels]
    return "\n".join(
        [
            HEADER,
            *callees.defined(),
            *functions,
            f"attributes #0 = {{ nounwind {attributes} }}",
            METADATA,
        ]
    )


class _KernelText:
    """The text of one kernel: a dispatching function, and one function for each part."""

    def __init__(self, kernel: Kernel, callees: Callees) -> None:
        self.kernel = kernel
        self.callees = callees
        self.parameters = [f"ptr noalias %b.{b.name}" for b in kernel.buffers]
        self.parameters += [f"i64 %e.{name}" for name in kernel.extents]

    def text(self) -> Iterator[str]:
        calls: list[str] = []
        parts = list(_parts(self.kernel.body))
        for number, part in enumerate(parts):
            name = f"{self.kernel.name}.{number}"
            if isinstance(part, Loop):
                yield from self.parallel(name, part)
                calls.append(
                    f"  call void @GOMP_parallel(ptr @{name}.share, ptr %args, i32 %n, i32 0)"
                )
            else:
                body = Body(self.callees)
                body.block(part)
                yield from self.function(name, [], body)
                calls.append(f"  call void @{name}({', '.join(self.arguments())})")
        yield f"define void @{self.kernel.name}(ptr %args, i64 %threads) #0 {{"
        yield "  %n = trunc i64 %threads to i32"
        yield from self.unpacked()
        yield from calls
        yield "  ret void"
        yield "}"

    def function(self, name: str, extra: list[str], body: Body) -> Iterator[str]:
        # Inlined, it would lose its `noalias` arguments.
        parameters = ", ".join([*self.parameters, *extra])
        return body.function(f"internal void @{name}({parameters}) #0 noinline")

    def parallel(self, name: str, loop: Loop) -> Iterator[str]:
        """The loop over a range of iterations, and a function that calls it for one thread."""
        body = Body(self.callees)
        body.loop_over(loop, "%from", "%to")
        yield from self.function(name, ["i64 %from", "i64 %to"], body)
        bounds = Body(self.callees)
        stop = bounds.value(loop.stop)
        yield f"define internal void @{name}.share(ptr %args) #0 {{"
        yield from self.unpacked()
        yield from bounds.lines
        yield "  %t32 = call i32 @omp_get_thread_num()"
        yield "  %n32 = call i32 @omp_get_num_threads()"
        yield "  %t = zext i32 %t32 to i64"
        yield "  %n = zext i32 %n32 to i64"
        yield "  %next = add i64 %t, 1"
        yield f"  %low = mul i64 %t, {stop}"
        yield "  %from = udiv i64 %low, %n"
        yield f"  %high = mul i64 %next, {stop}"
        yield "  %to = udiv i64 %high, %n"
        yield f"  call void @{name}({', '.join([*self.arguments(), 'i64 %from', 'i64 %to'])})"
        yield "  ret void"
        yield "}"

    def arguments(self) -> list[str]:
        return [parameter.replace("noalias ", "") for parameter in self.parameters]

    def unpacked(self) -> Iterator[str]:
        """The parameters, loaded from `args`."""
        for number, parameter in enumerate(self.arguments()):
            kind, name = parameter.split()
            yield f"  %at.{number} = getelementptr i64, ptr %args, i64 {number}"
            yield f"  {name} = load {kind}, ptr %at.{number}"


def _parts(body: tuple[Statement, ...]) -> Iterator[Loop | tuple[Statement, ...]]:
    """Parallel loops, and the runs of statements between them."""
    between: list[Statement] = []
    for statement in body:
        if isinstance(statement, Loop) and statement.mapping is Mapping.PARALLEL:
            if between:
                yield tuple(between)
            between = []
            yield statement
        else:
            between.append(statement)
    if between:
        yield tuple(between)
