"""The CPU that code is generated for: the host, or another by name.

Code for another CPU is compiled and inspected by tests.  It runs only if it is for an x86-64 level
that the host supports.
"""

from __future__ import annotations

import functools

import llvmlite.binding as llvm

from adjoint.target import Machine


def target_machine(machine: Machine) -> llvm.TargetMachine:
    """LLVM's object for `machine`; an engine takes ownership of it."""
    return llvm.Target.from_triple(machine.triple).create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=3, codemodel="jitdefault", jit=True
    )


@functools.cache
def host() -> Machine:
    """The CPU of this machine."""
    return Machine(
        llvm.get_process_triple(),
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
    )


# The features that each level adds to the one before, as LLVM names them.
_LEVELS: dict[str, tuple[str, ...]] = {
    "x86-64": ("sse2",),
    "x86-64-v2": ("cx16", "sahf", "popcnt", "sse3", "ssse3", "sse4.1", "sse4.2"),
    "x86-64-v3": ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}

LEVELS = tuple(_LEVELS)


def missing(level: str) -> list[str]:
    """The features of an x86-64 level that the host lacks."""
    available = llvm.get_host_cpu_features()
    needed = [name for each in LEVELS[: LEVELS.index(level) + 1] for name in _LEVELS[each]]
    return [name for name in needed if not available.get(name)]


def reduced(level: str) -> Machine:
    """The host restricted to an x86-64 level."""
    lacking = missing(level)
    if lacking:
        raise ValueError(
            f"{host().cpu} cannot run code for {level}: it has no {', '.join(lacking)}"
        )
    return Machine(llvm.get_process_triple(), level)
