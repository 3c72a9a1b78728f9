"""The command line.

`adjoint explain` says what the compiler did to a function and how fast that is, `adjoint report`
what it did while a script ran, and why anything was compiled again.  `adjoint capture` prints the
graph of a function, `adjoint show --stages` what every stage makes of it.  `adjoint passes` lists
the passes, `adjoint run-pass` shows what one of them does to a function, and `adjoint bisect` finds
the one that changes a result; `adjoint check` finds the op where compiled code and eager differ.
`adjoint bench` measures the standard workloads, or a function, against eager torch and other
compilers, `adjoint atlas` documents a source tree or a compilation, `adjoint cache` lists the cache
entries, and `adjoint inspect` shows what an exported program holds.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from adjoint import bench
from adjoint.atlas import command as atlas
from adjoint.bisecting import Bisection
from adjoint.capture.direct import capture
from adjoint.compiler import Compiler
from adjoint.errors import (
    CaptureError,
    DifferentiationError,
    ExportError,
    LoadError,
    MismatchError,
    RewriteError,
)
from adjoint.explaining import explain, watched_program
from adjoint.explaining.calling import call
from adjoint.exported import command as inspection
from adjoint.finding import EXAMPLES, UsageError, called, find, require_folder
from adjoint.graph.captured import CapturedProgram
from adjoint.loops.show import show_plan
from adjoint.observing import unobserved
from adjoint.options import Options
from adjoint.passes import Pass
from adjoint.pipeline import all_places
from adjoint.source import users_traceback
from adjoint.stages import before_and_after, differences, printed, watched
from adjoint.store import command as cache
from adjoint.targets import target_of

# Errors that say what happened, where, and what to do.
ERRORS = (
    CaptureError,
    DifferentiationError,
    ExportError,
    LoadError,
    MismatchError,
    RewriteError,
)


def command_line() -> argparse.ArgumentParser:
    """All commands and their arguments."""
    parser = argparse.ArgumentParser(prog="adjoint", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser("capture", help="print a function as a pure, readable program")
    _add_function(show)
    show.add_argument("--kernels", action="store_true", help="print its kernels and calls instead")
    stages = commands.add_parser("show", help="print a function, and what the compiler makes of it")
    _add_function(stages)
    stages.add_argument(
        "--stages", action="store_true", help="every stage of every order, not the capture alone"
    )
    stages.add_argument("--only", metavar="STAGE", help="the stages or passes of this name")
    stages.add_argument("--diff", action="store_true", help="what each stage changed")
    stages.add_argument(
        "--order", type=int, default=1, help="how often to differentiate (default: 1)"
    )
    _add_passes(stages)
    explaining = commands.add_parser("explain", help="what the compiler did, and how fast it is")
    _add_function(explaining)
    explaining.add_argument("--order", type=int, help="how often to differentiate (default: 1)")
    explaining.add_argument("--out", metavar="FILE", help="write to a file: .html, .json, or text")
    reporting = commands.add_parser("report", help="run a script: what was compiled, and why again")
    reporting.add_argument("script", help="path/to/script.py, run as a program")
    reporting.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    reporting.add_argument("--out", metavar="FILE", help="write to a file: .html, .json, or text")
    checking = commands.add_parser("check", help="find the op where compiled and eager differ")
    _add_function(checking)
    checking.add_argument("--order", type=int, default=1, help="how often to differentiate")
    checking.add_argument("--out", metavar="FILE", help="where to write a script that shows it")
    _add_passes(checking)
    commands.add_parser("passes", help="list the passes, and what each does")
    running = commands.add_parser("run-pass", help="a function before and after one pass")
    running.add_argument("name", help="the pass, as `adjoint passes` prints it, or one of --passes")
    bisecting = commands.add_parser("bisect", help="find the pass that changes a result")
    for each in (running, bisecting):
        _add_function(each)
        each.add_argument("--order", type=int, default=1, help="how often to differentiate")
        _add_passes(each)
    bench.add_command(commands)
    atlas.add_command(commands)
    cache.add_command(commands)
    inspection.add_command(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    parsed = command_line().parse_args(arguments)
    try:
        return _COMMANDS[parsed.command](parsed)
    except (*ERRORS, UsageError, atlas.AtlasError) as error:
        print(f"adjoint: {error}", file=sys.stderr)
    except Exception as error:
        said = users_traceback(error)
        if not said:
            raise
        print(f"adjoint: your code raised {type(error).__name__}\n{said}", file=sys.stderr)
    return 1


def _add_passes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--passes",
        metavar="MODULE:PASS",
        action="append",
        default=[],
        help="a pass of your own; may be given several times",
    )


def _add_function(parser: argparse.ArgumentParser) -> None:
    """The arguments that name a function and what to call it with."""
    parser.add_argument("function", help="module:function, or path/to/file.py:function")
    parser.add_argument(
        "--args",
        metavar="EXPRESSION",
        help="the call's arguments, as Python: --args 'torch.randn(3, 4), scale=2.0'; "
        f"otherwise the module's `{EXAMPLES}` are used",
    )
    parser.add_argument("--dynamic", action="store_true", help="sizes are symbols")


def _show(parsed: argparse.Namespace) -> str:
    if not (parsed.stages or parsed.only or parsed.diff):
        return _captured(parsed).show()
    function, args, kwargs = called(parsed.function, parsed.args)
    passes = _own_passes(parsed)
    log = watched(function, args, kwargs, parsed.order, parsed.dynamic, passes)
    chosen = log.chosen(parsed.only)
    if not chosen:
        raise UsageError(f"no stage {parsed.only!r} ran; there were {', '.join(log.names)}")
    return differences(chosen) if parsed.diff else printed(chosen)


def _own_passes(parsed: argparse.Namespace) -> list[Pass]:
    """The passes that `--passes` names."""
    found: list[Pass] = []
    for name in parsed.passes:
        each = find(name)[1]
        if not isinstance(each, Pass):
            raise UsageError(f"{name} is no pass; adjoint.graph_pass and adjoint.replaces make one")
        found.append(each)
    return found


def _list_passes(parsed: argparse.Namespace) -> str:
    lines: list[str] = []
    for place, passes in all_places().items():
        lines += ["", f"{place}:"]
        for each in dict.fromkeys(passes):
            lines.append(f"  {each.name:<28} {_summary(each)}")
            lines += [f"    {rule.name:<26} {rule.meaning}" for rule in each.rules]
    return "\n".join(lines[1:])


def _summary(each: Pass) -> str:
    """The first paragraph of what a pass says it does."""
    function: object = each.run
    while isinstance(function, functools.partial):
        function = function.func
    return (inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " ")


def _run_pass(parsed: argparse.Namespace) -> str:
    function, args, kwargs = called(parsed.function, parsed.args)
    passes = _own_passes(parsed)
    places = {each.name: place for place, known in all_places().items() for each in known}
    places |= {each.name: each.place for each in passes}
    if parsed.name not in places:
        close = difflib.get_close_matches(parsed.name, places)
        known = ", ".join(map(repr, close)) or "what `adjoint passes` lists, and from --passes"
        raise UsageError(f"there is no pass {parsed.name!r}; choose from: {known}")
    log = watched(function, args, kwargs, parsed.order, parsed.dynamic, passes, of_pass=parsed.name)
    if not log.passes:
        raise UsageError("nothing was compiled, so no pass ran")
    if parsed.name not in log.passes:
        raise UsageError(
            f"pass {parsed.name!r} of {places[parsed.name]!r} did not run on this function; "
            f"there ran {', '.join(log.passes)}"
        )
    return before_and_after(log.chosen(parsed.name))


def _bisect(parsed: argparse.Namespace) -> str:
    function, args, kwargs = called(parsed.function, parsed.args)
    passes = _own_passes(parsed)
    found = Bisection(function, args, kwargs, parsed.order, passes, parsed.dynamic).find()
    return "no pass changes a result" if found is None else str(found)


def _require_place(parsed: argparse.Namespace) -> None:
    """Raise `UsageError` if the file that `--out` names cannot be written."""
    if parsed.out is not None:
        require_folder(parsed.out)


def _explain(parsed: argparse.Namespace) -> str:
    _require_place(parsed)
    function, args, kwargs = called(parsed.function, parsed.args)
    explained = explain(function, *args, order=parsed.order, dynamic=parsed.dynamic, **kwargs)
    if parsed.out is None:
        return str(explained)
    explained.save(parsed.out)
    return f"written to {parsed.out}"


def _check(parsed: argparse.Namespace) -> str:
    _require_place(parsed)
    function, args, kwargs = called(parsed.function, parsed.args)
    options = {"check": "every", "passes": _own_passes(parsed)}
    try:
        found = call(unobserved, function, args, kwargs, parsed.order, options, parsed.dynamic)
    except MismatchError as error:
        if not error.reproduction:
            raise
        out = parsed.out or f"reproduction_{parsed.function.rpartition(':')[2]}.py"
        Path(out).write_text(error.reproduction, encoding="utf-8")
        print(f"adjoint: a script that shows the difference is in {out}", file=sys.stderr)
        raise
    order = len(found) - 1
    orders = f", and so are its derivatives to order {order}" if order else ", not differentiated"
    return f"its results are those of eager{orders}"


def _report(parsed: argparse.Namespace) -> tuple[str, int]:
    _require_place(parsed)
    if not Path(parsed.script).is_file():
        raise UsageError(f"there is no file {parsed.script}")
    report = watched_program(parsed.script, parsed.arguments)
    if parsed.out is not None:
        report.save(parsed.out)
    text = f"{report}\nwritten to {parsed.out}" if parsed.out else str(report)
    return text, 1 if report.failure else 0


def _captured(parsed: argparse.Namespace) -> CapturedProgram:
    function, args, kwargs = called(parsed.function, parsed.args)
    return capture(function, *args, dynamic=parsed.dynamic, **kwargs)


def _capture(parsed: argparse.Namespace) -> str:
    captured = _captured(parsed)
    if not parsed.kernels:
        return captured.show()
    graph_module = captured.graph_module
    plan = Compiler().plan(graph_module, target_of(graph_module, Options()))
    return "It has no kernels: it runs op by op." if plan is None else show_plan(plan)


def _printed(
    run: Callable[[argparse.Namespace], str | tuple[str, int]],
) -> Callable[[argparse.Namespace], int]:
    """A command that prints what `run` returns: a text, perhaps with the exit status."""

    def command(parsed: argparse.Namespace) -> int:
        returned = run(parsed)
        text, status = (returned, 0) if isinstance(returned, str) else returned
        print(text)
        return status

    return command


# By name: runs a command, and returns the exit status.
_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "atlas": atlas.run,
    "bench": bench.run,
    "bisect": _printed(_bisect),
    "cache": _printed(cache.run),
    "capture": _printed(_capture),
    "check": _printed(_check),
    "explain": _printed(_explain),
    "inspect": _printed(inspection.run),
    "passes": _printed(_list_passes),
    "report": _printed(_report),
    "run-pass": _printed(_run_pass),
    "show": _printed(_show),
}
