"""Compiles a function of the math library into a loop over arrays."""

import ctypes
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

from adjoint.emit.math import FUNCTIONS, definitions, symbol
from adjoint.runtime.cpu import machines

Array = npt.NDArray[np.floating]
TYPES = {"f32": ("float", np.float32), "f64": ("double", np.float64)}


def loop_text(name: str, dtype: str) -> str:
    """void loop(i64 n, out, x0, ...): out[i] = name(x0[i], ...)."""
    t, count = TYPES[dtype][0], FUNCTIONS[name]
    arguments = ", ".join(f"{t} %x{i}" for i in range(count))
    call = f"call {t} @{symbol(name, dtype)}({arguments})"
    return loop_around(call, dtype, count, definitions([(name, dtype)]))


def loop_around(call: str, dtype: str, count: int, defined: str) -> str:
    """The same of a call of x0 ..., with the definition of what it calls."""
    t = TYPES[dtype][0]
    pointers = "".join(f", ptr noalias %p{i}" for i in range(count))
    loads = "\n".join(
        f"  %a{i} = getelementptr inbounds {t}, ptr %p{i}, i64 %i\n"
        f"  %x{i} = load {t}, ptr %a{i}, align {8 if t == 'double' else 4}"
        for i in range(count)
    )
    return f"""{defined}
define void @loop(i64 %n, ptr noalias %out{pointers}) "prefer-vector-width"="512" {{
entry:
  %empty = icmp sle i64 %n, 0
  br i1 %empty, label %exit, label %body
body:
  %i = phi i64 [0, %entry], [%next, %body]
{loads}
  %y = {call}
  %o = getelementptr inbounds {t}, ptr %out, i64 %i
  store {t} %y, ptr %o, align {8 if t == "double" else 4}
  %next = add nuw nsw i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %body, label %exit
exit:
  ret void
}}
"""


@dataclass(frozen=True)
class Loop:
    """A compiled loop. The engine is kept because it owns the code."""

    engine: llvm.ExecutionEngine
    address: int
    dtype: str
    arguments: int
    optimised: str
    assembly: str

    def __call__(self, *arrays: Array) -> Array:
        assert len(arrays) == self.arguments
        element = TYPES[self.dtype][1]
        inputs = [np.ascontiguousarray(array, dtype=element) for array in arrays]
        out: Array = np.empty_like(inputs[0])
        types = [ctypes.c_int64] + [ctypes.c_void_p] * (1 + self.arguments)
        entry = ctypes.CFUNCTYPE(None, *types)(self.address)
        entry(out.size, out.ctypes.data, *(array.ctypes.data for array in inputs))
        return out


def host_machine() -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return machines.target_machine(machines.host())


def optimise(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.slp_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)


def compile_text(text: str, dtype: str, arguments: int) -> Loop:
    machine = host_machine()
    module = llvm.parse_assembly(text)
    module.verify()
    optimise(module, machine)
    optimised, assembly = str(module), machine.emit_assembly(module)
    # The engine takes the target machine for its own.
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    address = engine.get_function_address("loop")
    return Loop(engine, address, dtype, arguments, optimised, assembly)


@cache
def compiled(name: str, dtype: str) -> Loop:
    return compile_text(loop_text(name, dtype), dtype, FUNCTIONS[name])
