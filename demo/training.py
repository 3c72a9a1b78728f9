"""Eager and adjoint learn the same lesson, each with its own copy of the network.

They take turns in blocks of steps, so that whatever else the machine does slows both alike.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from adjoint.bench.measure import relative_error

Network = Callable[..., Tensor]
Batch = tuple[Tensor, ...]
Compile = Callable[[nn.Module], Network]

BLOCK = 20
SYSTEMS: dict[str, Compile] = {
    "eager": lambda model: model,
    "adjoint": lambda model: torch.compile(model, backend="adjoint"),
}


@dataclass(frozen=True)
class Lesson:
    """A network at its start, and what it is taught."""

    name: str
    model: nn.Module
    loss: Callable[..., Tensor]
    """Of the network, compiled or not, and a batch."""
    batch: Callable[[int], Batch]
    """Of the number of the step: every system sees the same."""
    steps: int
    rate: float
    """The largest learning rate; it rises to this and falls."""


@dataclass
class Pupil:
    """One system's copy of the network, and how its training went."""

    system: str
    model: nn.Module
    network: Network
    optimizer: torch.optim.Optimizer
    schedule: Any
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def cold(self) -> float:
        """The first step, which compiles."""
        return self.seconds[0]

    @property
    def speed(self) -> float:
        """Steps a second, once compiled."""
        return 1 / statistics.median(self.seconds[1:] or self.seconds)

    def step(self, lesson: Lesson) -> None:
        batch = lesson.batch(len(self.losses))
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = lesson.loss(self.network, *batch)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - start)
        self.schedule.step()


def pupil(lesson: Lesson, system: str) -> Pupil:
    """A copy of the network that has learned nothing yet."""
    model = copy.deepcopy(lesson.model)
    optimizer = torch.optim.Adam(model.parameters())
    # It counts one step beyond the last, which nobody takes.
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, lesson.rate, total_steps=lesson.steps + 1
    )
    return Pupil(system, model, SYSTEMS[system](model), optimizer, schedule)


def train(lesson: Lesson, saw: Callable[[list[Pupil], Pupil], None]) -> list[Pupil]:
    """Train one pupil of each system; `saw(all, one)` is told before each step of one."""
    pupils = [pupil(lesson, system) for system in SYSTEMS]
    for begin in range(0, lesson.steps, BLOCK):
        for one in pupils:
            for _ in range(begin, min(begin + BLOCK, lesson.steps)):
                saw(pupils, one)
                one.step(lesson)
    return pupils


def gradient_error(lesson: Lesson, trained: nn.Module, compile: Compile) -> float:
    """The largest relative difference from eager's gradients, in float64, before and after."""
    compiled_model = copy.deepcopy(lesson.model).double()
    compiled = compile(compiled_model)
    batch = tuple(x.double() if x.is_floating_point() else x for x in lesson.batch(0))
    errors = []
    for state in (lesson.model, trained):
        model = copy.deepcopy(state).double()
        compiled_model.load_state_dict(model.state_dict())
        expected = _gradients(lesson, model, model, batch)
        errors.append(relative_error(_gradients(lesson, compiled_model, compiled, batch), expected))
    return max(errors)


def _gradients(
    lesson: Lesson, model: nn.Module, network: Network, batch: Batch
) -> dict[str, Tensor]:
    model.zero_grad()
    lesson.loss(network, *batch).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
