"""A plan in plain Python: the loop evaluator runs the kernels, eager torch the library calls.

It is slow and needs neither LLVM nor a BLAS.  It defines what plans mean, and shows the minimum
that a target has to implement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch

from adjoint.loops.evaluate import evaluate
from adjoint.loops.plan import Launch, NativeStep, Plan, Scratch, SlotKind
from adjoint.loops.runs import Run
from adjoint.open_types import TorchValue
from adjoint.runtime.plans.binding import BINDING_FAILURES, MakeTensors, PythonBinding
from adjoint.runtime.plans.host import Host
from adjoint.runtime.plans.hostcode import Value
from adjoint.runtime.plans.program import PlanProgram
from adjoint.runtime.plans.writing import Writer
from adjoint.strides import span_of
from adjoint.target import Target


class LoopProgram(PlanProgram):
    host: LoopHost

    def __init__(self, plan: Plan, target: Target) -> None:
        super().__init__(plan, target.device)

    def __call__(self, inputs: list[TorchValue]) -> TorchValue:
        with BINDING_FAILURES:
            binding = LoopBinding(self.host, self.runs, self._bind)
            binding.bind((*self._sizes(inputs), 2))
        return (self._run if binding.is_checked else self._run_checked)(inputs, binding)

    def _host(self) -> LoopHost:
        return LoopHost(self.plan)

    def _writer(self, checks: bool = False) -> LoopWriter:
        return LoopWriter(self.host, self.runs, checks)


class LoopHost(Host):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.launches = {
            step: [self.chunks(step), *self.code.sizes(step.extents)] for step in plan.launches
        }
        """The extents of each kernel."""
        self.sizes_end = len(self.code.instructions)

    def chunks(self, step: NativeStep) -> Value:
        """At most two chunks, so that partial results of reductions over rows are combined."""
        assert isinstance(step, Launch), "row tiles and products need a BLAS"
        work = self.size(step.work if step.grid is None else step.grid.rows)
        return work.at_least(1).at_most(self.threads)


class LoopBinding(PythonBinding):
    host: LoopHost

    def __init__(self, host: LoopHost, runs: Sequence[Run], make_tensors: MakeTensors) -> None:
        super().__init__(host, make_tensors)
        self.runs = [self._evaluation(run) for run in runs]

    def _evaluation(self, run: Run) -> Callable[..., None]:
        def evaluated(*call_slots: torch.Tensor) -> None:
            slots = {**self.tensors, **dict(zip(run.call_slots, call_slots, strict=True))}
            for _, step in run.steps:
                assert isinstance(step, Launch)
                self._evaluate(step, slots)

        return evaluated

    def _evaluate(self, launch: Launch, slots: Mapping[int, TorchValue]) -> None:
        kernel = launch.kernel
        extents = [self._number(value) for value in self.host.launches[launch]]
        buffers = [
            self._scratch(each, extents[0]) if isinstance(each, Scratch) else _flat(slots[each])
            for each in launch.operands
        ]
        evaluate(
            kernel,
            dict(zip([buffer.name for buffer in kernel.buffers], buffers, strict=True)),
            dict(zip(kernel.extents, extents, strict=True)),
        )

    def _number(self, value: Value) -> int:
        return self.words[value.index]

    def _scratch(self, scratch: Scratch, chunks: int) -> torch.Tensor:
        start = self._number(self.host.offsets[scratch]) // scratch.dtype.itemsize
        (count,) = self.ints([scratch.count])
        return self.typed(scratch.dtype)[start : start + count * chunks]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All memory from the first element of a tensor to its last.

    Kernels write to it as native ones do: autograd does not count that as a change of the tensor.
    """
    return tensor.data.as_strided((span_of(tensor.shape, tensor.stride()),), (1,))


class LoopWriter(Writer):
    names: ClassVar = {"empty_strided": torch.empty_strided}

    def new(self, slot: int, shape: str, strides: str, dtype: str) -> str:
        return f'empty_strided({shape}, {strides}, dtype={dtype}, device="cpu")'

    def tensors(self) -> list[int]:
        slots = self.plan.slots
        return [slot.number for slot in slots if slot.kind is SlotKind.TEMPORARY]

    def enter(self, place: int, call_slots: Sequence[int]) -> None:
        self.line(f"runs[{place}]({', '.join(f's{slot}' for slot in call_slots)})")
