"""The options of `adjoint bench`, and its progress and output."""

from __future__ import annotations

import argparse
import functools
import importlib.util
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from adjoint.bench import own, plot, table
from adjoint.bench.results import Task
from adjoint.bench.schedule import measure_in_process, run_all, standard_tasks
from adjoint.bench.workloads import WORKLOADS
from adjoint.finding import EXAMPLES, UsageError

SYSTEMS = ("eager", "inductor", "func_inductor", "jax", "adjoint", "func_adjoint")

_DESCRIPTION = f"""\
Measure eager torch, Inductor, JAX and adjoint on the same work, each in fresh processes with
caches off. Without FUNCTION, the four standard workloads: {", ".join(WORKLOADS)}.

FUNCTION is module:function or path/to/file.py:function, in one of two forms:
  a function or torch.nn.Module that is called with --args, and differentiated if what it
  returns requires grad;
  a function whose first parameter is named `compile`: it is given the compiler of the system,
  returns a step without arguments, and what the step returns is compared with eager's, in
  the precision of the step, not in float64:

    def make_step(compile):
        net = compile(Net())
        def step(): ...; return loss
        return step

Columns: step, the median; cold, the first call; peak, the growth of peak memory (CUDA: torch's
allocator); error, the largest relative difference from eager in float64, or, marked *, from eager
in the precision of the step, where it is made by you or holds float32 tensors. Ratios, below one is
better: x eager and x best (the fastest system that is not adjoint) of steps, x ind. of first calls
with Inductor's (under torch.func where that runs).

The exit status is 1 if a system failed or an error is more than rounding.
"""


def add_command(commands: Any) -> None:
    """Add `bench` to the commands of a parser."""
    parser = commands.add_parser(
        "bench",
        help="measure adjoint against eager torch and other compilers",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("function", nargs="?", help="your own function, instead of the workloads")
    parser.add_argument(
        "--args",
        metavar="EXPRESSION",
        help=f"its arguments, as Python; otherwise its module's `{EXAMPLES}`",
    )
    parser.add_argument("--only", type=_names, metavar="WORKLOADS", help="such as pinn,forces")
    parser.add_argument("--systems", type=_names, help=f"of {','.join(SYSTEMS)}")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--runs", type=_positive, default=5, help="fresh processes of each")
    parser.add_argument("--reps", type=_positive, default=20, help="timed steps in a process")
    parser.add_argument("--small", action="store_true", help="small sizes, to try it out")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one process")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a picture, .svg or .html")


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


def run(parsed: argparse.Namespace, console: Console | None = None) -> int:
    """Measure, print the table and write the files asked for; the exit status."""
    console = console or Console()
    tasks = chosen_tasks(parsed)
    if parsed.plot is not None and parsed.plot.suffix not in (".svg", ".html"):
        raise UsageError(f"{parsed.plot} ends with neither .svg nor .html")
    for file in filter(None, (parsed.json, parsed.plot)):
        if not file.parent.is_dir():
            raise UsageError(f"there is no folder {file.parent} for {file.name}")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("starting", total=len(tasks) * parsed.runs)
        begun = False

        def saw(task: Task, number: int) -> None:
            nonlocal begun
            progress.update(
                bar,
                advance=1 if begun else 0,
                description=f"{task.workload} / {task.system}, run {number + 1} of {parsed.runs}",
            )
            begun = True

        measure = functools.partial(measure_in_process, timeout=parsed.timeout)
        measured = run_all(tasks, parsed.runs, measure, saw)
    console.print(table.rendered(measured))
    for line in table.notes(measured):
        console.print(line)
    for line in table.failures(measured):
        console.print(line, style="red")
    if parsed.json is not None:
        settings = {k: v for k, v in vars(parsed).items() if k not in ("json", "plot", "command")}
        parsed.json.write_text(measured.to_json(settings))
    if parsed.plot is not None:
        plot.write(measured, parsed.plot)
    return 0 if measured.is_sound() else 1


def chosen_tasks(parsed: argparse.Namespace) -> list[Task]:
    """What was asked for, checked against what there is."""
    if parsed.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("torch finds no CUDA device")
    known = SYSTEMS if parsed.function is None else own.SYSTEMS
    systems = parsed.systems or [s for s in known if s != "jax" or _has_jax()]
    _check("system", systems, known)
    if parsed.function is not None:
        if parsed.only is not None:
            raise UsageError("--only chooses among the standard workloads; leave it out")
        return [
            Task(parsed.function, system, parsed.device, parsed.reps, args=parsed.args)
            for system in systems
        ]
    if parsed.args is not None:
        raise UsageError("--args are the arguments of a function; name one")
    workloads = parsed.only or list(WORKLOADS)
    _check("workload", workloads, tuple(WORKLOADS))
    tasks = standard_tasks(workloads, systems, parsed.device, parsed.reps, parsed.small)
    if not tasks:
        raise UsageError(f"{', '.join(workloads)} cannot run on {', '.join(systems)}")
    return tasks


def _check(kind: str, given: list[str], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise UsageError(f"there is no {kind} {name!r}; choose from {', '.join(known)}")


def _has_jax() -> bool:
    return importlib.util.find_spec("jax") is not None
