"""NVIDIA's assembler as a process of its own for each kernel: PTX becomes machine code.

The driver assembles PTX too, but under one lock: threads that load kernels wait for one another.
Processes do not.  The assembler is the one that Triton brings, which torch installs beside itself
for a GPU, or that of the wheel nvidia-cuda-nvcc.  Without either the driver assembles.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

# Kernels that are assembled at a time.
ASSEMBLERS = 16

# What a file of machine code for NVIDIA GPUs begins with, and its architecture in the ELF header.
_ELF = b"\x7fELF"
_ARCHITECTURE = slice(18, 20)
_CUDA = (190).to_bytes(2, "little")

# The first compute capability, times ten, that Triton's second assembler is for.
_BLACKWELL = 100

# An assembler that takes longer than this for one kernel is stopped, and the driver is asked.
_TIMEOUT_SECONDS = 300


class AssemblerError(RuntimeError):
    """There is no assembler, or it rejected the code."""


@dataclass(frozen=True)
class Assembler:
    """An assembler that is installed."""

    path: str
    version: str
    """The wheel that it is from, with its version."""

    def assemble(self, code: bytes, cpu: str) -> bytes:
        """Machine code for a GPU such as `sm_90`."""
        command = [self.path, f"--gpu-name={cpu}", "/dev/stdin", "-o", "/dev/stdout"]
        try:
            done = subprocess.run(
                command, input=code, capture_output=True, check=False, timeout=_TIMEOUT_SECONDS
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise AssemblerError(f"{self.path} does not run: {error}") from error
        if done.returncode:
            raise AssemblerError(done.stderr.decode(errors="replace").strip())
        return checked_machine_code(done.stdout)


def checked_machine_code(code: bytes) -> bytes:
    """The code; raises `AssemblerError` if it is no machine code for a GPU."""
    if not code.startswith(_ELF) or code[_ARCHITECTURE] != _CUDA:
        raise AssemblerError("it is no machine code for an NVIDIA GPU")
    return code


@functools.cache
def assembler_for(cpu: str) -> Assembler | None:
    """The assembler of this installation for a GPU such as `sm_90`."""
    number = "".join(filter(str.isdigit, cpu))
    later = ["backends/nvidia/bin/ptxas-blackwell"] if int(number or 0) >= _BLACKWELL else []
    places = [("triton", name) for name in (*later, "backends/nvidia/bin/ptxas")]
    for package, name in (*places, ("nvidia", "*/bin/ptxas")):
        for folder in _folders_of(package):
            for path in sorted(folder.glob(name)):
                if os.access(path, os.X_OK):
                    return Assembler(str(path), _version_of(package, path))
    return None


def _folders_of(package: str) -> list[Path]:
    """Where a package lies, which is not imported."""
    spec = importlib.util.find_spec(package)
    return [Path(each) for each in (spec and spec.submodule_search_locations) or ()]


def _version_of(package: str, path: Path) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        # Several wheels share the package `nvidia`.
        status = path.stat()
        return f"{package} {status.st_size} {status.st_mtime_ns}"
