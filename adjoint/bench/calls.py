"""`adjoint bench --calls`: functions so small that the call is most of their time, on one thread.

Where sizes change from call to call they are symbols from the first (`dynamic=True`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import rich.box
import rich.table
import torch
from torch import Tensor, nn

from adjoint.bench import own, table
from adjoint.bench.measure import kept, largest_error, timed_call, timed_calls
from adjoint.bench.problems import Expected, Step, perceptron
from adjoint.bench.results import Measurement, Row, Table, Task
from adjoint.open_types import UserFunction

SYSTEMS = own.SYSTEMS

WIDTH = 16
ONE_SIZE = (8,)
MANY_SIZES = tuple(range(8, 68))

# Calls that are timed together, because one is short; and rounds through all sizes before that.
CALLS_IN_REP = 100
WARM_UP_ROUNDS = 3

Compile: TypeAlias = Callable[[UserFunction], UserFunction]


def _two_ops(x: Tensor, y: Tensor) -> Tensor:
    return (x + y).sin()


def _fifteen_ops(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(5):
        x = (x * y + 1).tanh()
    return x


def _calls_of(function: Callable[..., Tensor]) -> Callable[[Compile, torch.dtype], Step]:
    def make(compile: Compile, _: torch.dtype) -> Step:
        return Step(compile(function), _value)

    return make


def _value(returned: Tensor) -> dict[str, Tensor]:
    return {"value": returned}


def _network(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return perceptron([WIDTH, 32, 32, 1], nn.Tanh).to(dtype)


def _forward(compile: Compile, dtype: torch.dtype) -> Step:
    call = compile(_network(dtype))
    return Step(lambda x, _: call(x), _value)


def _training(compile: Compile, dtype: torch.dtype) -> Step:
    net = _network(dtype)
    call = compile(net)

    def run(x: Tensor, _: Tensor) -> None:
        net.zero_grad(set_to_none=True)
        call(x).square().mean().backward()

    return Step(run, lambda _: _gradients(net))


def _second_order(compile: Compile, dtype: torch.dtype) -> Step:
    net = _network(dtype)
    call = compile(net)

    def run(x: Tensor, _: Tensor) -> None:
        net.zero_grad(set_to_none=True)
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        slope.square().mean().backward()

    return Step(run, lambda _: _gradients(net))


def _gradients(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in net.named_parameters() if p.grad is not None}


@dataclass(frozen=True)
class Call:
    """A step, and the numbers of rows that it is called with in turn."""

    make: Callable[[Compile, torch.dtype], Step]
    rows: tuple[int, ...] = ONE_SIZE
    differentiates: bool = True


CALLS: dict[str, Call] = {
    "2 ops": Call(_calls_of(_two_ops), differentiates=False),
    "15 ops": Call(_calls_of(_fifteen_ops), differentiates=False),
    "MLP forward": Call(_forward, differentiates=False),
    "MLP training step": Call(_training),
    "second-order step": Call(_second_order),
    "forward with 60 sizes": Call(_forward, MANY_SIZES, differentiates=False),
    "training step with 60 sizes": Call(_training, MANY_SIZES),
}


def measure(task: Task) -> Measurement:
    """Run one function on one system."""
    torch.set_num_threads(1)
    call = CALLS[task.workload]
    with torch.set_grad_enabled(call.differentiates):
        return _measured(call, task)


def _measured(call: Call, task: Task) -> Measurement:
    def compile(function: UserFunction) -> UserFunction:
        if task.system == "eager":
            return function
        dynamic = True if len(call.rows) > 1 else None
        return torch.compile(function, backend=task.system, dynamic=dynamic)

    torch.manual_seed(0)
    batches = [(torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)) for rows in call.rows]
    step = call.make(compile, torch.float32)
    cold, _ = timed_call(step.run, False, batches[0])
    computed = [_round(step, batches) for _ in range(WARM_UP_ROUNDS)]
    seconds = timed_calls(step.run, batches, CALLS_IN_REP * task.reps)
    computed.append(_round(step, batches))

    def expected() -> Expected:
        reference = call.make(lambda function: function, torch.float64)
        return Expected(_round(reference, [(x.double(), y.double()) for x, y in batches]))

    error, in_float64 = largest_error(computed, expected)
    return Measurement(seconds, cold, None, error, in_float64)


def _round(step: Step, batches: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """What a step computes for all batches."""
    return {
        f"{name} of {len(batch[0])} rows": tensor
        for batch in batches
        for name, tensor in kept(step, step.run(*batch)).items()
    }


def rendered(measured: Table) -> rich.table.Table:
    """A line per system, a column per function; a wrong result is red."""
    shown = rich.table.Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    shown.add_column("microseconds", no_wrap=True)
    for name in measured.workloads():
        shown.add_column(name, justify="right", min_width=6)
    for system in dict.fromkeys(row.system for row in measured.rows):
        rows = [row for row in measured.rows if row.system == system]
        shown.add_row(table.system_name(system), *(_cell(measured, row) for row in rows))
    return shown


def _cell(measured: Table, row: Row) -> str:
    if row.step is None:
        return "[red]failed[/]"
    shown = f"{row.step * 1e6:.0f}"
    return f"[red]{shown}, error {row.error:.0e}[/]" if measured.looks_wrong(row) else shown
