"""The options of `adjoint atlas`, and its output."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from adjoint.atlas.making import Made, make

_DESCRIPTION = """\
Document a source tree: a page of facts for each file and folder, and an index from every name to
where it is defined, used, tested and documented. Only pages whose facts have changed are written
again.
"""
MAX_SHOWN = 20


class AtlasError(Exception):
    """The command line asks for an atlas that cannot be made."""


def add_command(commands: Any) -> None:
    """Add `atlas` to the commands of `adjoint`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "atlas",
        help="document a source tree",
        description=_DESCRIPTION,
    )
    add_options(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("path", metavar="PATH", help="the folder to document")
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


def main(arguments: list[str]) -> int:
    """Run `adjoint atlas` without the other commands, which need torch."""
    # The process ends soon; collecting garbage among all the facts takes longer than the rest.
    gc.disable()
    parser = argparse.ArgumentParser(prog="adjoint atlas", description=_DESCRIPTION)
    add_options(parser)
    parsed = parser.parse_args(arguments)
    try:
        return run(parsed)
    except AtlasError as error:
        parser.error(str(error))


def run(parsed: argparse.Namespace) -> int:
    """Make the atlas; the exit status is 1 if a link leads nowhere."""
    made = _of_tree(parsed)
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


def _report(made: Made, parsed: argparse.Namespace) -> Iterator[str]:
    if parsed.changed:
        yield from (f"{page}.{parsed.format}" for page in made.written)
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
