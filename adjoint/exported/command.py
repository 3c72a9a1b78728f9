"""`adjoint inspect FILE`: what an exported file holds, and whether it fits this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from adjoint.errors import LoadError
from adjoint.exported.inspecting import inspected


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to those of `adjoint`."""
    parser = commands.add_parser("inspect", help="what an exported program holds")
    _add_arguments(parser)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="a file that adjoint.export has written")


def run(parsed: argparse.Namespace) -> tuple[str, int]:
    """What to print, and the exit status."""
    try:
        return inspected(Path(parsed.file)), 0
    except LoadError as error:
        return f"adjoint: {error}", 1


def main(arguments: Sequence[str]) -> int:
    """The command by itself, which needs no compiler."""
    parser = argparse.ArgumentParser(prog="adjoint inspect", description=__doc__)
    _add_arguments(parser)
    text, status = run(parser.parse_args(arguments))
    print(text, file=sys.stderr if status else sys.stdout)
    return status
