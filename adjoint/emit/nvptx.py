"""Kernels for the GPU, as a module of LLVM IR text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from adjoint.emit.arithmetic import Callees
from adjoint.emit.body import METADATA
from adjoint.emit.products import ProductBody
from adjoint.emit.random import PHILOX_ON_GPU
from adjoint.emit.shortcuts import shortcuts
from adjoint.emit.teams import TeamBody
from adjoint.loops.statements import Kernel, Loop, Mapping
from adjoint.loops.teams import threads_per_block
from adjoint.target import NVPTX, Target

# Threads of matrix products that are to be resident on a multiprocessor: limits their registers.
MIN_RESIDENT_THREADS = 512

_HEADER = f"""\
target triple = "{NVPTX}"
@meeting = internal addrspace(3) global [32 x i64] undef, align 8
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.shfl.sync.bfly.i32(i32, i32, i32, i32)
declare void @llvm.nvvm.barrier0()
declare void @llvm.nvvm.bar.warp.sync(i32)
declare void @__assertfail(ptr, ptr, i32, ptr, i64) #1
@said.wrong = internal addrspace(1) constant [26 x i8] c"an index is out of bounds\\00"
@said.where = internal addrspace(1) constant [17 x i8] c"adjoint's kernel\\00"
"""


def emit_module(kernels: Sequence[Kernel], target: Target) -> str:
    """A module that defines every kernel."""
    callees = Callees(vector_bytes=0)
    functions = ["\n".join(_kernel(kernel, callees, target)) for kernel in kernels]
    attributes = "attributes #0 = { nounwind }\nattributes #1 = { noreturn nounwind }"
    short = shortcuts(callees.shortcuts)
    others = [line for line in callees.defined(PHILOX_ON_GPU) if line not in short]
    return "\n".join([_HEADER, short, *others, *functions, attributes, METADATA, "!2 = !{}"])


def _kernel(kernel: Kernel, callees: Callees, target: Target) -> Iterator[str]:
    (loop,) = kernel.body
    assert isinstance(loop, Loop)
    assert loop.mapping is Mapping.PARALLEL
    body = (TeamBody if kernel.tile is None else ProductBody)(kernel, callees, target)
    body.parallel(loop)
    parameters = [
        f"ptr noalias align 16 {'' if b.written else 'readonly '}%b.{b.name}"
        for b in kernel.buffers
    ]
    parameters += [f"i64 %e.{name}" for name in kernel.extents]
    limit = f'"nvvm.maxntid"="{threads_per_block(kernel.team)}"'
    if kernel.tile is not None:
        blocks = max(1, MIN_RESIDENT_THREADS // kernel.team)
        limit += f' "nvvm.minctasm"="{blocks}"'
    yield from body.globals
    signature = f"ptx_kernel void @{kernel.name}({', '.join(parameters)}) #0 {limit}"
    yield from body.function(signature)
