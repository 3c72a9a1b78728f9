"""The results as a table for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import rich.box
import rich.table
from rich.console import Group
from rich.markup import escape

from adjoint.bench.results import Row, Table

_FAILURE_CHARACTERS = 90
_SYSTEM_WIDTH = len("func_inductor")


Cells = Callable[[Table, Row], list[str]]

COLUMNS = ("step ms", "x eager", "x best", "cold s", "x ind.", "peak MiB", "error")


def rendered(table: Table) -> Group:
    """The table of steps."""
    return rendered_by_workload(table, COLUMNS, cells)


def rendered_by_workload(
    table: Table, columns: Sequence[str], cells: Cells, min_width: int = 7
) -> Group:
    """A table for each workload, whose name may be a long path; a line per system."""
    every = table.workloads()
    return Group(*(_of_workload(table, each, columns, cells, min_width) for each in every))


def _of_workload(
    table: Table, workload: str, columns: Sequence[str], cells: Cells, min_width: int
) -> rich.table.Table:
    shown = empty(escape(workload))
    # One width, so that the columns of all tables stand below each other.
    shown.add_column("system", no_wrap=True, min_width=_SYSTEM_WIDTH)
    for name in columns:
        shown.add_column(name, justify="right", no_wrap=True, min_width=min_width)
    for row in table.of(workload):
        shown.add_row(system_name(row.system), *cells(table, row))
    return shown


def empty(title: str) -> rich.table.Table:
    """A table under a title, without columns."""
    return rich.table.Table(
        title=f"[bold]{title}[/]",
        title_justify="left",
        title_style="",
        box=rich.box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )


def system_name(system: str) -> str:
    """As it is shown: ours stands out."""
    return f"[bold]{system}[/]" if "adjoint" in system else system


def cells(table: Table, row: Row) -> list[str]:
    """The cells of one row after the system's name."""
    if row.failure is not None:
        return ["[red]failed[/]", *["-"] * 5, ""]
    return [
        number(row.step, 1e3),
        number(table.step_over_eager(row)),
        number(table.step_over_best_peer(row)),
        number(row.cold),
        number(table.cold_over_inductor(row)),
        "-" if row.memory is None else f"{row.memory / 2**20:.0f}",
        error(table, row),
    ]


def number(value: float | None, scale: float = 1.0) -> str:
    return "-" if value is None else f"{value * scale:.2f}"


def error(table: Table, row: Row) -> str:
    """The error, red where it is more than rounding."""
    shown = "unchecked" if row.error is None else f"{row.error:.0e}"
    if not row.in_float64:
        shown += "*"
    return f"[red]{shown}[/]" if table.looks_wrong(row) else shown


def notes(table: Table) -> list[str]:
    """What the marks in the table mean."""
    if all(row.in_float64 for row in table.rows):
        return []
    return ["* against eager in the precision of the step, not in float64"]


def failures(table: Table) -> list[str]:
    """A line for each row that failed, with the reason."""
    return [
        f"{row.workload}, {row.system}: {escape(row.failure[:_FAILURE_CHARACTERS])}"
        for row in table.rows
        if row.failure is not None
    ]
