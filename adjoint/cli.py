"""The command line.

`adjoint capture` prints the readable program of a function, `adjoint show --stages` what every
stage makes of it, `adjoint bench` measures one, or the four standard workloads, against eager
torch and other compilers, and `adjoint atlas` documents a source tree or a compilation.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from adjoint import bench
from adjoint.atlas import command as atlas
from adjoint.compiler import Compiler, capture
from adjoint.errors import CaptureError
from adjoint.finding import EXAMPLES, UsageError, called
from adjoint.loops.show import show_plan
from adjoint.options import Options
from adjoint.stages import differences, printed, watched
from adjoint.targets import target_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
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
    bench.add_command(commands)
    atlas.add_command(commands)
    parsed = parser.parse_args(arguments)
    try:
        if parsed.command == "bench":
            return bench.run(parsed)
        if parsed.command == "atlas":
            return atlas.run(parsed)
        if parsed.command == "show":
            print(_show(parsed))
            return 0
        print(_capture(parsed.function, parsed.args, parsed.dynamic, parsed.kernels))
    except (UsageError, CaptureError, atlas.AtlasError) as error:
        print(f"adjoint: {error}", file=sys.stderr)
        return 1
    return 0


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
        return _capture(parsed.function, parsed.args, parsed.dynamic, False)
    function, args, kwargs = called(parsed.function, parsed.args)
    log = watched(function, args, kwargs, parsed.order, parsed.dynamic)
    chosen = log.chosen(parsed.only)
    if not chosen:
        raise UsageError(f"no stage {parsed.only!r} ran; there were {', '.join(log.names)}")
    return differences(chosen) if parsed.diff else printed(chosen)


def _capture(target: str, expression: str | None, dynamic: bool, kernels: bool) -> str:
    function, args, kwargs = called(target, expression)
    captured = capture(function, *args, dynamic=dynamic, **kwargs)
    if not kernels:
        return captured.show()
    graph_module = captured.graph_module
    plan = Compiler().plan(graph_module, target_of(graph_module, Options()))
    return "It has no kernels: it runs op by op." if plan is None else show_plan(plan)
