"""NVIDIA's assembler, if there is one: on the path, or in the wheel nvidia-cuda-nvcc."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path


def _found() -> str | None:
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        for path in sorted(Path(folder).glob("*/bin/ptxas")):
            return str(path)
    return shutil.which("ptxas")


ASSEMBLER = _found()


def said_of(code: bytes, architecture: str, folder: Path) -> str:
    """What the assembler says of PTX that it assembles."""
    assert ASSEMBLER is not None
    source = folder / "kernel.ptx"
    source.write_bytes(code)
    done = subprocess.run(
        [ASSEMBLER, "-v", f"--gpu-name={architecture}", str(source), "-o", "/dev/null"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr
