"""JIT compilation for the CPU: LLVM IR text becomes functions of this process.

The only compiler needed is the LLVM in llvmlite, and nothing is read from or written to disk.  An
engine owns its target machine and its code; both are freed with the last function of it.

Code generation adds calls where the CPU lacks an instruction, so only the object file tells what it
calls.  LLVM would resolve an undefined symbol to address 0: an object that has one is rejected
before it is loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator, Sequence

import llvmlite.binding as llvm
from llvmlite.binding import newpassmanagers

from adjoint.runtime.code import NativeFunction
from adjoint.runtime.cpu import machines
from adjoint.runtime.cpu.machines import target_machine
from adjoint.runtime.cpu.objects import symbols_of
from adjoint.runtime.cpu.support import C_FUNCTIONS, SUPPORT, c_function
from adjoint.runtime.cpu.threads import openmp
from adjoint.target import Machine

# Functions that are never freed.
_RESIDENT: list[NativeFunction] = []
_LOCK = threading.RLock()

# External functions that generated code may call.
_KNOWN: set[str] = set()


class LLVMError(RuntimeError):
    """LLVM rejected the module, or it calls something that nobody defines."""


@functools.cache
def _prepare() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for name, address in openmp().items():
        _add(name, address)


def _add(name: str, address: int) -> None:
    llvm.add_symbol(name, address)
    _KNOWN.add(name)


def add_symbol(name: str, address: int) -> None:
    """Let generated code call the function at `address` as `name`."""
    with _LOCK:
        _prepare()
        _add(name, address)


def compile_object(text: str, machine: Machine) -> bytes:
    """Compile LLVM IR to an object file for `machine`."""
    with _LOCK:
        _prepare()
    target = target_machine(machine)
    with parsed_module(text) as module:
        module.triple = target.triple
        module.data_layout = str(target.target_data)
        builder = pass_builder(target, vectorize_loops=True)
        with pass_manager(builder) as passes:
            passes.run(module, builder)
        image: bytes = target.emit_object(module)
        return image


@contextlib.contextmanager
def parsed_module(text: str) -> Iterator[llvm.ModuleRef]:
    """The verified module of `text`, in an LLVM context of its own.

    A context keeps the constants and types of all its modules, so a shared one would only grow.
    Module and context are freed here because they must be freed in that order, which the garbage
    collector would not guarantee.
    """
    with llvm.create_context() as context:
        try:
            module = llvm.parse_assembly(text, context)
        except RuntimeError as error:
            raise LLVMError(str(error)) from error
        with module:
            try:
                module.verify()
            except RuntimeError as error:
                raise LLVMError(str(error)) from error
            yield module


def pass_builder(target: llvm.TargetMachine, vectorize_loops: bool) -> llvm.PassBuilder:
    """LLVM's -O2 pipeline without unrolling.

    Unrolling vectorized loops gains little and would dominate compile time; loops with a small
    constant trip count carry metadata that asks for it.
    """
    tuning = llvm.create_pipeline_tuning_options(speed_level=2)
    tuning.loop_vectorization = vectorize_loops
    tuning.slp_vectorization = False
    tuning.loop_unrolling = False
    return llvm.create_pass_builder(target, tuning)


@contextlib.contextmanager
def pass_manager(builder: llvm.PassBuilder) -> Iterator[llvm.ModulePassManager]:
    """The builder's passes, freed at the end."""
    passes = builder.getModulePassManager()
    # llvmlite does not free it: the `_dispose` that attribute lookup finds first does nothing.
    passes._owned = True
    try:
        yield passes
    finally:
        newpassmanagers.NewPassManager._dispose(passes)


def load(text: str, names: Sequence[str]) -> list[NativeFunction]:
    """Compile `text` for this machine and load the functions `names` that it defines."""
    with _LOCK:
        _prepare()
        machine = machines.host()
        image = compile_object(text, machine)
        _require_symbols(image, names)
        # In the global context, which is never freed: the garbage collector frees engines in any
        # order.
        empty = llvm.parse_assembly("")
        engine = llvm.create_mcjit_compiler(empty, target_machine(machine))
        engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(image))
        engine.finalize_object()
        return [NativeFunction(engine.get_function_address(name), engine) for name in names]


def load_resident(text: str, name: str) -> int:
    """The address of the function `name` of `text`, loaded for as long as the process runs."""
    (function,) = load(text, [name])
    _RESIDENT.append(function)
    return function.address


def _require_symbols(image: bytes, names: Sequence[str]) -> None:
    """Raise `LLVMError` unless the object defines `names` and everything that it calls exists."""
    symbols = symbols_of(image)
    missing = [name for name in names if name not in symbols.defined]
    missing += [name for name in sorted(symbols.undefined) if not _is_known(name)]
    if missing:
        raise LLVMError(f"no definition of {', '.join(missing)}")


def _is_known(name: str) -> bool:
    """Whether generated code can call `name`; support functions are compiled at their first use."""
    if name not in _KNOWN:
        address = None
        if name in SUPPORT:
            address = load_resident(SUPPORT[name], name)
        elif name in C_FUNCTIONS:
            address = c_function(name)
        if address:
            _add(name, address)
    return name in _KNOWN


# The first part of a native run: for each pair (address of a word, index) of %bindings, stores
# entry `index` of the call's address table in that word.  Continues at %step, or at %end if there
# are no steps.
STORE_ADDRESSES = """\
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
{STORE_ADDRESSES}
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
    """The native function that stores a call's addresses and calls a run of kernels in order."""
    word = ctypes.c_int64
    kind = ctypes.CFUNCTYPE(word, word, word, word, word, word, word)
    return kind(load_resident(RUNNER, "adjoint.run"))
