"""A program: a plan as one Python function, for whichever target it was made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch

from adjoint.loops.plan import Plan
from adjoint.runtime.checking import UnexpectedResult, restoring_generators
from adjoint.runtime.plans.binding import Binding
from adjoint.runtime.plans.runs import runs_of
from adjoint.runtime.plans.writing import Writer


class PlanProgram(ABC):
    """Runs a plan.  Takes its inputs out of the list that it is given."""

    forgets_histories = False
    """It looks at addresses only: inputs must not be tracked by autograd."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.plan = plan
        self.device = device
        self.runs = runs_of(plan)
        self._run = self._made(self._writer())
        self._looking: Callable[..., Any] | None = None
        """The same function, which also looks at what operators return."""

    @abstractmethod
    def __call__(self, inputs: list[Any]) -> Any: ...

    @abstractmethod
    def _writer(self, looks: bool = False) -> Writer: ...

    def _made(self, writer: Writer) -> Callable[..., Any]:
        source, constants = writer.text()
        namespace: dict[str, Any] = {**constants}
        name = f"<adjoint program of {len(self.plan.steps)} steps>"
        exec(compile(source, name, "exec"), namespace)
        run: Callable[..., Any] = namespace["run"]
        return run

    def _look(self, inputs: list[Any], binding: Binding, *more: Any) -> Any:
        """Run, and look at what operators return; if it is not as promised, nothing has changed."""
        if self._looking is None:
            self._looking = self._made(self._writer(looks=True))
        kept = list(inputs)
        with restoring_generators(self.device):
            try:
                results = self._looking(inputs, binding, *more)
            except UnexpectedResult:
                inputs[:] = kept
                raise
        binding.looked = True
        return results

    def _sizes(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        return tuple(
            inputs[place] if dim < 0 else inputs[place].shape[dim]
            for _, place, dim in self.plan.symbols
        )
