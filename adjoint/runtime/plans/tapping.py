"""A program whose calls an observer carries out: to measure them, or to check their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from adjoint.runtime.plans.host import Host
from adjoint.runtime.plans.program import PlanProgram
from adjoint.runtime.plans.writing import Writer

# Given a program and the list of its inputs: what the call returns.
Tap: TypeAlias = Callable[[PlanProgram, list[object]], object]


class TappedProgram(PlanProgram):
    """Stands in the place of a program."""

    def __init__(self, program: PlanProgram, tap: Tap) -> None:
        # It has no function of its own, so nothing of the base class is made.
        self.program = program
        self.plan = program.plan
        self.device = program.device
        self.runs = program.runs
        self.host = program.host
        self.forgets_histories = program.forgets_histories
        self._tap = tap

    def __call__(self, inputs: list[object]) -> object:
        return self._tap(self.program, inputs)

    def _host(self) -> Host:
        return self.program.host

    def _writer(self, checks: bool = False) -> Writer:
        return self.program._writer(checks)
