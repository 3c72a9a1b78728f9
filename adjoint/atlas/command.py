"""The options of `adjoint atlas`, and its output."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from adjoint.atlas.making import Made, make
from adjoint.atlas.tree import STORE
from adjoint.quantities import counted

_DESCRIPTION = """\
Document a source tree: a page of facts for each file and folder, and an index from every name to
where it is defined, used, tested and documented. Only pages whose facts have changed are written
again. With --of, document what the compiler makes of a function instead: its graphs, kernels and
saved values.
"""
MAX_SHOWN = 20


class AtlasError(Exception):
    """The command line asks for an atlas that cannot be made."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `atlas` to the commands of `adjoint`."""
    parser = commands.add_parser(
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
    _check_output(Path(parsed.out))
    made = _of_tree(parsed) if parsed.of is None else _of_compilation(parsed)
    for line in _report(made, parsed):
        print(line)
    return 1 if made.dead_links else 0


def _check_output(out: Path) -> None:
    """Pages are written only where there is nothing else, or an atlas already."""
    if out.exists() and not out.is_dir():
        raise AtlasError(f"--out {out} is a file")
    if out.is_dir() and not (out / STORE).is_dir() and any(out.iterdir()):
        raise AtlasError(f"--out {out} holds other files; name a new folder, or one of an atlas")


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
    written = f"{len(made.written):,} pages written to {parsed.out}"
    if parsed.of is not None:
        yield f"{counted(made.files, 'graph')}; {written}."
    else:
        read = f"{counted(made.files, 'file')}, {len(made.read):,} of them read"
        yield f"{read}; {written}, {len(made.removed):,} removed."
    problems = [f"{path}: {' '.join(why)}" for path, why in made.problems.items()]
    if problems:
        yield f"{counted(len(problems), 'file')} could not be read or parsed in full:"
        yield from _shown(problems)
    if made.dead_links:
        yield f"{counted(len(made.dead_links), 'link')} to nowhere:"
        yield from _shown(made.dead_links)


def _shown(found: Sequence[str]) -> Iterator[str]:
    yield from (f"  {each}" for each in found[:MAX_SHOWN])
    if len(found) > MAX_SHOWN:
        yield f"  and {len(found) - MAX_SHOWN:,} more"
