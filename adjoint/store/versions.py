"""The versions of adjoint, torch and Python: facts of captures, derivatives and programs.

Entries of machine code do not have them: their subject is LLVM IR, and among their facts are the
version of LLVM and the digest of the few files that say how it compiles.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Iterable
from pathlib import Path

import torch

from adjoint.store.entries import digest_of

_FOLDER = Path(__file__).parent.parent

_CODE_GENERATION = (
    "runtime/cpu/engine.py",
    "runtime/cpu/machines.py",
    "runtime/gpu/assembly.py",
    "runtime/gpu/ptxas.py",
)


@functools.cache
def versions() -> dict[str, str]:
    """The versions of adjoint, torch and Python, by name."""
    return {
        "adjoint": source_digest(),
        "torch": f"{torch.__version__} {torch.version.cuda or ''}".strip(),
        "python": platform.python_version(),
    }


@functools.cache
def source_digest() -> str:
    """A digest of adjoint's own source: any change of it may change what is compiled."""
    paths = _FOLDER.rglob("*.py")
    return _digest(
        each for each in paths if each.relative_to(_FOLDER).parts[0] not in ("atlas", "bench")
    )


@functools.cache
def code_generation_digest() -> str:
    """A digest of the source that says how LLVM compiles its IR: passes, levels, architectures."""
    return _digest(map(_FOLDER.joinpath, _CODE_GENERATION))


def _digest(paths: Iterable[Path]) -> str:
    parts = [
        f"{each.relative_to(_FOLDER).as_posix()} {digest_of(each.read_bytes())}"
        for each in sorted(paths)
    ]
    return digest_of("\n".join(parts))[:16]
