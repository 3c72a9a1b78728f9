"""The functions of this process that generated code may call, by their names."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch

from adjoint.runtime.cpu.support import C_FUNCTIONS, c_function
from adjoint.runtime.cpu.threads import openmp
from adjoint.torch_private.handles import NODE_FUNCTION, TENSOR_FUNCTIONS

# Functions of CPython's stable interface.
PYTHON_FUNCTIONS = frozenset(
    {
        "PyLong_AsVoidPtr",
        "PyLong_AsLongLong",
        "PyLong_FromLongLong",
        "PyErr_BadArgument",
        "PyErr_Occurred",
        "PyEval_SaveThread",
        "PyEval_RestoreThread",
        "PyTuple_New",
        "PyTuple_SetItem",
        "PyType_IsSubtype",
    }
)

# Matrix products of the BLAS in torch's library.
BLAS_FUNCTIONS = frozenset({"sgemm_", "dgemm_"})

_ADDED: dict[str, int] = {}


def add_external(name: str, address: int) -> None:
    """Let generated code call the function at `address` as `name`."""
    _ADDED[name] = address


def external(name: str) -> int | None:
    """The address of a function that generated code may call; None: there is none."""
    if name in _ADDED:
        return _ADDED[name]
    if name in C_FUNCTIONS:
        return c_function(name)
    if name in PYTHON_FUNCTIONS:
        return _in(ctypes.pythonapi, name)
    if name in BLAS_FUNCTIONS or name in TENSOR_FUNCTIONS or name == NODE_FUNCTION:
        library = _torch_library()
        return None if library is None else _in(library, name)
    return openmp().get(name)


def _in(library: ctypes.CDLL, name: str) -> int | None:
    found = getattr(library, name, None)
    return None if found is None else ctypes.cast(found, ctypes.c_void_p).value


@functools.cache
def _torch_library() -> ctypes.CDLL | None:
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    return ctypes.CDLL(str(path)) if path.exists() else None
