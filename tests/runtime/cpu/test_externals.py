from __future__ import annotations

import ctypes

from adjoint.runtime.cpu.externals import (
    BLAS_FUNCTIONS,
    PYTHON_FUNCTIONS,
    add_external,
    external,
)
from adjoint.runtime.cpu.threads import openmp
from adjoint.torch_private.handles import TENSOR_FUNCTIONS


def test_functions_that_code_may_call_are_found() -> None:
    of_torch = (*BLAS_FUNCTIONS, *TENSOR_FUNCTIONS)
    for name in (*PYTHON_FUNCTIONS, *of_torch, *openmp(), "memcpy", "floor"):
        assert external(name), name


def test_others_are_not() -> None:
    # They are in every process, and no business of generated code.
    for name in ("system", "execve", "PyRun_SimpleString", "no_such_function"):
        assert external(name) is None, name


def test_a_function_is_added() -> None:
    kind = ctypes.CFUNCTYPE(ctypes.c_int)
    function = kind(lambda: 7)
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    add_external("test_of_externals", address)
    assert external("test_of_externals") == address
