"""The options of `adjoint bench`, and its progress and output."""

from __future__ import annotations

import argparse
import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from adjoint.bench import calls, own, plot, sizes, table, zoo
from adjoint.bench.results import Table, Task
from adjoint.bench.schedule import measure_in_process, run_all, standard_tasks
from adjoint.bench.workloads import WORKLOADS
from adjoint.finding import EXAMPLES, UsageError, find, require_folder

SYSTEMS = ("eager", "inductor", "func_inductor", "jax", "adjoint", "func_adjoint")


def _never_missing(_: str) -> None:
    return None


@dataclass(frozen=True)
class Kind:
    """A kind of table: what it is measured of, by how many processes, and how it is shown."""

    workloads: tuple[str, ...]
    systems: tuple[str, ...]
    runs: int
    rendered: Callable[[Table], RenderableType]
    missing: Callable[[str], str | None] = _never_missing
    """Why a workload cannot run here."""


TABLES: dict[str, Kind] = {
    "steps": Kind(tuple(WORKLOADS), SYSTEMS, 5, table.rendered),
    "sizes": Kind(tuple(sizes.WORKLOADS), sizes.SYSTEMS, 1, sizes.rendered, sizes.missing),
    "calls": Kind(tuple(calls.CALLS), calls.SYSTEMS, 1, calls.rendered),
    "zoo": Kind(tuple(zoo.MODELS), zoo.SYSTEMS, 1, zoo.rendered, zoo.missing),
}

_ADDED = ", ".join(each for each in sizes.WORKLOADS if each not in WORKLOADS)

_DESCRIPTION = f"""\
Measure eager torch, Inductor, JAX and adjoint on the same work, each in fresh processes with
caches off. Without FUNCTION, the four standard workloads: {", ".join(WORKLOADS)}; or, of eager,
Inductor and adjoint, one of three other tables:
  --sizes  these workloads and {_ADDED}, a potential of PyTorch Geometric, with sizes that change in
           each step. Columns: milliseconds at one size (one), on sizes never seen before (unseen;
           x one: as a multiple), on the same sizes again; how many steps compiled something;
           seconds of the first;
  --calls  functions so small that the call is most of their time: microseconds, one CPU thread,
           the tenth percentile of single calls;
  --zoo    models that adjoint was not tuned for: {", ".join(zoo.MODELS)}.
           On a GPU they have the sizes of practice and train under bfloat16 autocast, except where
           the step contains derivatives. The second x best is of peak memory. Geometric means come
           last.

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


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
    tables = parser.add_mutually_exclusive_group()
    tables.add_argument("--sizes", action="store_true", help="steps whose sizes change")
    tables.add_argument("--calls", action="store_true", help="the time of a call itself, on a CPU")
    tables.add_argument("--zoo", action="store_true", help="models adjoint was not tuned for")
    parser.add_argument("--only", type=_names, metavar="WORKLOADS", help="such as pinn,forces")
    parser.add_argument("--systems", type=_names, help=f"of {','.join(SYSTEMS)}")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--runs",
        type=_positive,
        help="fresh processes of each (default: 5; 1 with --sizes, --calls or --zoo)",
    )
    parser.add_argument(
        "--reps",
        type=_positive,
        default=20,
        help=f"timed steps in a process; with --calls, {calls.CALLS_IN_REP} calls each",
    )
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
    kind = TABLES[_table(parsed)]
    if parsed.plot is not None and (parsed.sizes or parsed.calls):
        raise UsageError(f"--plot does not draw --{_table(parsed)}; leave one of them out")
    if parsed.plot is not None and parsed.plot.suffix not in (".svg", ".html"):
        raise UsageError(f"{parsed.plot} ends with neither .svg nor .html")
    for file in filter(None, (parsed.json, parsed.plot)):
        require_folder(file)
    measured = _measured(tasks, parsed, console)
    console.print(kind.rendered(measured))
    for line in (*left_out(parsed), *table.notes(measured)):
        console.print(line)
    for line in table.failures(measured):
        console.print(line, style="red")
    if parsed.json is not None:
        settings = {k: v for k, v in vars(parsed).items() if k not in ("json", "plot", "command")}
        parsed.json.write_text(measured.to_json(settings))
    if parsed.plot is not None:
        plot.write(measured, parsed.plot)
    return 0 if measured.is_sound() else 1


def _measured(tasks: list[Task], parsed: argparse.Namespace, console: Console) -> Table:
    """The results of all tasks, with a progress bar meanwhile."""
    runs = parsed.runs or TABLES[_table(parsed)].runs
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("starting", total=len(tasks) * runs)
        begun = False

        def saw(task: Task, number: int) -> None:
            nonlocal begun
            progress.update(
                bar,
                advance=1 if begun else 0,
                description=f"{task.workload} / {task.system}, run {number + 1} of {runs}",
            )
            begun = True

        measure = functools.partial(measure_in_process, timeout=parsed.timeout)
        return run_all(tasks, runs, measure, saw)


def chosen_tasks(parsed: argparse.Namespace) -> list[Task]:
    """What was asked for, checked against what there is."""
    if parsed.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("torch finds no CUDA device")
    if parsed.function is not None:
        return _tasks_of_function(parsed)
    if parsed.args is not None:
        raise UsageError("--args are the arguments of a function; name one")
    if parsed.calls and parsed.device != "cpu":
        raise UsageError("--calls are measured on the CPU; leave --device out")
    if parsed.sizes and parsed.reps > sizes.MAX_REPS:
        raise UsageError(f"--sizes takes at most {sizes.MAX_REPS} --reps, each of other sizes")
    kind = TABLES[_table(parsed)]
    systems = parsed.systems or [s for s in kind.systems if s != "jax" or _has_jax()]
    _check("system", systems, kind.systems)
    workloads = parsed.only or [each for each in kind.workloads if kind.missing(each) is None]
    _check("workload", workloads, kind.workloads)
    tasks = standard_tasks(
        workloads, systems, parsed.device, parsed.reps, parsed.small, _table(parsed)
    )
    if not tasks:
        raise UsageError(f"{', '.join(workloads)} cannot run on {', '.join(systems)}")
    return tasks


def _tasks_of_function(parsed: argparse.Namespace) -> list[Task]:
    if parsed.only is not None:
        raise UsageError("--only chooses among the standard workloads; leave it out")
    if _table(parsed) != "steps":
        raise UsageError(f"--{_table(parsed)} has workloads of its own; leave the function out")
    systems = parsed.systems or list(own.SYSTEMS)
    _check("system", systems, own.SYSTEMS)
    # Now, and not in a process for each system and run.
    find(parsed.function)
    return [
        Task(parsed.function, system, parsed.device, parsed.reps, args=parsed.args)
        for system in systems
    ]


def _table(parsed: argparse.Namespace) -> str:
    chosen = (each for each in ("sizes", "calls", "zoo") if getattr(parsed, each))
    return next(chosen, "steps")


def left_out(parsed: argparse.Namespace) -> list[str]:
    """The workloads that were not asked for by name and cannot run here."""
    if parsed.only is not None:
        return []
    kind = TABLES[_table(parsed)]
    whys = {each: kind.missing(each) for each in kind.workloads}
    return [f"{each} is left out: {why}" for each, why in whys.items() if why is not None]


def _check(kind: str, given: list[str], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise UsageError(f"there is no {kind} {name!r}; choose from {', '.join(known)}")


def _has_jax() -> bool:
    return importlib.util.find_spec("jax") is not None
