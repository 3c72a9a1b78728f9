"""A plan on a GPU: launches of kernels, with library calls between them.

The kernels between two library calls are launched by one native call, on torch's stream.  Memory
for temporaries is shared by all programs of the stream.  Repeated calls replay a CUDA graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch

from adjoint.graph.evaluation import detach_inputs
from adjoint.loops.plan import (
    FULL_OCCUPANCY_THREADS,
    Argument,
    Launch,
    LibraryCall,
    NativeStep,
    Plan,
    operands_of,
)
from adjoint.loops.runs import has_new_results, why_not_captured
from adjoint.loops.teams import threads_per_block
from adjoint.open_types import TorchValue
from adjoint.runtime.code import NativeFunction
from adjoint.runtime.cpu.callables import STORE_ADDRESSES, runner
from adjoint.runtime.cpu.externals import add_external
from adjoint.runtime.gpu.capture import CudaCapturer
from adjoint.runtime.gpu.cuda_graphs import CudaGraphs
from adjoint.runtime.gpu.driver import check, launch_address, use_in_this_thread
from adjoint.runtime.gpu.memory import NO_MEMORY, Arena, Lease, arena_of
from adjoint.runtime.plans.binding import BINDING_FAILURES, MakeTensors, NativeBinding
from adjoint.runtime.plans.host import Addresses, NativeHost
from adjoint.runtime.plans.hostcode import Value, Word, WordAddress
from adjoint.runtime.plans.layout import ALIGNMENT_BYTES
from adjoint.runtime.plans.program import PlanProgram
from adjoint.runtime.plans.writing import INPUT_ALIGNMENT_BYTES, NativeWriter
from adjoint.target import Target
from adjoint.torch_private import trees
from adjoint.torch_private.cuda import current_device, is_capturing, raw_stream
from adjoint.torch_private.operators import OpOverload


class GpuProgram(PlanProgram):
    host: GpuHost

    def __init__(
        self, plan: Plan, functions: Mapping[Launch, NativeFunction], target: Target
    ) -> None:
        device = target.device
        self.functions = functions
        """The native code of each kernel, kept alive by the program."""
        super().__init__(plan, device)
        # Replays depend on nothing but the addresses of inputs.
        self.forgets_histories = True
        self._bindings: dict[int, GpuBinding] = {}
        """One for each stream."""
        why = why_not_captured(plan) if target.captures_cuda_graphs else "it is switched off"
        self.capturer = CudaCapturer(device, draws_random_numbers(plan))
        # Results that kernels write have no history.
        self._detach = _leave if has_new_results(plan) else detach_inputs
        self.cuda_graphs = CudaGraphs(
            self._run, used_inputs(plan), self.capturer, why, self._detach
        )

    def __call__(self, inputs: list[object]) -> TorchValue:
        index = self.device.index
        if current_device() != index:
            with torch.cuda.device(index):
                return self._on(raw_stream(index), inputs)
        return self._on(raw_stream(index), inputs)

    def _on(self, stream: int, inputs: list[object]) -> object:
        use_in_this_thread(self.device.index)
        arena = arena_of(self.device, stream)
        if is_capturing() or not arena.busy.acquire(blocking=False):
            # A nested or concurrent call, or one that the caller captures: with memory of its own.
            self._detach(inputs)
            own = self._binding(Arena(self.device), inputs)
            run = self._run if own.is_checked else self._run_checked
            return run(inputs, own, stream, self.capturer.allocate)
        try:
            binding = self._bound(arena, stream, inputs)
            if not binding.is_checked:
                self._detach(inputs)
                return self._run_checked(inputs, binding, stream, self.capturer.allocate)
            return self.cuda_graphs(inputs, binding, stream)
        finally:
            arena.busy.release()

    def _bound(self, arena: Arena, stream: int, inputs: Sequence[object]) -> GpuBinding:
        binding = self._bindings.get(stream)
        if binding is None:
            while len(self._bindings) >= MAX_STREAMS:
                self._bindings.pop(next(iter(self._bindings)))
            binding = self._bindings[stream] = self._binding(arena, inputs)
            return binding
        sizes = (*self._sizes(inputs), 1)
        if binding.sizes != sizes or binding.lease.is_stale:
            with BINDING_FAILURES:
                binding.bind(sizes)
        return binding

    def _binding(self, arena: Arena, inputs: Sequence[object]) -> GpuBinding:
        with BINDING_FAILURES:
            binding = GpuBinding(self.host, self._bind, arena)
            binding.bind((*self._sizes(inputs), 1))
            return binding

    def _host(self) -> GpuHost:
        return GpuHost(self.plan, self.runs, self.functions)

    def _writer(self, checks: bool = False) -> GpuWriter:
        return GpuWriter(self.host, self.runs, checks)


def _leave(inputs: list[object]) -> None:
    """Inputs are left as they are: they may have histories."""


def used_inputs(plan: Plan) -> list[int]:
    """The positions of the inputs that steps or results use."""
    used: set[int] = set()
    trees_of_arguments = [plan.outputs]
    for step in plan.steps:
        if isinstance(step, LibraryCall):
            trees_of_arguments.append((step.args, step.kwargs))
        else:
            used |= {operand for operand in operands_of(step) if isinstance(operand, int)}
    leaves = [leaf for tree in trees_of_arguments for leaf in trees.leaves(tree)]
    used |= {leaf.slot for leaf in leaves if isinstance(leaf, Argument)}
    return [position for position, slot in enumerate(plan.inputs) if slot in used]


def draws_random_numbers(plan: Plan) -> bool:
    """Whether library calls may draw random numbers from torch's generator."""
    return any(
        isinstance(step, LibraryCall)
        and isinstance(step.op, OpOverload)
        and torch.Tag.nondeterministic_seeded in step.op.tags
        for step in plan.steps
    )


