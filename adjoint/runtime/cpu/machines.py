"""The processor that code is generated for: the one at hand, or another by its name.

Code for another is only compiled and looked at, unless it is a level of x86-64 that the processor
at hand has, too.
"""

from __future__ import annotations

import functools

import llvmlite.binding as llvm

from adjoint.target import Machine


def target_machine(machine: Machine) -> llvm.TargetMachine:
    return llvm.Target.from_triple(machine.triple).create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=3, codemodel="jitdefault", jit=True
    )


@functools.cache
def host() -> Machine:
    """The processor at hand."""
    return Machine(
        llvm.get_process_triple(),
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
    )


# What each level has that the one before has not, as LLVM names it.
_LEVELS: dict[str, tuple[str, ...]] = {
    "x86-64": ("sse2",),
    "x86-64-v2": ("cx16", "sahf", "popcnt", "sse3", "ssse3", "sse4.1", "sse4.2"),
    "x86-64-v3": ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}

LEVELS = tuple(_LEVELS)


def missing(level: str) -> list[str]:
    """What the processor at hand lacks of a level of x86-64."""
    there = llvm.get_host_cpu_features()
    needed = [name for each in LEVELS[: LEVELS.index(level) + 1] for name in _LEVELS[each]]
    return [name for name in needed if not there.get(name)]


def reduced(level: str) -> Machine:
    """The processor at hand with nothing but what a level of x86-64 has."""
    lacking = missing(level)
    if lacking:
        raise ValueError(
            f"{host().cpu} cannot run code for {level}: it has no {', '.join(lacking)}"
        )
    return Machine(llvm.get_process_triple(), level)
