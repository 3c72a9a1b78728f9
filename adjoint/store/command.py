"""`adjoint cache`: list entries, explain why each was compiled, verify them, and prune them."""

from __future__ import annotations

import argparse
from pathlib import Path

from adjoint.quantities import in_bytes
from adjoint.store.folder import Folder
from adjoint.store.listing import (
    explained,
    listed,
    removed,
    verified,
)
from adjoint.store.place import default_folder

ACTIONS = {
    "list": "the entries, and their bytes",
    "explain": "why each program was compiled, and not found",
    "verify": "the files that are damaged; with --remove, remove them",
    "prune": "remove what was used longest ago, until --limit bytes are left",
}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to those of `adjoint`."""
    described = "; ".join(f"{name}: {what}" for name, what in ACTIONS.items())
    parser = commands.add_parser("cache", help="what is kept of compilations", epilog=described)
    parser.add_argument("action", nargs="?", default="list", choices=ACTIONS)
    parser.add_argument("--folder", help="the folder, if not the user's cache folder")
    parser.add_argument("--limit", type=int, default=0, help="of prune: the bytes that may stay")
    parser.add_argument("--remove", action="store_true", help="of verify: remove what is damaged")


def run(parsed: argparse.Namespace) -> tuple[str, int]:
    """What to print, and the exit status."""
    path = Path(parsed.folder).expanduser() if parsed.folder else default_folder()
    if path is None:
        return "nothing is kept: the environment variable ADJOINT_CACHE says so", 0
    folder = Folder(path, parsed.limit)
    match parsed.action:
        case "explain":
            return explained(folder), 0
        case "verify":
            damaged = verified(folder)
            if not damaged:
                return f"{len(folder.entries())} entries are sound", 0
            if parsed.remove:
                return f"{damaged}\n{removed(folder, list(folder.damaged()))}", 0
            return damaged, 1
        case "prune":
            return f"{in_bytes(folder.prune(parsed.limit))} are left in {path}", 0
        case _:
            return listed(folder), 0
