"""A program: a loaded plan, as one Python function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch

from adjoint.loops.plan import Plan
from adjoint.loops.runs import has_new_results, runs_of
from adjoint.open_types import TorchValue
from adjoint.runtime.checking import UnexpectedResult, restoring_generators
from adjoint.runtime.plans.binding import Binding
from adjoint.runtime.plans.host import Host
from adjoint.runtime.plans.writing import Writer


class PlanProgram(ABC):
    """Runs a plan.  Clears the list of inputs that it is given, so that they can be freed early."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.plan = plan
        self.device = device
        self.runs = runs_of(plan)
        self.forgets_histories = has_new_results(plan)
        """No result can have a history, whether or not the inputs do."""
        self.host = self._host()
        """What the host computes for a call."""
        self._run, self._bind = self._made(self._writer())
        self._checked_function: Callable[..., object] | None = None
        """The same function, with checks of what library calls return."""

    @abstractmethod
    def __call__(self, inputs: list[TorchValue]) -> TorchValue: ...

    @abstractmethod
    def _host(self) -> Host: ...

    @abstractmethod
    def _writer(self, checks: bool = False) -> Writer: ...

    def _made(self, writer: Writer) -> tuple[Callable[..., object], Callable[[Binding], None]]:
        source, constants = writer.text()
        namespace: dict[str, TorchValue] = {**constants}
        name = f"<adjoint program of {len(self.plan.steps)} steps>"
        exec(compile(source, name, "exec"), namespace)
        return namespace["run"], namespace["bind"]

    def _run_checked(self, inputs: list[object], binding: Binding, *more: object) -> object:
        """Run and check what library calls return; on `UnexpectedResult` nothing has changed."""
        if self._checked_function is None:
            self._checked_function, _ = self._made(self._writer(checks=True))
        kept = list(inputs)
        with restoring_generators(self.device):
            try:
                results = self._checked_function(inputs, binding, *more)
            except UnexpectedResult:
                inputs[:] = kept
                raise
        binding.set_checked()
        return results

    def _sizes(self, inputs: Sequence[TorchValue]) -> tuple[int, ...]:
        return tuple(
            [
                inputs[place] if dim < 0 else inputs[place].shape[dim]
                for _, place, dim in self.plan.symbols
            ]
        )
