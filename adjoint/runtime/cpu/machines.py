"""The CPU that code is generated for: the host, or another by name.

Code for another CPU is compiled and inspected by tests.  It runs only if it is for an x86-64 level
that the host supports.
"""

from __future__ import annotations

import functools

import llvmlite.binding as llvm

from adjoint.runtime.cpu.levels import features_of
from adjoint.target import Machine


def target_machine(machine: Machine, may_move: bool = False) -> llvm.TargetMachine:
    """LLVM's object for `machine`; an engine takes ownership of it.

    `may_move`: code refers to itself by distances, and to nothing by its address.
    """
    options = {"reloc": "pic", "codemodel": "small"} if may_move else {"codemodel": "jitdefault"}
    return llvm.Target.from_triple(machine.triple).create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=3, jit=not may_move, **options
    )


@functools.cache
def host() -> Machine:
    """The CPU of this machine."""
    return Machine(
        llvm.get_process_triple(),
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
    )


def missing(level: str) -> list[str]:
    """The features of an x86-64 level that the host lacks."""
    available = llvm.get_host_cpu_features()
    return [name for name in features_of(level) if not available.get(name)]


def reduced(level: str) -> Machine:
    """The host restricted to an x86-64 level."""
    lacking = missing(level)
    if lacking:
        raise ValueError(
            f"{host().cpu} cannot run code for {level}: it has no {', '.join(lacking)}"
        )
    return Machine(llvm.get_process_triple(), level)
