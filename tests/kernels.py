"""Runs loop nests as native code, and as what they mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from adjoint.emit.llvm import emit_module
from adjoint.loops.evaluate import evaluate
from adjoint.loops.expressions import Counter, Expression, Extent, Load, integer
from adjoint.loops.statements import Buffer, Kernel, Loop, Statement, Store, TeamMemory
from adjoint.loops.statements import Mapping as Mapped
from adjoint.loops.verify import verify
from adjoint.runtime.code import NativeFunction
from adjoint.runtime.cpu import machines
from adjoint.runtime.cpu.callables import kernel_runner, words_of
from adjoint.runtime.cpu.engine import load

HERE, N = Counter("i"), Extent("n")


def kernel(
    body: Sequence[Statement],
    reads: Mapping[str, torch.dtype],
    writes: Mapping[str, torch.dtype],
    extents: Sequence[str] = ("n",),
    name: str = "kernel",
) -> Kernel:
    buffers = [Buffer(each, dtype) for each, dtype in reads.items()]
    buffers += [Buffer(each, dtype, written=True) for each, dtype in writes.items()]
    return verify(Kernel(name, tuple(buffers), tuple(extents), tuple(body)))


def over(stop: Expression, *body: Statement, counter: str = "i", **options: Any) -> Loop:
    return Loop(counter, integer(0), stop, tuple(body), **options)


def pointwise(value: Expression, reads: Mapping[str, torch.dtype], name: str = "kernel") -> Kernel:
    """out[i] = value, for each i below n."""
    return kernel([over(N, Store("out", HERE, value))], reads, {"out": value.dtype}, name=name)


def reversing(side: int, dtype: torch.dtype = torch.float32, stored: int | None = None) -> Kernel:
    """Runs of `side` elements, each from its last to its first, by way of memory of the team.

    `stored`: how many of them are stored there.
    """
    first, j, size = HERE * side, Counter("j"), integer(side)
    reads = Store("tile", j, Load("x", first + j, dtype))
    writes = Store("out", first + j, Load("tile", size - 1 - j, dtype))
    body = over(
        N,
        TeamMemory("tile", dtype, side),
        over(integer(stored or side), reads, counter="j", mapping=Mapped.VECTOR),
        over(size, writes, counter="j", mapping=Mapped.VECTOR),
        mapping=Mapped.PARALLEL,
    )
    return kernel([body], {"x": dtype}, {"out": dtype})


def at(buffer: str, dtype: torch.dtype) -> Load:
    return Load(buffer, HERE, dtype)


def compiled(kernels: Sequence[Kernel]) -> list[NativeFunction]:
    """Kernels as native code, in one module; their names must differ."""
    host = machines.host()
    text = emit_module(kernels, host.attributes, host.vector_bytes)
    return load(text, [each.name for each in kernels])


def call(
    function: NativeFunction,
    kernel: Kernel,
    buffers: Mapping[str, torch.Tensor],
    extents: Mapping[str, int],
    threads: int = 1,
) -> None:
    values = [buffers[each.name].data_ptr() for each in kernel.buffers]
    values += [extents[name] for name in kernel.extents]
    arguments = np.array([*values, 0], dtype=np.int64)
    steps = np.array([function.address, arguments.ctypes.data], dtype=np.int64)
    words = words_of(0, 0, 0, steps.ctypes.data, 1)
    kernel_runner()(words.ctypes.data)(threads)


def run(
    kernel: Kernel,
    buffers: Mapping[str, torch.Tensor],
    extents: Mapping[str, int],
    threads: int = 1,
) -> dict[str, torch.Tensor]:
    """What native code leaves in the buffers."""
    made = {name: tensor.clone() for name, tensor in buffers.items()}
    (function,) = compiled([kernel])
    call(function, kernel, made, extents, threads)
    return made


def meaning(
    kernel: Kernel, buffers: Mapping[str, torch.Tensor], extents: Mapping[str, int]
) -> dict[str, torch.Tensor]:
    """What the evaluator leaves in the buffers."""
    made = {name: tensor.clone() for name, tensor in buffers.items()}
    evaluate(kernel, made, extents)
    return made


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit, but for what kind of NaN."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.is_floating_point:
        both = one.isnan() & other.isnan()
        one, other = one.masked_fill(both, 0), other.masked_fill(both, 0)
        return bool(((one == other) & (one.signbit() == other.signbit())).all())
    return torch.equal(one, other)


def ulps(one: torch.Tensor, other: torch.Tensor) -> float:
    """How many numbers of the type lie between two of them, at most; infinite if one is NaN."""
    if one.numel() == 0:
        return 0.0
    if not one.dtype.is_floating_point:
        return 0.0 if torch.equal(one, other) else float("inf")
    if not torch.equal(one.isnan(), other.isnan()) or not torch.equal(one.isinf(), other.isinf()):
        return float("inf")
    integer_type = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.dtype.itemsize]
    known = one.isfinite() & other.isfinite()
    if not torch.equal(one[one.isinf()], other[one.isinf()]):
        return float("inf")
    bits = [t[known].contiguous().view(integer_type).double() for t in (one, other)]
    low = float(torch.iinfo(integer_type).min)
    ordered = [torch.where(b < 0, low - b, b) for b in bits]
    gaps = (ordered[0] - ordered[1]).abs()
    return float(gaps.max()) if gaps.numel() else 0.0
