"""Kernels for the GPU, as a module of LLVM IR text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from adjoint.emit.body import METADATA, Wanted, defined
from adjoint.emit.products import ProductBody
from adjoint.emit.random import PHILOX_OF_GPU
from adjoint.emit.shortcuts import shortcuts
from adjoint.emit.teams import TeamBody
from adjoint.loops.statements import (
    Kernel,
    Loop,
    Mapping,
)
from adjoint.loops.teams import block_of

TRIPLE = "nvptx64-nvidia-cuda"

_HEADER = f"""\
target triple = "{TRIPLE}"
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


def emit_module(kernels: Sequence[Kernel], wide: bool = False) -> str:
    """LLVM text that defines every kernel.

    `wide`: the machine adds several neighbours to memory at a time.
    """
    wanted = Wanted()
    functions = ["\n".join(_kernel(kernel, wanted, wide)) for kernel in kernels]
    attributes = "attributes #0 = { nounwind }\nattributes #1 = { noreturn nounwind }"
    made = shortcuts(wanted.shortcuts)
    known = [line for line in defined(wanted, PHILOX_OF_GPU) if line not in made]
    return "\n".join([_HEADER, made, *known, *functions, attributes, METADATA, "!2 = !{}"])


def _kernel(kernel: Kernel, wanted: Wanted, wide: bool) -> Iterator[str]:
    (loop,) = kernel.body
    assert isinstance(loop, Loop)
    assert loop.mapping is Mapping.PARALLEL
    body = (TeamBody if kernel.tile is None else ProductBody)(kernel, wanted, wide)
    body.parallel(loop)
    parameters = [
        f"ptr noalias align 16 {'' if b.written else 'readonly '}%b.{b.name}"
        for b in kernel.buffers
    ]
    parameters += [f"i64 %e.{name}" for name in kernel.extents]
    limit = f'"nvvm.maxntid"="{block_of(kernel.team)}"'
    if kernel.tile is not None:
        limit += f' "nvvm.minctasm"="{max(1, 512 // kernel.team)}"'
    yield from body.globals
    yield f"define ptx_kernel void @{kernel.name}({', '.join(parameters)}) #0 {limit} {{"
    yield "entry:"
    yield from body.allocas
    yield "  br label %start"
    yield "start:"
    yield from body.lines
    yield "  ret void"
    yield "}"
