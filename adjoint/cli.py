"""The command line: `adjoint capture` prints the readable program of a function, `adjoint bench`
measures one, or the four standard workloads, against eager torch and other compilers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

from adjoint import bench
from adjoint.compiler import capture
from adjoint.errors import CaptureError
from adjoint.finding import EXAMPLES, UsageError, call_arguments, find, instance
from adjoint.loops.show import show_plan
from adjoint.native import plan_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    parser = argparse.ArgumentParser(prog="adjoint", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser("capture", help="print a function as a pure, readable program")
    show.add_argument("function", help="module:function, or path/to/file.py:function")
    show.add_argument(
        "--args",
        metavar="EXPRESSION",
        help="the call's arguments, as Python: --args 'torch.randn(3, 4), scale=2.0'; "
        f"otherwise the module's `{EXAMPLES}` are used",
    )
    show.add_argument("--dynamic", action="store_true", help="sizes are symbols")
    show.add_argument("--kernels", action="store_true", help="print its kernels and calls instead")
    bench.add_command(commands)
    parsed = parser.parse_args(arguments)
    try:
        if parsed.command == "bench":
            return bench.run(parsed)
        print(_capture(parsed.function, parsed.args, parsed.dynamic, parsed.kernels))
    except (UsageError, CaptureError) as error:
        print(f"adjoint: {error}", file=sys.stderr)
        return 1
    return 0


def _capture(target: str, expression: str | None, dynamic: bool, kernels: bool) -> str:
    module, function = find(target)
    if isinstance(function, type) and issubclass(function, torch.nn.Module):
        function = instance(function)
    args, kwargs = call_arguments(module, function, expression)
    captured = capture(function, *args, dynamic=dynamic, **kwargs)
    if not kernels:
        return captured.show()
    plan = plan_of(captured.graph_module)
    return "It has no kernels: it runs op by op." if plan is None else show_plan(plan)
