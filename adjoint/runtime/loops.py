"""A plan in plain Python: the loop evaluator runs the kernels, eager torch the calls between them.

Slow, and needs neither LLVM nor a BLAS: it shows what plans mean, and is the least that a target
has to bring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from adjoint.loops.evaluate import evaluate
from adjoint.loops.plan import Launch, Plan, RowTiles, Scratch
from adjoint.runtime.plans.binding import Binding, binding_failures, span_of
from adjoint.runtime.plans.program import PlanProgram
from adjoint.runtime.plans.runs import Run
from adjoint.runtime.plans.writing import Writer
from adjoint.target import Target


class LoopProgram(PlanProgram):
    def __init__(self, plan: Plan, target: Target) -> None:
        super().__init__(plan, target.device)

    def __call__(self, inputs: list[Any]) -> Any:
        with binding_failures():
            binding = LoopBinding(self.plan, self.runs, self._sizes(inputs))
        return (self._run if binding.is_checked else self._run_checked)(inputs, binding)

    def _writer(self, checks: bool = False) -> LoopWriter:
        return LoopWriter(self.plan, self.runs, checks)


class LoopBinding(Binding):
    def __init__(self, plan: Plan, runs: Sequence[Run], sizes: Sequence[int]) -> None:
        super().__init__(plan, sizes)
        self.runs = [self._evaluation(run) for run in runs]

    def _memory(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.uint8, device="cpu")

    def chunks(self, step: Launch | RowTiles) -> int:
        """As if there were two threads: sums over rows are put together from parts."""
        grid = step.grid if isinstance(step, Launch) else None
        return min(2, max(1, self.size(step.work if grid is None else grid.rows)))

    def _evaluation(self, run: Run) -> Callable[..., None]:
        def evaluated(*call_slots: torch.Tensor) -> None:
            slots = {**self.tensors, **dict(zip(run.call_slots, call_slots, strict=True))}
            for _, step in run.steps:
                assert isinstance(step, Launch), "row tiles need a BLAS"
                self._evaluate(step, slots)

        return evaluated

    def _evaluate(self, launch: Launch, slots: dict[int, torch.Tensor]) -> None:
        kernel = launch.kernel
        buffers = [
            self._scratch(each, launch) if isinstance(each, Scratch) else _flat(slots[each])
            for each in launch.operands
        ]
        extents = [self.chunks(launch), *self.ints(launch.extents)]
        evaluate(
            kernel,
            dict(zip([buffer.name for buffer in kernel.buffers], buffers, strict=True)),
            dict(zip(kernel.extents, extents, strict=True)),
        )

    def _scratch(self, scratch: Scratch, launch: Launch) -> torch.Tensor:
        start = self.start + self.offsets[scratch]
        count = self.size(scratch.count) * self.chunks(launch) * scratch.dtype.itemsize
        return self.arena[start : start + count].view(scratch.dtype)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All memory from the first element of a tensor to its last."""
    return tensor.detach().as_strided((span_of(tensor.shape, tensor.stride()),), (1,))


class LoopWriter(Writer):
    def __init__(self, plan: Plan, runs: Sequence[Run], checks: bool = False) -> None:
        super().__init__(plan, runs, checks)
        self.constants.update(empty_strided=torch.empty_strided)

    def new(self, slot: int, shape: str, strides: str, dtype: str) -> str:
        return f'empty_strided({shape}, {strides}, dtype={dtype}, device="cpu")'

    def enter(self, place: int, call_slots: Sequence[int]) -> None:
        self.line(f"runs[{place}]({', '.join(f's{slot}' for slot in call_slots)})")
