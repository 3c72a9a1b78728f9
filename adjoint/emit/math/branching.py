"""Functions that branch on the size of their arguments, of numbers and of vectors of numbers.

Most arguments of `sin` and `cos` are small, and so are the quotients of most remainders.  For these
the function is several times faster.  A branch inside a loop would keep LLVM from vectorizing it,
so the loop calls a function.  The call declares a vector variant of the function, in LLVM's vector
function ABI, which takes a register of arguments and branches once: on whether all of them are
small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from adjoint.emit.math.builder import F32, F64, Builder, Value
from adjoint.emit.math.library import FUNCTIONS, symbol
from adjoint.emit.math.remainder import has_small_quotient
from adjoint.emit.math.trigonometric import is_small

# Whether the form `near_...` of a function is right for some arguments; false if one is NaN.
BRANCHING: Mapping[str, Callable[..., Value]] = {
    "sin": is_small,
    "cos": is_small,
    "fmod": has_small_quotient,
    "remainder": has_small_quotient,
}

_REALS = {"f32": F32, "f64": F64}
_BYTES = {"f32": 4, "f64": 8}
_PURE = "noinline nounwind willreturn memory(none)"


def condition_symbol(name: str, dtype: str) -> str:
    """The LLVM name of the condition: `adjoint.is_near.sin.f32`."""
    return f"adjoint.is_near.{name}.{dtype}"


def branching_call(name: str, dtype: str, arguments: Iterable[str], vector_bytes: int) -> str:
    """The call of a branching function in a loop; `vector_bytes`: those of a vector register."""
    type_, scalar = _REALS[dtype].type, _symbol(name, dtype)
    given = ", ".join(f"{type_} {each}" for each in arguments)
    lanes = vector_bytes // _BYTES[dtype]
    kinds = "v" * FUNCTIONS[name]
    variant = f"_ZGV_LLVM_N{lanes}{kinds}_{scalar}({scalar}.x{lanes})"
    attribute = f'"vector-function-abi-variant"="{variant}"'
    return f"call {type_} @{scalar}({given}) nounwind memory(none) {attribute}"


def conditions(wanted: Iterable[tuple[str, str]]) -> str:
    """The definitions of the conditions of branching functions."""
    return "".join(_condition(name, dtype) for name, dtype in sorted(set(wanted)))


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
    kept: list[str] = []
    for name, dtype in functions:
        lanes = vector_bytes // _BYTES[dtype]
        texts.append(_scalar_form(name, dtype, attributes))
        texts.append(_vector_form(name, dtype, lanes, attributes))
        kept += [f"ptr @{_symbol(name, dtype)}", f"ptr @{_symbol(name, dtype)}.x{lanes}"]
    # Calls of the vector forms come into being when loops are vectorized.  Until then, parameters
    # of the scalar form must stay, though all calls may give the same constant.
    used = f"@llvm.compiler.used = appending global [{len(kept)} x ptr] [{', '.join(kept)}]"
    return "\n".join([*texts, f'{used}, section "llvm.metadata"'])


def _symbol(name: str, dtype: str) -> str:
    return f"adjoint.branching.{name}.{dtype}"


def _condition(name: str, dtype: str) -> str:
    real = _REALS[dtype]
    builder = Builder(real)
    arguments = [Value(f"%x{n}", real.type, builder) for n in range(FUNCTIONS[name])]
    result = BRANCHING[name](builder, *arguments)
    declared = ", ".join(f"{each.type} {each.text}" for each in arguments)
    lines = "".join(f"  {line}\n" for line in builder.lines)
    head = f"define internal i1 @{condition_symbol(name, dtype)}({declared})"
    return f"{head} alwaysinline nounwind memory(none) {{\n{lines}  ret i1 {result.text}\n}}\n"


def _scalar_form(name: str, dtype: str, attributes: str) -> str:
    type_ = _REALS[dtype].type
    given = ", ".join(f"{type_} %x{n}" for n in range(FUNCTIONS[name]))
    return f"""\
define internal {type_} @{_symbol(name, dtype)}({given}) {_PURE} {attributes} {{
  %is.near = call i1 @{condition_symbol(name, dtype)}({given})
  br i1 %is.near, label %near, label %far
near:
  %n = call {type_} @{symbol(f"near_{name}", dtype)}({given})
  ret {type_} %n
far:
  %f = call {type_} @{symbol(name, dtype)}({given})
  ret {type_} %f
}}
"""


def _vector_form(name: str, dtype: str, lanes: int, attributes: str) -> str:
    """Loops over numbers in memory, of which LLVM makes one vector each."""
    type_, places = _REALS[dtype].type, range(FUNCTIONS[name])
    vector, size = f"<{lanes} x {type_}>", lanes * _BYTES[dtype]
    memory = "".join(
        f"  %in{n} = alloca {vector}, align {size}\n"
        f"  store {vector} %v{n}, ptr %in{n}, align {size}\n"
        for n in places
    )
    given = ", ".join(f"{vector} %v{n}" for n in places)
    near = _lane(name, dtype, "near")
    return f"""\
define internal {vector} @{_symbol(name, dtype)}.x{lanes}({given}) {_PURE} {attributes} {{
entry:
  %out = alloca {vector}, align {size}
{memory}  br label %near
near:
  %near.i = phi i64 [ 0, %entry ], [ %near.next, %near ]
  %all = phi i1 [ true, %entry ], [ %both, %near ]
{near}  %is.near = call i1 @{condition_symbol(name, dtype)}({_arguments(name, dtype, "near")})
  %both = and i1 %all, %is.near
  %near.done = icmp eq i64 %near.next, {lanes}
  br i1 %near.done, label %choose, label %near
choose:
  br i1 %both, label %end, label %far
far:
  %far.i = phi i64 [ 0, %choose ], [ %far.next, %far ]
{_lane(name, dtype, "far")}  %far.done = icmp eq i64 %far.next, {lanes}
  br i1 %far.done, label %end, label %far
end:
  %y = load {vector}, ptr %out, align {size}
  ret {vector} %y
}}
"""


def _lane(name: str, dtype: str, label: str) -> str:
    """The lines that compute one number of a vector, by the near or the far form."""
    type_ = _REALS[dtype].type
    loads = "".join(
        f"  %{label}.p{n} = getelementptr {type_}, ptr %in{n}, i64 %{label}.i\n"
        f"  %{label}.x{n} = load {type_}, ptr %{label}.p{n}\n"
        for n in range(FUNCTIONS[name])
    )
    body = symbol(f"near_{name}" if label == "near" else name, dtype)
    return f"""\
{loads}  %{label}.y = call {type_} @{body}({_arguments(name, dtype, label)})
  %{label}.to = getelementptr {type_}, ptr %out, i64 %{label}.i
  store {type_} %{label}.y, ptr %{label}.to
  %{label}.next = add nuw nsw i64 %{label}.i, 1
"""


def _arguments(name: str, dtype: str, label: str) -> str:
    return ", ".join(f"{_REALS[dtype].type} %{label}.x{n}" for n in range(FUNCTIONS[name]))
