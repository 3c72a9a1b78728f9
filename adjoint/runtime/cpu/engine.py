"""JIT compilation for the CPU: LLVM IR text becomes functions of this process.

The only compiler needed is the LLVM in llvmlite.  An object that the store of the compilation
(`store/keeping.py`) has for a text is not compiled again.  An engine owns its target machine and
its code; both are freed with the last function of it.

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

import llvmlite
import llvmlite.binding as llvm
from llvmlite.binding import ffi, newpassmanagers

from adjoint.runtime.code import CodeSource, NativeFunction
from adjoint.runtime.cpu import machines
from adjoint.runtime.cpu.externals import external
from adjoint.runtime.cpu.machines import target_machine
from adjoint.runtime.cpu.objects import MALFORMED, symbols_of
from adjoint.runtime.cpu.support import SUPPORT
from adjoint.store.entries import Facts, digest_of
from adjoint.store.keeping import current_store, kept_or_made
from adjoint.store.versions import code_generation_digest
from adjoint.target import Machine

# Functions that are never freed.
_RESIDENT: list[NativeFunction] = []
_LOCK = threading.RLock()

# External functions that LLVM has the addresses of.
_KNOWN: dict[str, int] = {}


class LLVMError(RuntimeError):
    """LLVM rejected the module, or the module calls an undefined function."""


@functools.cache
def _prepare() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def compile_object(
    text: str, machine: Machine, is_tuned: bool = True, may_move: bool = False
) -> bytes:
    """Compile LLVM IR to an object file for `machine`.

    `is_tuned`: by LLVM's -O2 pipeline; without it variables are promoted to registers and little
    else is done, in a tenth of the time.  `may_move`: the code can be linked to run at any address.
    """
    with _LOCK:
        _prepare()
    target = target_machine(machine, may_move)
    with parsed_module(text) as module:
        module.triple = target.triple
        module.data_layout = str(target.target_data)
        builder = pass_builder(target, vectorize_loops=is_tuned)
        with pass_manager(builder, is_tuned) as passes:
            run_passes(passes, module, builder)
        return emitted(target, module, is_object=True)


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
def pass_manager(
    builder: llvm.PassBuilder, is_tuned: bool = True
) -> Iterator[llvm.ModulePassManager]:
    """The builder's passes, or the few that make variables registers; freed at the end."""
    if is_tuned:
        passes = builder.getModulePassManager()
    else:
        passes = newpassmanagers.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.add_simplify_cfg_pass()
    # llvmlite does not free it: the `_dispose` that attribute lookup finds first does nothing.
    passes._owned = True
    try:
        yield passes
    finally:
        newpassmanagers.NewPassManager._dispose(passes)


def run_passes(
    passes: llvm.ModulePassManager, module: llvm.ModuleRef, builder: llvm.PassBuilder
) -> None:
    """Optimize a module; other threads may do the same."""
    _unlocked("LLVMPY_RunNewModulePassManager")(passes, module, builder)


def emitted(target: llvm.TargetMachine, module: llvm.ModuleRef, is_object: bool) -> bytes:
    """The object file, or else the assembly, of a module; other threads may do the same."""
    with ffi.OutputString() as error:
        buffer = _unlocked("LLVMPY_TargetMachineEmitToMemory")(target, module, is_object, error)
        if not buffer:
            raise LLVMError(str(error))
    try:
        start, size = ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer)
        return ctypes.string_at(start, size)
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _unlocked(name: str) -> Callable[..., int]:
    """A function of LLVM, without the global lock that llvmlite holds during every call.

    The lock protects contexts that are shared; here each compilation has its own.  With the lock,
    threads would compile one after another.
    """
    function = getattr(ffi.lib, name)
    unlocked: Callable[..., int] = getattr(function, "_cfn", function)
    return unlocked


def load(text: str, names: Sequence[str], is_tuned: bool = True) -> list[NativeFunction]:
    """Compile `text` for this machine and load the functions `names` that it defines.

    Several threads may compile at the same time; what they compiled is loaded one by one.
    """
    with _LOCK:
        _prepare()
        machine = machines.host()
    facts = None
    if current_store() is not None:
        facts = {**facts_of(text, machine), "tuned": str(is_tuned)}
    image = kept_or_made(
        "object",
        facts,
        lambda: compile_object(text, machine, is_tuned),
        lambda image: _checked(image, names),
        LLVMError,
        ", ".join(names[:3]),
    )
    with _LOCK:
        return _loaded(image, names, facts)


def load_kept(image: bytes, names: Sequence[str], facts: Facts) -> list[NativeFunction]:
    """Load functions of a cached object, which was compiled for this machine."""
    with _LOCK:
        _prepare()
        return _loaded(_checked(image, names), names, facts)


def _loaded(image: bytes, names: Sequence[str], facts: Facts | None) -> list[NativeFunction]:
    # In the global context, which is never freed: the garbage collector frees engines in any
    # order.
    empty = llvm.parse_assembly("")
    engine = llvm.create_mcjit_compiler(empty, target_machine(machines.host()))
    engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(image))
    engine.finalize_object()
    return [
        NativeFunction(
            engine.get_function_address(name),
            engine,
            None if facts is None else CodeSource("object", facts, name),
        )
        for name in names
    ]


def load_resident(text: str, name: str) -> int:
    """The address of the function `name` of `text`, loaded for as long as the process runs.

    Glue between kernels takes little time itself, so it is compiled fast and hardly optimized.
    """
    (function,) = load(text, [name], is_tuned=False)
    _RESIDENT.append(function)
    return function.address


def _checked(image: bytes, names: Sequence[str]) -> bytes:
    """The object, which defines `names` and calls only what exists."""
    try:
        _require_symbols(image, names)
    except MALFORMED as error:
        raise LLVMError(f"it is no object file: {error}") from error
    return image


def facts_of(text: str, machine: Machine) -> dict[str, str]:
    """All that the code of a text depends on."""
    return {
        "subject": digest_of(text),
        "triple": machine.triple,
        "cpu": machine.cpu,
        "features": machine.features,
        "LLVM": ".".join(map(str, llvm.llvm_version_info)),
        "llvmlite": llvmlite.__version__,
        "code generation": code_generation_digest(),
    }


def _require_symbols(image: bytes, names: Sequence[str]) -> None:
    """Raise `LLVMError` unless the object defines `names` and everything that it calls exists."""
    symbols = symbols_of(image)
    missing = [name for name in names if name not in symbols.defined]
    missing += [name for name in sorted(symbols.undefined) if not _is_known(name)]
    if missing:
        raise LLVMError(f"no definition of {', '.join(missing)}")


def _is_known(name: str) -> bool:
    """Whether generated code can call `name`; support functions are compiled at their first use."""
    with _LOCK:
        known = _KNOWN.get(name)
        address: int | None
        if name in SUPPORT:
            address = load_resident(SUPPORT[name], name) if known is None else known
        else:
            address = external(name)
        if address and address != known:
            llvm.add_symbol(name, address)
            _KNOWN[name] = address
        return bool(address)
