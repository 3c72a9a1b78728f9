"""Matrix products on the CPU: native code for small ones, else calls of the BLAS in torch's
library."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable

import torch

from adjoint.loops.plan import Matrix, Product, Scratch
from adjoint.runtime.cpu import small_products
from adjoint.runtime.cpu.externals import external
from adjoint.runtime.cpu.residents import resident
from adjoint.runtime.plans.hostcode import HostCode, Value, Word, WordAddress

# The BLAS function of a dtype, and LLVM's type.
GEMM_OF = {torch.float32: ("sgemm_", "float"), torch.float64: ("dgemm_", "double")}

# BLAS is column-major: row-major C = A B is column-major C' = B' A'.
GEMM = """\
declare void @{name}(ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr)

; args: a, lda, transpose a, b, ldb, transpose b, c, ldc, rows, columns, inner, accumulate, and how
; many bytes behind a and b the matrices begin
define void @adjoint.{name}(ptr %args, i64 %threads) {{
  %alpha = alloca {kind}
  %beta = alloca {kind}
  store {kind} 1.0, ptr %alpha
{loads}
  %adds = icmp ne i64 %v11, 0
  %keep = select i1 %adds, {kind} 1.0, {kind} 0.0
  store {kind} %keep, ptr %beta
  %a.at = add i64 %v0, %v12
  %b.at = add i64 %v3, %v13
  %a = inttoptr i64 %a.at to ptr
  %b = inttoptr i64 %b.at to ptr
  %c = inttoptr i64 %v6 to ptr
{flush}
  %a.turned = icmp eq i64 %v2, {turned}
  %b.turned = icmp eq i64 %v5, {turned}
  %done = call i1 @adjoint.small.{kind}(ptr %a, i64 %v1, i1 %a.turned, ptr %b, i64 %v4,
    i1 %b.turned, ptr %c, i64 %v7, i64 %v8, i64 %v9, i64 %v10, i1 %adds)
  br i1 %done, label %end, label %library
library:
  call void @{name}(ptr %p5, ptr %p2, ptr %p9, ptr %p8, ptr %p10, ptr %alpha, ptr %b,
    ptr %p4, ptr %a, ptr %p1, ptr %beta, ptr %c, ptr %p7)
  br label %end
end:
{restore}
  ret void
}}
"""

# Products of tiles flush subnormals to zero (the FTZ and DAZ bits of MXCSR): they vanish in the
# sums, and arithmetic with them is microcoded.
FLUSH = """\
  %before = alloca i32
  %during = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %before)
  %old = load i32, ptr %before
  %new = or i32 %old, 32832
  store i32 %new, ptr %during
  call void @llvm.x86.sse.ldmxcsr(ptr %during)
"""
RESTORE = "  call void @llvm.x86.sse.ldmxcsr(ptr %before)"
DECLARED = """\
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
"""


# Positions among the arguments of a product.
LEFT, RIGHT, RESULT, ROWS, INNER = 0, 3, 6, 8, 10


def _gemm_text(name: str, kind: str, flushes: bool) -> str:
    lines: list[str] = []
    for place in range(14):
        lines += [
            f"  %at{place} = getelementptr i64, ptr %args, i64 {place}",
            f"  %v{place} = load i64, ptr %at{place}",
            f"  %p{place} = alloca i32",
            f"  %n{place} = trunc i64 %v{place} to i32",
            f"  store i32 %n{place}, ptr %p{place}",
        ]
    sets = flushes and platform.machine() in ("x86_64", "AMD64")
    text = GEMM.format(
        name=name,
        kind=kind,
        loads="\n".join(lines),
        turned=ord("T"),
        flush=FLUSH if sets else "",
        restore=RESTORE if sets else "",
    )
    return (DECLARED if sets else "") + small_products.text(kind) + text


@functools.cache
def has_blas() -> bool:
    """Whether torch's library exports a BLAS, which generated code may then call."""
    return all(external(name) is not None for name, _ in GEMM_OF.values())


@functools.cache
def gemm(dtype: torch.dtype, flushes: bool = False) -> int:
    """The address of the native function of a product; `flushes`: subnormals count as zero."""
    assert has_blas()
    return resident(*gemm_function(dtype, flushes))


def gemm_function(dtype: torch.dtype, flushes: bool) -> tuple[str, str]:
    """The text of the native function of a product, and its name."""
    name, kind = GEMM_OF[dtype]
    return _gemm_text(name, kind, flushes), f"adjoint.{name}"


def product_words(
    code: HostCode,
    product: Product,
    base: Callable[[int | Scratch], Word],
    result: tuple[Word, Value],
    accumulates: int = 0,
) -> list[Word]:
    """The arguments of a product, except the offsets of its factors."""
    m, n, k = code.sizes(product.shape)
    left = _matrix_words(code, product.left, (m, k), base)
    right = _matrix_words(code, product.right, (k, n), base)
    return [*left, *right, *result, m, n, k, accumulates]


def _matrix_words(
    code: HostCode,
    matrix: Matrix,
    shape: tuple[Value, Value],
    base: Callable[[int | Scratch], Word],
) -> list[Word]:
    """Address, leading dimension and BLAS's transposition flag of a factor."""
    row_stride, column_stride = code.sizes(matrix.strides)
    if column_stride.known == 1:
        return [base(matrix.slot), row_stride.at_least(shape[1]).at_least(1), ord("N")]
    assert row_stride.known == 1
    return [base(matrix.slot), column_stride.at_least(shape[0]).at_least(1), ord("T")]


def whole_product_words(
    code: HostCode, product: Product, address: Callable[[int | Scratch], Word]
) -> WordAddress:
    """The argument block of a product of whole matrices, whose result is contiguous."""
    columns = code.size(product.shape[1]).at_least(1)
    words = product_words(code, product, address, (address(product.result), columns))
    itemsize = product.dtype.itemsize
    offsets = [code.size(each.offset) * itemsize for each in (product.left, product.right)]
    return code.put([*words, *offsets])
