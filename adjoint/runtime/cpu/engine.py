"""LLVM text becomes functions of this process.

Nothing is read from or written to disk, and no compiler is needed but the LLVM that llvmlite
brings.  An engine owns its target machine and its code, and lives as long as the process: programs
share kernels that are the same text.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence

import llvmlite.binding as llvm

from adjoint.runtime.cpu.threads import openmp

# llvmlite's engines; their code must stay while any program may call it.
_ENGINES: list[llvm.ExecutionEngine] = []
_LOCK = threading.Lock()

# Functions outside that texts may call.
_KNOWN: set[str] = set()


class LLVMError(RuntimeError):
    """LLVM would not have the text."""


@functools.cache
def _prepare() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for name, address in openmp().items():
        _add(name, address)


def _add(name: str, address: int) -> None:
    llvm.add_symbol(name, address)
    _KNOWN.add(name)


def _target_machine() -> llvm.TargetMachine:
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        codemodel="jitdefault",
        jit=True,
    )


@functools.cache
def function_attributes() -> str:
    """What LLVM must be told about this machine, function by function."""
    features = llvm.get_host_cpu_features()
    # LLVM keeps to 256 bits on machines that once ran slower with more; loops here are long.
    return '"prefer-vector-width"="512"' if features.get("avx512f") else ""


def add_symbol(name: str, address: int) -> None:
    """Let texts call the function at `address`."""
    with _LOCK:
        _prepare()
        _add(name, address)


def load(text: str, names: Sequence[str]) -> list[int]:
    """The addresses of the functions `names` that `text` defines."""
    with _LOCK:
        _prepare()
        machine = _target_machine()
        try:
            module = llvm.parse_assembly(text)
            module.verify()
        except RuntimeError as error:
            raise LLVMError(str(error)) from error
        _require_known(module, names)
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        # Wide loops are fast enough without being unrolled as well, and compile in a third of the
        # time; short ones say themselves that they are to be.
        tuning = llvm.create_pipeline_tuning_options(speed_level=2)
        tuning.loop_vectorization = True
        tuning.slp_vectorization = False
        tuning.loop_unrolling = False
        builder = llvm.create_pass_builder(machine, tuning)
        builder.getModulePassManager().run(module, builder)
        engine = llvm.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        _ENGINES.append(engine)
        return [engine.get_function_address(name) for name in names]


def _require_known(module: llvm.ModuleRef, names: Sequence[str]) -> None:
    """What is missing would be called all the same, at address 0."""
    functions = {function.name: function.is_declaration for function in module.functions}
    missing = [name for name in names if functions.get(name, True)]
    missing += [
        name
        for name, is_declared in functions.items()
        if is_declared and not name.startswith("llvm.") and name not in _KNOWN
    ]
    if missing:
        raise LLVMError(f"no definition of {', '.join(missing)}")


# Puts addresses that enter in their places; then come the steps, if there are any.
BINDING = """\
  %none = icmp eq i64 %bound, 0
  br i1 %none, label %bind.end, label %bind
bind:
  %b = phi i64 [ 0, %entry ], [ %b.next, %bind ]
  %pair = getelementptr { ptr, i64 }, ptr %bindings, i64 %b
  %place = load ptr, ptr %pair
  %from = getelementptr i64, ptr %pair, i64 1
  %slot = load i64, ptr %from
  %at = getelementptr i64, ptr %table, i64 %slot
  %value = load i64, ptr %at
  store i64 %value, ptr %place
  %b.next = add i64 %b, 1
  %b.more = icmp ult i64 %b.next, %bound
  br i1 %b.more, label %bind, label %bind.end
bind.end:
  %idle = icmp eq i64 %count, 0
  br i1 %idle, label %end, label %step
"""

RUNNER = f"""\
define i64 @adjoint.run(
    ptr %bindings, i64 %bound, ptr %table, ptr %steps, i64 %count, i64 %threads) {{
entry:
{BINDING}
step:
  %s = phi i64 [ 0, %bind.end ], [ %s.next, %step ]
  %call = getelementptr {{ ptr, ptr }}, ptr %steps, i64 %s
  %function = load ptr, ptr %call
  %args.at = getelementptr i64, ptr %call, i64 1
  %args = load ptr, ptr %args.at
  call void %function(ptr %args, i64 %threads)
  %s.next = add i64 %s, 1
  %s.more = icmp ult i64 %s.next, %count
  br i1 %s.more, label %step, label %end
end:
  ret i64 0
}}
"""


@functools.cache
def runner() -> Callable[..., int]:
    """Puts addresses in their places, then calls kernels one after another."""
    (address,) = load(RUNNER, ["adjoint.run"])
    word = ctypes.c_int64
    return ctypes.CFUNCTYPE(word, word, word, word, word, word, word)(address)
