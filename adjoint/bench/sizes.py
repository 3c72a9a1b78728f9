"""`adjoint bench --sizes`: training steps whose sizes change, as those of real batches do.

Sizes are symbols from the first call (`dynamic=True`). After it and some steps to warm up, each
step has sizes that the process has never seen; then the same batches come again, in the same order;
then one of them, of middle size, comes again and again. The systems are given the same batches.

To the standard workloads comes `schnet`, PyTorch Geometric's potential, if that is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from rich.console import Group
from torch import Tensor, fx, nn

from adjoint.bench import table, workloads
from adjoint.bench.measure import PeakMemory, kept, largest_error, timed_call
from adjoint.bench.problems import Expected, Problem, step_of, training_step
from adjoint.bench.results import Measurement, Row, Table, Task
from adjoint.passes import graph_pass
from adjoint.torch_private.dynamo import graphs_compiled

# JAX is not among them: it compiles for each set of sizes.
SYSTEMS = ("eager", "inductor", "func_inductor", "adjoint", "func_adjoint")

# Untimed steps after the first: some on sizes of their own, and then some at one size.
WARM_UP_SETS = 6
WARM_UP_STEPS = 6

# Sizes are drawn from the largest tenth of all sizes up to the largest one. If these are fewer
# than MIN_SIZES, they are drawn from that many, but never from below half of the largest.
MIN_SIZES = 40
# The largest size of every workload is at least twice this, so there are that many distinct ones.
MAX_SETS = 32
MAX_REPS = MAX_SETS - WARM_UP_SETS

Batch: TypeAlias = tuple[Tensor, ...]


@dataclass(frozen=True)
class Workload:
    """A problem of the largest size, and how its batch is made smaller."""

    problem: Callable[[str, bool], Problem]
    largest: Callable[[Batch], tuple[int, ...]]
    """The sizes of a batch, in the order of their effect on the work."""
    cut: Callable[..., Batch]
    """From a batch and smaller sizes, a batch of these."""


def _rows(batch: Batch) -> tuple[int, ...]:
    return (batch[0].shape[0],)


def _first_rows(batch: Batch, rows: int) -> Batch:
    return tuple(x[:rows].contiguous() for x in batch)


def _length(batch: Batch) -> tuple[int, ...]:
    return (batch[0].shape[1],)


def _first_columns(batch: Batch, length: int) -> Batch:
    return tuple(x[:, :length].contiguous() for x in batch)


def _edges_and_atoms(batch: Batch) -> tuple[int, ...]:
    species, _, to, *_ = batch
    return len(to), len(species)


def _subgraph(batch: Batch, edges: int, atoms: int) -> Batch:
    species, positions, to, source, target = batch
    return (
        species[:atoms].contiguous(),
        positions[:atoms].contiguous(),
        to[:edges] % atoms,
        source[:edges] % atoms,
        target[:atoms].contiguous(),
    )


def _gp(device: str, small: bool) -> Problem:
    """With enough images for many smaller batches."""
    problem = workloads.gp(device, small)
    return replace(problem, batch=(torch.randn(2 * MAX_SETS, 3, 64, 64, device=device),))


class SchNet(nn.Module):
    """PyTorch Geometric's SchNet on edges that are given."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        models = importlib.import_module("torch_geometric.nn.models")
        # SchNet passes its argument `pos` to `_given_edges` and uses it nowhere else.
        self.potential = models.SchNet(width, width, layers, interaction_graph=_given_edges)

    def forward(self, species: Tensor, positions: Tensor, to: Tensor, source: Tensor) -> Tensor:
        energies: Tensor = self.potential(species, (positions, to, source))
        return energies.sum()


def _given_edges(given: tuple[Tensor, Tensor, Tensor], _: Tensor) -> tuple[Tensor, Tensor]:
    positions, to, source = given
    distances = (positions[to] - positions[source]).pow(2).sum(-1).add(1e-6).sqrt()
    return torch.stack([source, to]), distances


def _schnet(device: str, small: bool) -> Problem:
    """On the atoms of `forces`."""
    _, _, width, layers = workloads.forces_sizes(device, small)
    problem = workloads.forces(device, small)
    return replace(problem, net=SchNet(width, layers).to(device), inside={})


WORKLOADS: dict[str, Workload] = {
    "pinn": Workload(workloads.pinn, _rows, _first_rows),
    "forces": Workload(workloads.forces, _edges_and_atoms, _subgraph),
    "gp": Workload(_gp, _rows, _first_rows),
    "gpt": Workload(workloads.gpt, _length, _first_columns),
    "schnet": Workload(_schnet, _edges_and_atoms, _subgraph),
}


