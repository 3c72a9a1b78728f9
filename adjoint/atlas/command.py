"""The options of `adjoint atlas`, and its output."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from adjoint.atlas.making import Made, make

_DESCRIPTION = """\
Document a source tree: a page of facts for each file and folder, and an index from every name to
where it is defined, used, tested and documented. Only pages whose facts have changed are written
again. With --of, document what the compiler makes of a function instead: its graphs, kernels and
saved values.
"""
MAX_SHOWN = 20


class AtlasError(Exception):
    """The command line asks for an atlas that cannot be made."""


def add_command(commands: Any) -> None:
    """Add `atlas` to the commands of `adjoint`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "atlas",
        help="document a source tree, or what the compiler makes of a function",
        description=_DESCRIPTION,
    )
    add_options(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("path", metavar="PATH", nargs="?", help="the folder to document")
    parser.add_argument("--out", metavar="DIR", default="atlas", help="where to (default: atlas)")
    parser.add_argument(
        "--format", choices=("md", "html"), default="md", help="of the pages (default: md)"
    )
    parser.add_argument(
        "--only",
        metavar="GLOB",
        help="make pages of the files that match, or lie in this folder; the others are read",
    )
    parser.add_argument(
        "--changed",
        action="store_true",
        help="read only files whose size or time has changed since the last run, and list the "
        "pages that are written",
    )
    parser.add_argument("--jobs", type=int, help="how many processes (default: one for each core)")
    parser.add_argument(
        "--of",
        metavar="FUNCTION",
        help="document a compilation: module:function, or file.py:function",
    )
    parser.add_argument("--args", metavar="EXPRESSION", help="with --of: the call's arguments")
    parser.add_argument("--dynamic", action="store_true", help="with --of: sizes are symbols")
    parser.add_argument(
        "--order", type=int, default=1, help="with --of: how often to differentiate (default: 1)"
    )


def main(arguments: list[str]) -> int:
    """Run `adjoint atlas` without the other commands, which need torch."""
    parser = argparse.ArgumentParser(prog="adjoint atlas", description=_DESCRIPTION)
    add_options(parser)
    parsed = parser.parse_args(arguments)
    try:
        return run(parsed)
    except AtlasError as error:
        parser.error(str(error))


def run(parsed: argparse.Namespace) -> int:
    """Make the atlas; the exit status is 1 if a link leads nowhere."""
    if (parsed.path is None) == (parsed.of is None):
        raise AtlasError("name a folder, or a function with --of")
    made = _of_tree(parsed) if parsed.of is None else _of_compilation(parsed)
    for line in _report(made, parsed):
        print(line)
    return 1 if made.dead_links else 0


def _of_tree(parsed: argparse.Namespace) -> Made:
    root = Path(parsed.path)
    if not root.is_dir():
        raise AtlasError(f"there is no folder {parsed.path}")
    if parsed.jobs is not None and parsed.jobs < 1:
        raise AtlasError(f"--jobs {parsed.jobs}: at least one process is needed")
    return make(root, Path(parsed.out), parsed.format, parsed.only, parsed.changed, parsed.jobs)


def _of_compilation(parsed: argparse.Namespace) -> Made:
    """Compiling needs torch, which the atlas of a tree does not."""
    from adjoint.atlas.compilation import make_of
    from adjoint.errors import CaptureError
    from adjoint.finding import UsageError

    try:
        return make_of(
            parsed.of,
            parsed.args,
            parsed.order,
            parsed.dynamic,
            Path(parsed.out),
            parsed.format,
        )
    except (CaptureError, UsageError) as error:
        raise AtlasError(str(error)) from error


def _report(made: Made, parsed: argparse.Namespace) -> Iterator[str]:
    if parsed.changed:
        yield from (f"{page}.{parsed.format}" for page in made.written)
    if parsed.of is not None:
        yield f"{made.files:,} graphs; {len(made.written):,} pages written to {parsed.out}."
    else:
        yield (
            f"{made.files:,} files, {len(made.read):,} of them read; {len(made.written):,} pages "
            f"written to {parsed.out}, {len(made.removed):,} removed."
        )
    for title, found in (
        (
            "could not be read or parsed in full",
            [f"{p}: {' '.join(w)}" for p, w in made.problems.items()],
        ),
        ("lead nowhere", list(made.dead_links)),
    ):
        if found:
            what = "links" if found == list(made.dead_links) else "files"
            yield f"{len(found):,} {what} {title}:"
            yield from (f"  {each}" for each in found[:MAX_SHOWN])
            if len(found) > MAX_SHOWN:
                yield f"  and {len(found) - MAX_SHOWN:,} more"