# Streams for which a program keeps a binding.
MAX_STREAMS = 16


class GpuHost(NativeHost):
    input_alignment = INPUT_ALIGNMENT_BYTES

    def chunks(self, step: NativeStep) -> Value:
        assert isinstance(step, Launch)
        grid = step.grid
        assert grid is not None
        most = FULL_OCCUPANCY_THREADS // self.size(grid.threads).at_least(1)
        chunks = -(-self.size(grid.rows) // grid.min_rows)
        return chunks.at_most(most.at_least(1)).at_least(1)

    def _entry(self, step: NativeStep, address: Addresses) -> list[Word]:
        """The address of: the function, the grid size, the block size and the arguments."""
        assert isinstance(step, Launch)
        grid = step.grid
        assert grid is not None
        values, code = self.arguments(step, address), self.functions[step].address
        team = step.kernel.team
        teams = self.size(grid.count)
        if grid.chunked:
            teams = teams * self.chunks(step)
        block = threads_per_block(team)
        first = self.code.put(values)
        pointers = self.code.put([WordAddress(first.index + n) for n in range(len(values))])
        return [self.code.put([code, -(-(teams * team) // block), block, pointers])]


class GpuBinding(NativeBinding):
    def __init__(self, host: GpuHost, make_tensors: MakeTensors, arena: Arena) -> None:
        super().__init__(host, make_tensors)
        self._taken_from = arena
        self.lease = Lease(NO_MEMORY)

    def _runner(self, words: int) -> Callable[..., int]:
        return launcher()(words)

    def release(self) -> None:
        self.tensors.clear()
        self.flat.clear()
        self.arena = NO_MEMORY

    def _take_memory(self, count: int) -> None:
        lease = self._taken_from.lease(count + ALIGNMENT_BYTES)
        if lease is not self.lease:
            self.release()
            self.lease = lease
            lease.users.add(self)
            self.set_memory(lease.memory)


def _failed(code: int) -> None:
    check(code, "launch a kernel")


class GpuWriter(NativeWriter):
    parameters = "inputs, binding, stream, new"
    names: ClassVar = {"failed": _failed}

    def new(self, slot: int, shape: str, strides: str, dtype: str) -> str:
        return f"new({slot}, {shape}, {strides}, {dtype})"

    def is_unreadable(self, name: str) -> str:
        return f"{super().is_unreadable(name)} or {name}.data_ptr() % {INPUT_ALIGNMENT_BYTES}"

    def native(self, call: str) -> None:
        self.line(f"code = {call}stream)")
        self.line("if code:")
        self.line("    failed(code)")


# The function that launches kernels in order.
LAUNCH = "adjoint.launch"

LAUNCHER = f"""\
declare i32 @cuLaunchKernel(ptr, i32, i32, i32, i32, i32, i32, i32, ptr, ptr, ptr)
define i64 @adjoint.launch(
    ptr %bindings, i64 %bound, ptr %table, ptr %steps, i64 %count, i64 %stream) {{
entry:
  %on = inttoptr i64 %stream to ptr
{STORE_ADDRESSES}
step:
  %s = phi i64 [ 0, %bind.end ], [ %s.next, %next ]
  %entry.at = getelementptr ptr, ptr %steps, i64 %s
  %launch = load ptr, ptr %entry.at
  %function = load ptr, ptr %launch
  %blocks.at = getelementptr i64, ptr %launch, i64 1
  %blocks64 = load i64, ptr %blocks.at
  %blocks = trunc i64 %blocks64 to i32
  %threads.at = getelementptr i64, ptr %launch, i64 2
  %threads64 = load i64, ptr %threads.at
  %threads = trunc i64 %threads64 to i32
  %args.at = getelementptr i64, ptr %launch, i64 3
  %args = load ptr, ptr %args.at
  %nothing = icmp eq i32 %blocks, 0
  br i1 %nothing, label %next, label %go
go:
  %code = call i32 @cuLaunchKernel(ptr %function, i32 %blocks, i32 1, i32 1,
    i32 %threads, i32 1, i32 1, i32 0, ptr %on, ptr %args, ptr null)
  %good = icmp eq i32 %code, 0
  br i1 %good, label %next, label %bad
next:
  %s.next = add i64 %s, 1
  %s.more = icmp ult i64 %s.next, %count
  br i1 %s.more, label %step, label %end
bad:
  %wide = zext i32 %code to i64
  ret i64 %wide
end:
  ret i64 0
}}
"""


@functools.cache
def launcher() -> Callable[[int], Callable[..., int]]:
    """Makes callables that store a call's addresses and launch a run of kernels."""
    add_external("cuLaunchKernel", launch_address())
    return runner(LAUNCHER, LAUNCH)
