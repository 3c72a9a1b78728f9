from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adjoint.observing import Sighting
from adjoint.runtime.plans.program import PlanProgram
from adjoint.runtime.plans.tapping import TappedProgram
from adjoint.stages import observe


class Doubling:
    """An observer that carries out calls, and doubles what they return."""

    calls = 0

    def __call__(self, sighting: Sighting) -> None: ...

    def running(self, program: PlanProgram, order: int) -> PlanProgram:
        return TappedProgram(program, self.call)

    def call(self, program: PlanProgram, inputs: list[Any]) -> Any:
        self.calls += 1
        return [2 * each for each in program(inputs)]


def test_an_observer_may_carry_out_the_calls_of_a_program() -> None:
    def f(x: Tensor) -> Tensor:
        return x.sin() + 1

    doubling, x = Doubling(), torch.rand(5)
    ((result,),) = observe(doubling, f, (x,), {}, 0, options={"target": "native"})
    assert doubling.calls == 1
    torch.testing.assert_close(result, 2 * f(x))
