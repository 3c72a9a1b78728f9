"""Lowers graphs of torch programs, and compares what their kernels compute with eager."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from adjoint import pipeline
from adjoint.compiler import Compiler
from adjoint.emit.llvm import emit_module
from adjoint.loops.plan import Launch, LibraryCall, NativeStep, Plan
from adjoint.lower import planning
from adjoint.options import Options
from adjoint.runtime.cpu.engine import load
from adjoint.runtime.cpu.program import CpuBinding, CpuHost, CpuProgram
from adjoint.runtime.gpu.program import GpuProgram
from adjoint.runtime.loops import LoopProgram
from adjoint.runtime.plans.hostcode import Value
from adjoint.runtime.plans.program import PlanProgram
from adjoint.target import CPU, NVPTX, Machine, Target, cpu_target, cuda_target

# How far a result may be from eager's: relative to it, and to 1.
CLOSE = {
    torch.float16: (1e-3, 1e-6),
    torch.bfloat16: (8e-3, 1e-6),
    torch.float32: (1e-6, 1e-7),
    torch.float64: (1e-13, 1e-15),
}

NATIVE = Options(target="native")

THREADS = cpu_target(has_blas=True)

# Kernels for a GPU, of tensors that lie on the processor.
GRID = cuda_target(CPU, (9, 0), draws_in_kernels=False)
DRAWING_GRID = cuda_target(CPU, (9, 0), draws_in_kernels=True)

HOPPER = Machine(NVPTX, "sm_90", "+ptx81")


def native_program(graph_module: GraphModule, options: Options = NATIVE) -> PlanProgram | None:
    """The graph as native code; None if it is to be run op by op.

    Graphs of `make_fx` lack what verify asks for.
    """
    return Compiler(dataclasses.replace(options, verify=False)).native(graph_module)


def lower(
    graph_module: GraphModule, target: Target = THREADS, called: Collection[str] = frozenset()
) -> Plan:
    for each in pipeline.lowering(target):
        graph_module = each(graph_module)
    return planning.lower(graph_module, target, called)


def graph_of(function: Callable[..., Any], inputs: Sequence[Any]) -> GraphModule:
    """The graph of a program of functional ops."""
    graph_module: GraphModule = make_fx(function, tracing_mode="fake")(*inputs)
    return graph_module


def program_of(function: Callable[..., Any], inputs: Sequence[Any]) -> CpuProgram:
    program = native_program(graph_of(function, inputs))
    assert isinstance(program, CpuProgram), "nothing became a kernel"
    return program


def loop_program_of(function: Callable[..., Any], inputs: Sequence[Any]) -> LoopProgram:
    """The kernels that a processor would run, in plain Python."""
    program = native_program(graph_of(function, inputs), Options(target="loops"))
    assert isinstance(program, LoopProgram), "nothing became a kernel"
    return program


class _ManyThreads(CpuProgram):
    """Runs a plan for a GPU on the processor, where a team is one thread."""

    def __call__(self, inputs: list[Any]) -> Any:
        # One thread: what several would meet in is put together by instructions of a GPU.
        binding = CpuBinding(self.host, self._bind)
        binding.bind((*self._sizes(inputs), 1))
        return self._run(inputs, binding, 1)

    def _host(self) -> CpuHost:
        return _ManyChunks(self.plan, self.runs, self.functions, 1)


class _ManyChunks(CpuHost):
    def chunks(self, step: NativeStep) -> Value:
        assert isinstance(step, Launch)
        assert step.grid is not None
        return self.size(step.grid.rows).at_most(3).at_least(1)


def grid_program_of(function: Callable[..., Any], inputs: Sequence[Any]) -> CpuProgram:
    """The kernels that a GPU would run."""
    return grid_program(lower(graph_of(function, inputs), GRID))


def grid_program(plan: Plan) -> CpuProgram:
    """A plan for a GPU, on the processor."""
    found = launches(plan)
    names = [dataclasses.replace(each.kernel, name=f"k{n}") for n, each in enumerate(found)]
    functions = load(emit_module(names), [kernel.name for kernel in names])
    return _ManyThreads(plan, dict(zip(found, functions, strict=True)))


def launches(plan: Plan) -> list[Launch]:
    return [step for step in plan.steps if isinstance(step, Launch)]


def calls(plan: Plan) -> list[LibraryCall]:
    return [step for step in plan.steps if isinstance(step, LibraryCall)]


def assert_alike(
    ours: torch.Tensor, eager: torch.Tensor, exact: bool = False, signed_zeros: bool = True
) -> None:
    """Sizes, layout and type; NaN, infinity and the sign of zero; and values."""
    assert (ours.dtype, ours.shape) == (eager.dtype, eager.shape)
    assert _layout(ours) == _layout(eager)
    if not ours.dtype.is_floating_point:
        torch.testing.assert_close(ours, eager, rtol=0, atol=0)
        return
    rtol, atol = (0.0, 0.0) if exact else CLOSE[ours.dtype]
    torch.testing.assert_close(ours, eager, rtol=rtol, atol=atol, equal_nan=True)
    if signed_zeros:
        zero = (eager == 0) & (ours == 0)
        assert torch.equal(ours[zero].signbit(), eager[zero].signbit())


def _layout(tensor: torch.Tensor) -> list[int]:
    """Strides that matter."""
    if tensor.numel() == 0:
        return []
    return [s for s, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def check(function: Callable[..., Any], *inputs: Any, **options: Any) -> CpuProgram:
    """The kernels of a program compute what eager does, those for a GPU too."""
    program = program_of(function, inputs)
    eager = function(*inputs)
    # Twice: the second call finds memory that the first has used.
    programs: list[PlanProgram] = [program, program, grid_program_of(function, inputs)]
    if Options().target == "loops":
        programs.append(loop_program_of(function, inputs))
    for each in programs:
        _compare(each(list(inputs)), eager, **options)
    if torch.cuda.is_available():
        _check_on_gpu(function, inputs, **options)
    return program


def _check_on_gpu(function: Callable[..., Any], inputs: Sequence[Any], **options: Any) -> None:
    there = [x.cuda() if isinstance(x, torch.Tensor) else x for x in inputs]
    try:
        eager = function(*there)
    except RuntimeError:  # Not for these types there; or it mixes devices, as programs must not.
        return
    graph_module = graph_of(function, there)
    on_gpu = native_program(graph_module)
    if launches(lower(graph_module, dataclasses.replace(GRID, device=torch.device("cuda", 0)))):
        assert isinstance(on_gpu, GpuProgram)
        _compare(on_gpu(there), eager, **options)


def _compare(ours: Any, eager: Any, **options: Any) -> None:
    one = [ours] if isinstance(ours, torch.Tensor) else ours
    other = [eager] if isinstance(eager, torch.Tensor) else eager
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        assert_alike(left.cpu(), right.cpu(), **options)


def special(dtype: torch.dtype) -> torch.Tensor:
    """Numbers of a type that ops treat in their own ways, and a few ordinary ones."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        known = [0, 1, 2, 3, 5, 100, limits.max, limits.min]
        return torch.tensor(known if dtype == torch.uint8 else [*known, -1, -2, -3], dtype=dtype)
    finfo = torch.finfo(dtype)
    known_ = [0.0, 0.3, 0.5, 1.0, 1.5, 2.5, 3.0, 7.3, 21.0, 90.0, finfo.max, finfo.tiny, math.inf]
    return torch.tensor([*known_, *(-x for x in known_), math.nan], dtype=dtype)


def pairs(*dtypes: torch.dtype) -> list[torch.Tensor]:
    """Every combination of special numbers."""
    grid = torch.meshgrid(*(torch.arange(len(special(d))) for d in dtypes), indexing="ij")
    return [special(d)[places.reshape(-1)] for d, places in zip(dtypes, grid, strict=True)]
