"""The table of math functions, and their definitions as LLVM IR."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from adjoint.emit.math import (
    error_function,
    exponential,
    hyperbolic,
    inverse_error_function,
    inverse_trigonometric,
    logarithm,
    power,
    remainder,
    trigonometric,
)
from adjoint.emit.math.builder import F32, F64, WIDE, Builder, Real, Value


@dataclass(frozen=True)
class Function:
    """A body, and the type in which its float form computes."""

    body: Callable[..., Value]
    arguments: int = 1
    single: Real = F32

    def real(self, dtype: str) -> Real:
        return {"f32": self.single, "f64": F64}[dtype]


_TABLE: Mapping[str, Function] = {
    "exp": Function(exponential.exp),
    "exp2": Function(exponential.exp2),
    "expm1": Function(exponential.expm1),
    "log": Function(logarithm.log),
    "log2": Function(logarithm.log2),
    "log10": Function(logarithm.log10),
    "log1p": Function(logarithm.log1p),
    "sigmoid": Function(exponential.sigmoid),
    "tanh": Function(hyperbolic.tanh),
    "sinh": Function(hyperbolic.sinh, single=WIDE),
    "cosh": Function(hyperbolic.cosh, single=WIDE),
    "asinh": Function(hyperbolic.asinh, single=WIDE),
    "acosh": Function(hyperbolic.acosh, single=WIDE),
    "atanh": Function(hyperbolic.atanh, single=WIDE),
    "erf": Function(error_function.erf),
    "erfc": Function(error_function.erfc, single=WIDE),
    "erfinv": Function(inverse_error_function.erfinv),
    "sin": Function(trigonometric.sin, single=WIDE),
    "cos": Function(trigonometric.cos, single=WIDE),
    "tan": Function(trigonometric.tan, single=WIDE),
    "near_sin": Function(trigonometric.near_sin),
    "near_cos": Function(trigonometric.near_cos),
    "asin": Function(inverse_trigonometric.asin, single=WIDE),
    "acos": Function(inverse_trigonometric.acos),
    "atan": Function(inverse_trigonometric.atan, single=WIDE),
    "atan2": Function(inverse_trigonometric.atan2, 2, single=WIDE),
    "pow": Function(power.pow, 2, single=WIDE),
    "fmod": Function(remainder.fmod, 2, single=WIDE),
    "near_fmod": Function(remainder.near_fmod, 2, single=WIDE),
    "remainder": Function(remainder.remainder, 2, single=WIDE),
    "near_remainder": Function(remainder.near_remainder, 2, single=WIDE),
}

# Name -> number of arguments.
FUNCTIONS: Mapping[str, int] = {name: function.arguments for name, function in _TABLE.items()}


def symbol(name: str, dtype: str) -> str:
    """The LLVM name of a function: `adjoint.exp.f32`."""
    if name not in _TABLE or dtype not in ("f32", "f64"):
        raise KeyError(f"no function {name!r} of {dtype!r}")
    return f"adjoint.{name}.{dtype}"


def definitions(wanted: Iterable[tuple[str, str]]) -> str:
    """Definitions of the wanted functions, and of the tables they read, in a stable order."""
    tables: dict[str, str] = {}
    functions: list[str] = []
    for name, dtype in sorted(set(wanted)):
        functions.append(_definition(name, dtype, tables))
    return "\n".join([*(tables[table] for table in sorted(tables)), *functions])


def _definition(name: str, dtype: str, tables: dict[str, str]) -> str:
    name_in_llvm = symbol(name, dtype)
    function = _TABLE[name]
    real = function.real(dtype)
    builder = Builder(real)
    type_ = {"f32": "float", "f64": "double"}[dtype]
    arguments = [Value(f"%x{i}", type_, builder) for i in range(function.arguments)]
    is_wide = real is WIDE
    result = function.body(builder, *(map(builder.widen, arguments) if is_wide else arguments))
    if is_wide:
        result = builder.narrow(result)
    tables.update(builder.tables)
    declared = ", ".join(f"{argument.type} {argument.text}" for argument in arguments)
    head = f"define internal {type_} @{name_in_llvm}({declared})"
    return "\n".join(
        [
            f"{head} alwaysinline nounwind memory(none) {{",
            *(f"  {line}" for line in builder.lines),
            f"  ret {type_} {result.text}",
            "}\n",
        ]
    )
