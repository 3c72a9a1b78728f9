"""LLVM text becomes functions of this process.

Nothing is read from or written to disk, and no compiler is needed but the LLVM that llvmlite
brings.  An engine owns its target machine and its code, and goes with the last function of it that
somebody holds.

What an object calls is known from the object alone: code generation adds calls where the processor
has no instruction.  What nobody defines would be called all the same, at address 0; so such an
object is refused before it is loaded.
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

# What stays as long as the process.
_RESIDENT: list[NativeFunction] = []
_LOCK = threading.RLock()

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


def add_symbol(name: str, address: int) -> None:
    """Let texts call the function at `address`."""
    with _LOCK:
        _prepare()
        _add(name, address)


def compile_object(text: str, machine: Machine) -> bytes:
    """The object file that `text` becomes on a machine."""
    with _LOCK:
        _prepare()
    target = target_machine(machine)
    with parsed_module(text) as module:
        module.triple = target.triple
        module.data_layout = str(target.target_data)
        # Wide loops are fast enough without being unrolled as well, and compile in a third of the
        # time; short ones say themselves that they are to be.
        tuning = llvm.create_pipeline_tuning_options(speed_level=2)
        tuning.loop_vectorization = True
        tuning.slp_vectorization = False
        tuning.loop_unrolling = False
        builder = llvm.create_pass_builder(target, tuning)
        with pass_manager(builder) as passes:
            passes.run(module, builder)
        image: bytes = target.emit_object(module)
        return image


@contextlib.contextmanager
def parsed_module(text: str) -> Iterator[llvm.ModuleRef]:
    """`text` in a context of its own, which keeps constants and types of all modules that it sees.

    Both are freed in their order, which the garbage collector would not keep to.
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


@contextlib.contextmanager
def pass_manager(builder: llvm.PassBuilder) -> Iterator[llvm.ModulePassManager]:
    passes = builder.getModulePassManager()
    # llvmlite does not free it by itself: the `_dispose` that it finds first does nothing.
    passes._owned = True
    try:
        yield passes
    finally:
        newpassmanagers.NewPassManager._dispose(passes)


def load(text: str, names: Sequence[str]) -> list[NativeFunction]:
    """The functions `names` that `text` defines."""
    with _LOCK:
        _prepare()
        machine = machines.host()
        image = compile_object(text, machine)
        _require(image, names)
        # In a context that stays: engines are freed by the garbage collector, in any order.
        empty = llvm.parse_assembly("")
        engine = llvm.create_mcjit_compiler(empty, target_machine(machine))
        engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(image))
        engine.finalize_object()
        return [NativeFunction(engine.get_function_address(name), engine) for name in names]


def load_resident(text: str, name: str) -> int:
    """The address of a function that `text` defines, and that stays as long as the process."""
    (function,) = load(text, [name])
    _RESIDENT.append(function)
    return function.address


def _require(image: bytes, names: Sequence[str]) -> None:
    """All that the object is asked for, and all that it calls, is there."""
    symbols = symbols_of(image)
    missing = [name for name in names if name not in symbols.defined]
    missing += [name for name in sorted(symbols.undefined) if not _is_known(name)]
    if missing:
        raise LLVMError(f"no definition of {', '.join(missing)}")


def _is_known(name: str) -> bool:
    """Whether there is such a function; support for code generation is made when first used."""
    if name not in _KNOWN:
        address = None
        if name in SUPPORT:
            address = load_resident(SUPPORT[name], name)
        elif name in C_FUNCTIONS:
            address = c_function(name)
        if address:
            _add(name, address)
    return name in _KNOWN


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
    word = ctypes.c_int64
    kind = ctypes.CFUNCTYPE(word, word, word, word, word, word, word)
    return kind(load_resident(RUNNER, "adjoint.run"))
