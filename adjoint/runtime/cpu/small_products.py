"""Small matrix products as native code of our own.

The BLAS has many kernels and chooses one in each call: between other code they are not in the
cache, and a product of a few thousand multiplications waits for them.  Here one short function
serves all small products.  Sums are in the order of the inner dimension, by lanes of a vector where
both factors are contiguous along it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from adjoint.runtime.cpu.function_text import FunctionText

# Products of more multiplications are left to the BLAS.
MAX_MULTIPLICATIONS = 1 << 14

# Where both factors are contiguous along a shorter inner dimension, the BLAS is faster.
MIN_CONTIGUOUS_INNER = 16

# Sizes below this have a product that fits into a word.
_MAX_SIZE = 1 << 20

# The bytes of a vector; rows or columns of the result that are computed together.
_VECTOR_BYTES = 32
_BLOCK = 4

_ELEMENT_BYTES = {"float": 4, "double": 8}
_SUFFIX = {"float": "f32", "double": "f64"}


class _Function(FunctionText):
    """A function without a result, with loops over counters and sums of scalars or vectors."""

    def __init__(self, head: str, kind: str) -> None:
        super().__init__(f"void {head}")
        self.kind = kind

    def text(self) -> str:
        self.line("ret void")
        return super().text()

    def variable(self, kind: str) -> str:
        return self.allocated(kind, "m")

    def add(self, a: str | int, b: str | int) -> str:
        return self.do(f"add i64 {a}, {b}")

    def mul(self, a: str | int, b: str | int) -> str:
        return self.do(f"mul i64 {a}, {b}")

    def at(self, base: str, index: str) -> str:
        return self.do(f"getelementptr {self.kind}, ptr {base}, i64 {index}")

    def load(self, kind: str, address: str) -> str:
        return self.do(f"load {kind}, ptr {address}, align {_ELEMENT_BYTES[self.kind]}")

    def store(self, kind: str, value: str, address: str) -> None:
        self.line(f"store {kind} {value}, ptr {address}, align {_ELEMENT_BYTES[self.kind]}")

    @contextlib.contextmanager
    def loop(self, counter: str, stop: str, step: int) -> Iterator[str]:
        """`while counter + step <= stop: ...; counter += step`, from the value of `counter`."""
        name = self.unique("l")
        self.go(f"label %{name}")
        self.label(name)
        index = self.do(f"load i64, ptr {counter}")
        end = self.add(index, step)
        fits = self.do(f"icmp sle i64 {end}, {stop}")
        self.go(f"i1 {fits}, label %{name}.body, label %{name}.end")
        self.label(f"{name}.body")
        yield index
        self.line(f"store i64 {end}, ptr {counter}")
        self.go(f"label %{name}")
        self.label(f"{name}.end")

    def counter(self) -> str:
        made = self.variable("i64")
        self.line(f"store i64 0, ptr {made}")
        return made

    def restart(self, counter: str) -> None:
        self.line(f"store i64 0, ptr {counter}")

    def start(self, kind: str, sums: Sequence[str], results: Sequence[str]) -> None:
        """Let sums begin with what the result has if `%adds`, else with zero."""
        for total in sums:
            self.store(kind, "0.0" if kind == self.kind else "zeroinitializer", total)
        name = self.unique("s")
        self.go(f"i1 %adds, label %{name}, label %{name}.end")
        self.label(name)
        for total, result in zip(sums, results, strict=True):
            self.store(kind, self.load(kind, result), total)
        self.go(f"label %{name}.end")
        self.label(f"{name}.end")

    def lanes(self) -> int:
        return _VECTOR_BYTES // _ELEMENT_BYTES[self.kind]

    def vector(self) -> str:
        return f"<{self.lanes()} x {self.kind}>"

    def fused(self, kind: str, a: str, b: str, c: str) -> str:
        """a b + c"""
        name = f"@llvm.fmuladd.{self._of(kind)}"
        return self.do(f"call {kind} {name}({kind} {a}, {kind} {b}, {kind} {c})")

    def summed(self, vector: str) -> str:
        """The sum of the lanes of a vector."""
        name = f"@llvm.vector.reduce.fadd.{self._of(self.vector())}"
        return self.do(
            f"call reassoc {self.kind} {name}({self.kind} 0.0, {self.vector()} {vector})"
        )

    def splat(self, kind: str, value: str) -> str:
        """The number in all lanes, if `kind` is a vector."""
        if kind == self.kind:
            return value
        one = self.do(f"insertelement {kind} poison, {self.kind} {value}, i64 0")
        mask = f"<{self.lanes()} x i32> zeroinitializer"
        return self.do(f"shufflevector {kind} {one}, {kind} poison, {mask}")

    def _of(self, kind: str) -> str:
        suffix = _SUFFIX[self.kind]
        return suffix if kind == self.kind else f"v{self.lanes()}{suffix}"


_ROWS = (
    "ptr %a, i64 %a.row, i64 %a.inner, ptr %b, i64 %ldb, ptr %c, i64 %ldc, i64 %n, i64 %k, i1 %adds"
)


def _by_columns(kind: str, rows: int) -> str:
    """Some rows of the result, a vector of columns at a time: b is contiguous along columns."""
    f = _Function(f"@adjoint.columns.{kind}.{rows}({_ROWS})", kind)
    column, inner = f.counter(), f.counter()
    sums = {each: [f.variable(each) for _ in range(rows)] for each in (f.vector(), kind)}
    starts = [f.mul(row, "%a.row") for row in range(rows)]
    results = [f.at("%c", f.mul(row, "%ldc")) for row in range(rows)]
    for each, step in ((f.vector(), f.lanes()), (kind, 1)):
        with f.loop(column, "%n", step) as j:
            f.start(each, sums[each], [f.at(result, j) for result in results])
            f.restart(inner)
            with f.loop(inner, "%k", 1) as p:
                right = f.load(each, f.at("%b", f.add(f.mul(p, "%ldb"), j)))
                along = f.mul(p, "%a.inner")
                for start, total in zip(starts, sums[each], strict=True):
                    left = f.splat(each, f.load(kind, f.at("%a", f.add(start, along))))
                    f.store(each, f.fused(each, left, right, f.load(each, total)), total)
            for result, total in zip(results, sums[each], strict=True):
                f.store(each, f.load(each, total), f.at(result, j))
    return f.text()


def _by_inner(kind: str, columns: int) -> str:
    """Some columns of one row of the result: both factors are contiguous along the inner size."""
    head = f"@adjoint.inner.{kind}.{columns}(ptr %a, ptr %b, i64 %ldb, ptr %c, i64 %k, i1 %adds)"
    f = _Function(head, kind)
    inner = f.counter()
    vectors = [f.variable(f.vector()) for _ in range(columns)]
    totals = [f.variable(kind) for _ in range(columns)]
    rights = [f.at("%b", f.mul(column, "%ldb")) for column in range(columns)]
    results = [f.at("%c", str(column)) for column in range(columns)]
    for total in vectors:
        f.store(f.vector(), "zeroinitializer", total)
    f.start(kind, totals, results)
    for each, step, sums in ((f.vector(), f.lanes(), vectors), (kind, 1, totals)):
        with f.loop(inner, "%k", step) as p:
            left = f.load(each, f.at("%a", p))
            for right, total in zip(rights, sums, strict=True):
                value = f.fused(each, left, f.load(each, f.at(right, p)), f.load(each, total))
                f.store(each, value, total)
    for result, vector, total in zip(results, vectors, totals, strict=True):
        value = f.do(f"fadd {kind} {f.summed(f.load(f.vector(), vector))}, {f.load(kind, total)}")
        f.store(kind, value, result)
    return f.text()


def _all_by_columns(kind: str) -> str:
    f = _Function(f"@adjoint.columns.{kind}({_ROWS}, i64 %m)", kind)
    row = f.counter()
    for rows in (_BLOCK, 1):
        with f.loop(row, "%m", rows) as i:
            a, c = f.at("%a", f.mul(i, "%a.row")), f.at("%c", f.mul(i, "%ldc"))
            f.line(
                f"call void @adjoint.columns.{kind}.{rows}(ptr {a}, i64 %a.row, i64 %a.inner, "
                f"ptr %b, i64 %ldb, ptr {c}, i64 %ldc, i64 %n, i64 %k, i1 %adds)"
            )
    return f.text()


def _all_by_inner(kind: str) -> str:
    f = _Function(
        f"@adjoint.inner.{kind}(ptr %a, i64 %lda, ptr %b, i64 %ldb, ptr %c, i64 %ldc, "
        "i64 %m, i64 %n, i64 %k, i1 %adds)",
        kind,
    )
    row, column = f.counter(), f.counter()
    with f.loop(row, "%m", 1) as i:
        a, c = f.at("%a", f.mul(i, "%lda")), f.at("%c", f.mul(i, "%ldc"))
        f.restart(column)
        for columns in (_BLOCK, 1):
            with f.loop(column, "%n", columns) as j:
                b = f.at("%b", f.mul(j, "%ldb"))
                f.line(
                    f"call void @adjoint.inner.{kind}.{columns}(ptr {a}, ptr {b}, i64 %ldb, "
                    f"ptr {f.at(c, j)}, i64 %k, i1 %adds)"
                )
    return f.text()


def text(kind: str) -> str:
    """Defines `@adjoint.small.{kind}`, which computes a product if it is small.

    Arguments: a, lda, whether a is transposed, the same of b, c, ldc, rows, columns, inner size,
    whether to add to c.  Returns whether it has computed the product.
    """
    functions = [_by_columns(kind, rows) for rows in (_BLOCK, 1)]
    functions += [_by_inner(kind, columns) for columns in (_BLOCK, 1)]
    functions += [_all_by_columns(kind), _all_by_inner(kind)]
    suffix, lanes = _SUFFIX[kind], _VECTOR_BYTES // _ELEMENT_BYTES[kind]
    vector = f"<{lanes} x {kind}>"
    declared = (
        f"declare {kind} @llvm.fmuladd.{suffix}({kind}, {kind}, {kind})\n"
        f"declare {vector} @llvm.fmuladd.v{lanes}{suffix}({vector}, {vector}, {vector})\n"
        f"declare {kind} @llvm.vector.reduce.fadd.v{lanes}{suffix}({kind}, {vector})\n"
    )
    choice = _CHOICE.format(
        kind=kind, most=MAX_MULTIPLICATIONS, size=_MAX_SIZE, inner=MIN_CONTIGUOUS_INNER
    )
    return declared + "".join(functions) + choice


_CHOICE = """\
define internal i1 @adjoint.small.{kind}(ptr %a, i64 %lda, i1 %a.turned, ptr %b, i64 %ldb,
    i1 %b.turned, ptr %c, i64 %ldc, i64 %m, i64 %n, i64 %k, i1 %adds) {{
entry:
  %mn = or i64 %m, %n
  %mnk = or i64 %mn, %k
  %is.short = icmp ult i64 %mnk, {size}
  %area = mul i64 %m, %n
  %work = mul i64 %area, %k
  %is.little = icmp ule i64 %work, {most}
  %is.small = and i1 %is.short, %is.little
  br i1 %is.small, label %small, label %no
small:
  br i1 %b.turned, label %turned, label %straight
straight:
  %a.row = select i1 %a.turned, i64 1, i64 %lda
  %a.inner = select i1 %a.turned, i64 %lda, i64 1
  call void @adjoint.columns.{kind}(ptr %a, i64 %a.row, i64 %a.inner, ptr %b, i64 %ldb, ptr %c,
    i64 %ldc, i64 %n, i64 %k, i1 %adds, i64 %m)
  ret i1 true
turned:
  %is.flat = icmp slt i64 %k, {inner}
  %is.other = or i1 %a.turned, %is.flat
  br i1 %is.other, label %no, label %inner
inner:
  call void @adjoint.inner.{kind}(ptr %a, i64 %lda, ptr %b, i64 %ldb, ptr %c, i64 %ldc, i64 %m,
    i64 %n, i64 %k, i1 %adds)
  ret i1 true
no:
  ret i1 false
}}
"""
