"""The versions of adjoint, torch and Python: facts of captures, derivatives and programs.

Entries of machine code do not have them: their subject is LLVM IR, and the version of LLVM a fact.
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import torch

from adjoint.store.entries import digest_of


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
    folder = Path(__file__).parent.parent
    parts = [
        f"{path.relative_to(folder).as_posix()} {digest_of(path.read_bytes())}"
        for path in sorted(folder.rglob("*.py"))
        if path.relative_to(folder).parts[0] not in ("atlas", "bench")
    ]
    return digest_of("\n".join(parts))[:16]
