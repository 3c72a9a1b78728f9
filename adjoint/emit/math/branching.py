"""Functions that branch on the size of their argument, of a number and of a vector of numbers.

Most arguments of `sin` and `cos` are small, and then the reduction is several times cheaper.  A
branch inside a loop would keep LLVM from vectorizing it, so the loop calls a function.  The call
names, as LLVM's vector function ABI has it, the form that takes as many numbers as a register
holds: it branches once, on whether any of them is large.
"""

from __future__ import annotations

from collections.abc import Iterable

from adjoint.emit.math.builder import constant
from adjoint.emit.math.library import symbol
from adjoint.emit.math.trigonometric import NEAR

# Those that have a form `near_...` for small arguments.
BRANCHING = ("sin", "cos")

_TYPES = {"f32": ("float", 4), "f64": ("double", 8)}
_PURE = "noinline nounwind willreturn memory(none)"


def branching_symbol(name: str, dtype: str) -> str:
    """The LLVM name of the form for one number: `adjoint.branching.sin.f32`."""
    return f"adjoint.branching.{name}.{dtype}"


def branching_call(name: str, dtype: str, argument: str, vector_bytes: int) -> str:
    """The call of a branching function in a loop; `vector_bytes`: those of a vector register."""
    scalar, (type_, _) = branching_symbol(name, dtype), _TYPES[dtype]
    lanes = _lanes(dtype, vector_bytes)
    variant = f"_ZGV_LLVM_N{lanes}v_{scalar}({_vector_symbol(name, dtype, vector_bytes)})"
    attribute = f'"vector-function-abi-variant"="{variant}"'
    return f"call {type_} @{scalar}({type_} {argument}) nounwind memory(none) {attribute}"


def bodies_of(wanted: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """The functions of the library that branching functions call."""
    return {(each, dtype) for name, dtype in wanted for each in (name, f"near_{name}")}


def branching_definitions(
    wanted: Iterable[tuple[str, str]], vector_bytes: int, attributes: str = ""
) -> str:
    """Both forms of each wanted function, without the functions that they call.

    `attributes`: of the functions that call them; the same, so that vectors are passed alike.
    """
    functions = sorted(set(wanted))
    if not functions:
        return ""
    texts: list[str] = []
    for name, dtype in functions:
        texts.append(_scalar_form(name, dtype, attributes))
        texts.append(_vector_form(name, dtype, vector_bytes, attributes))
    # Calls of the vector forms come into being when loops are vectorized.
    kept = ", ".join(f"ptr @{_vector_symbol(*each, vector_bytes)}" for each in functions)
    used = f"@llvm.compiler.used = appending global [{len(functions)} x ptr] [{kept}]"
    return "\n".join([*texts, f'{used}, section "llvm.metadata"'])


def _lanes(dtype: str, vector_bytes: int) -> int:
    return vector_bytes // _TYPES[dtype][1]


def _vector_symbol(name: str, dtype: str, vector_bytes: int) -> str:
    return f"{branching_symbol(name, dtype)}.x{_lanes(dtype, vector_bytes)}"


def _scalar_form(name: str, dtype: str, attributes: str) -> str:
    type_, _ = _TYPES[dtype]
    return f"""\
define internal {type_} @{branching_symbol(name, dtype)}({type_} %x) {_PURE} {attributes} {{
  %size = call {type_} @llvm.fabs.{dtype}({type_} %x)
  %is.far = fcmp ogt {type_} %size, {constant(NEAR[dtype], type_)}
  br i1 %is.far, label %far, label %near
near:
  %n = call {type_} @{symbol(f"near_{name}", dtype)}({type_} %x)
  ret {type_} %n
far:
  %f = call {type_} @{symbol(name, dtype)}({type_} %x)
  ret {type_} %f
}}
"""


def _vector_form(name: str, dtype: str, vector_bytes: int, attributes: str) -> str:
    """A loop for each branch, over numbers in memory: LLVM makes one vector of each."""
    type_, _ = _TYPES[dtype]
    lanes = _lanes(dtype, vector_bytes)
    vector = f"<{lanes} x {type_}>"
    loops = "".join(
        f"""\
{label}:
  %{label}.i = phi i64 [ 0, %entry ], [ %{label}.next, %{label} ]
  %{label}.from = getelementptr {type_}, ptr %in, i64 %{label}.i
  %{label}.x = load {type_}, ptr %{label}.from
  %{label}.y = call {type_} @{symbol(function, dtype)}({type_} %{label}.x)
  %{label}.to = getelementptr {type_}, ptr %out, i64 %{label}.i
  store {type_} %{label}.y, ptr %{label}.to
  %{label}.next = add nuw nsw i64 %{label}.i, 1
  %{label}.done = icmp eq i64 %{label}.next, {lanes}
  br i1 %{label}.done, label %end, label %{label}
"""
        for label, function in (("near", f"near_{name}"), ("far", name))
    )
    head = f"define internal {vector} @{_vector_symbol(name, dtype, vector_bytes)}({vector} %x)"
    return f"""\
{head} {_PURE} {attributes} {{
entry:
  %in = alloca {vector}, align {vector_bytes}
  %out = alloca {vector}, align {vector_bytes}
  store {vector} %x, ptr %in, align {vector_bytes}
  %size = call {vector} @llvm.fabs.v{lanes}{dtype}({vector} %x)
  %are.far = fcmp ogt {vector} %size, splat ({type_} {constant(NEAR[dtype], type_)})
  %is.far = call i1 @llvm.vector.reduce.or.v{lanes}i1(<{lanes} x i1> %are.far)
  br i1 %is.far, label %far, label %near
{loops}end:
  %y = load {vector}, ptr %out, align {vector_bytes}
  ret {vector} %y
}}
"""
