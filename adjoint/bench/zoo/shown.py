"""The zoo as tables, and the geometric means of their ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

import rich.table
from rich.console import Group

from adjoint.bench import table
from adjoint.bench.results import Row, Table
from adjoint.bench.zoo.models import MODELS

# One more than the table of steps has; together they fit into 80 characters.
COLUMNS = (*table.COLUMNS[:5], "MiB", "x best", "error")
MIN_WIDTH = 6
OURS = ("adjoint", "func_adjoint")


def rendered(measured: Table) -> Group:
    """A table for each model, a line per system; then means over models."""
    return Group(table.rendered_by_workload(measured, COLUMNS, cells, MIN_WIDTH), summary(measured))


def cells(measured: Table, row: Row) -> list[str]:
    """Those of the table of steps, and peak memory over that of the best peer."""
    *others, error = table.cells(measured, row)
    if row.failure is not None:
        return [*others, "-", error]
    return [*others, table.number(measured.memory_over_best_peer(row)), error]


def summary(measured: Table) -> rich.table.Table:
    """Geometric means and the worst model, of plain training and of steps with derivatives."""
    shown = table.empty("geometric means")
    for name in ("steps", "system"):
        shown.add_column(name, no_wrap=True)
    for name in ("models", "x eager", "x best", "x ind.", "peak", "slowest"):
        shown.add_column(name, justify="right", no_wrap=True)
    for title, differentiates in (("plain", False), ("derivatives", True)):
        for system in OURS:
            rows = [
                row
                for row in measured.rows
                if row.system == system
                and row.failure is None
                and MODELS[row.workload].differentiates == differentiates
            ]
            if rows:
                shown.add_row(title, table.system_name(system), *_means(measured, rows))
    return shown


def _means(measured: Table, rows: list[Row]) -> list[str]:
    ratios: tuple[Callable[[Row], float | None], ...] = (
        measured.step_over_eager,
        measured.step_over_best_peer,
        measured.cold_over_inductor,
        measured.memory_over_best_peer,
    )
    means = [table.number(_geometric_mean(map(ratio, rows))) for ratio in ratios]
    slowest = max(rows, key=lambda row: measured.step_over_best_peer(row) or 0.0)
    worst = table.number(measured.step_over_best_peer(slowest))
    return [str(len(rows)), *means, f"{slowest.workload} {worst}"]


def _geometric_mean(ratios: Iterable[float | None]) -> float | None:
    known = [ratio for ratio in ratios if ratio is not None and ratio > 0]
    return statistics.geometric_mean(known) if known else None