def missing(workload: str) -> str | None:
    """Why the workload cannot run here."""
    if workload == "schnet" and importlib.util.find_spec("torch_geometric") is None:
        return "torch_geometric is not installed"
    return None


def size_sets(largest: tuple[int, ...], count: int) -> list[tuple[int, ...]]:
    """Sets of sizes below the largest, of which no two have a size in common."""
    numbers = random.Random(0)
    drawn = [numbers.sample(_smaller(size), count) for size in largest]
    return list(zip(*drawn, strict=True))


def _smaller(size: int) -> range:
    return range(min(size - size // 10, max(size // 2, size - MIN_SIZES)), size)


class Compilations:
    """Counts what is compiled in this process, by Dynamo's backends and by adjoint's transforms."""

    def __init__(self) -> None:
        self._lowered = 0

    def options(self, system: str) -> dict[str, object] | None:
        """Options of `torch.compile` and of transforms, with which adjoint's programs count."""
        if "adjoint" not in system:
            return None

        @graph_pass("count-compilations", "lowering")
        def count(graph_module: fx.GraphModule) -> fx.GraphModule:
            self._lowered += 1
            return graph_module

        return {"passes": [count]}

    def total(self) -> int:
        return self._lowered + graphs_compiled()


class _Steps:
    """Runs steps: their seconds, how many compiled, and what they computed of one batch."""

    def __init__(self, task: Task, problem: Problem, watched: Batch) -> None:
        self._compilations = Compilations()
        options = self._compilations.options(task.system)
        self._step = training_step(problem, task.system, dynamic=True, options=options)
        self._cuda = task.device == "cuda"
        self._watched = watched
        self.compiling = 0
        self.computed: list[dict[str, Tensor]] = []

    def seconds(self, batch: Batch) -> float:
        before = self._compilations.total()
        seconds, returned = timed_call(self._step.run, self._cuda, batch)
        self.compiling += self._compilations.total() > before
        if batch is self._watched:
            self.computed.append(kept(self._step, returned))
        return seconds


def measure(task: Task) -> Measurement:
    """Run one workload on one system, with sizes that change and at one size."""
    torch.set_float32_matmul_precision("highest")
    memory = PeakMemory(task.device == "cuda")
    workload = WORKLOADS[task.workload]
    problem = workload.problem(task.device, task.small)
    sets = size_sets(workload.largest(problem.batch), WARM_UP_SETS + task.reps)
    batches = [workload.cut(problem.batch, *sizes) for sizes in sets]
    warm_up, unseen = batches[:WARM_UP_SETS], batches[WARM_UP_SETS:]
    # The median of all steps is to be compared with steps of as much work.
    middle = sorted(unseen, key=workload.largest)[len(unseen) // 2]
    steps = _Steps(task, problem, middle)
    cold = steps.seconds(problem.batch)
    for batch in warm_up:
        steps.seconds(batch)
    first, again = ([steps.seconds(batch) for batch in unseen] for _ in range(2))
    at_one = [steps.seconds(middle) for _ in range(WARM_UP_STEPS + task.reps)][WARM_UP_STEPS:]

    def expected() -> Expected:
        reference = step_of(replace(problem, batch=middle).double(), "eager")
        return Expected(reference.computed(reference.run()))

    grown = memory.grown()
    error, in_float64 = largest_error(steps.computed, expected)
    return Measurement(
        statistics.median(at_one),
        cold,
        grown,
        error,
        in_float64,
        unseen=statistics.median(first),
        again=statistics.median(again),
        compiling_steps=steps.compiling,
    )


COLUMNS = ("one ms", "unseen", "again", "x one", "compiled", "first s", "error")


def rendered(measured: Table) -> Group:
    """A table for each workload."""
    return table.rendered_by_workload(measured, COLUMNS, cells)


def cells(measured: Table, row: Row) -> list[str]:
    """The cells of one row after the system's name."""
    if row.failure is not None:
        return ["[red]failed[/]", *["-"] * 5, ""]
    return [
        table.number(row.step, 1e3),
        table.number(row.unseen, 1e3),
        table.number(row.again, 1e3),
        table.number(row.unseen_over_one),
        str(row.compiling_steps),
        table.number(row.cold),
        table.error(measured, row),
    ]
