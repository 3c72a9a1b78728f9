"""NVIDIA's driver: code becomes functions of a device, which native code launches.

Only what is needed of it, called as the C library that it is: nothing has to be installed beside
the driver itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from adjoint.runtime.code import NativeFunction

# Options of cuModuleLoadDataEx: where to write what the assembler has to say, and how much of it.
_ERROR_LOG = 5
_ERROR_LOG_BYTES = 6
_LOG_BYTES = 8192

# Modes of recording: only what this thread does may be refused; nothing is.
_THREAD_LOCAL = 1
_RELAXED = 2

T = TypeVar("T")


class DriverError(RuntimeError):
    """The driver refused."""


@functools.cache
def library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DriverError("there is no NVIDIA driver on this machine: libcuda.so.1") from error


def check(code: int, doing: str) -> None:
    if code:
        name = ctypes.c_char_p()
        library().cuGetErrorString(code, ctypes.byref(name))
        said = (name.value or b"an error that it has no words for").decode()
        raise DriverError(f"the driver would not {doing}: {said} (CUDA error {code})")


@functools.cache
def _context(device: int) -> Any:
    """The context that torch uses as well."""
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    check(library().cuInit(0), "start")
    check(library().cuDeviceGet(ctypes.byref(handle), device), f"find device {device}")
    check(
        library().cuDevicePrimaryCtxRetain(ctypes.byref(context), handle),
        f"open device {device}",
    )
    return context


def _use(device: int) -> None:
    check(library().cuCtxSetCurrent(_context(device)), f"use device {device}")


_THREAD = threading.local()


def use_in_this_thread(device: int) -> None:
    """A thread that has told the device nothing yet has no context to launch in."""
    if getattr(_THREAD, "device", None) != device:
        _use(device)
        _THREAD.device = device


class Module:
    """Code on a device, which is unloaded with this."""

    def __init__(self, handle: int, device: int) -> None:
        self.handle = handle
        # Not when the process ends: the driver may have ended before.
        weakref.finalize(self, _unload, handle, device).atexit = False


def _unload(handle: int, device: int) -> None:
    # The driver waits for kernels of it that still run.
    with _relaxed():
        library().cuCtxSetCurrent(_context(device))
        library().cuModuleUnload(ctypes.c_void_p(handle))


def load(code: bytes, names: list[str], device: int) -> list[NativeFunction]:
    """Functions of the PTX text `code`, which stays loaded as long as one of them is held."""
    _use(device)
    log = ctypes.create_string_buffer(_LOG_BYTES)
    options = (ctypes.c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
    values = (ctypes.c_void_p * 2)(ctypes.cast(log, ctypes.c_void_p), _LOG_BYTES)
    module = ctypes.c_void_p()
    failed = library().cuModuleLoadDataEx(
        ctypes.byref(module), ctypes.c_char_p(code), 2, options, values
    )
    if failed:
        check(failed, f"load code: {log.value.decode(errors='replace')}")
    assert module.value is not None
    owner = Module(module.value, device)
    found: list[NativeFunction] = []
    for name in names:
        function = ctypes.c_void_p()
        check(
            library().cuModuleGetFunction(ctypes.byref(function), module, name.encode()),
            f"find {name}",
        )
        assert function.value is not None
        found.append(NativeFunction(function.value, owner))
    return found


def launch_address() -> int:
    """Where cuLaunchKernel is."""
    address = ctypes.cast(library().cuLaunchKernel, ctypes.c_void_p).value
    assert address is not None
    return address


def record(work: Callable[[], T], stream: int, device: int) -> tuple[int, T]:
    """What `work` would run on `stream`, as a graph to be launched.  Nothing runs.

    Whatever happens, the stream runs things again afterwards.
    """
    _use(device)
    on = ctypes.c_void_p(stream)
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    check(library().cuStreamBeginCapture_v2(on, _THREAD_LOCAL), "begin to record")
    try:
        result = work()
    except BaseException:
        library().cuStreamEndCapture(on, ctypes.byref(graph))
        if graph.value is not None:
            library().cuGraphDestroy(graph)
        raise
    check(library().cuStreamEndCapture(on, ctypes.byref(graph)), "record")
    none = ctypes.c_ulonglong(0)
    failed = library().cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, none)
    library().cuGraphDestroy(graph)
    check(failed, "make a recording ready to run")
    assert executable.value is not None
    return executable.value, result


@functools.cache
def _graph_launch() -> Callable[[int, int], int]:
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(
        ("cuGraphLaunch", library())
    )


def launch_graph(executable: int, stream: int, device: int) -> None:
    use_in_this_thread(device)
    failed = _graph_launch()(executable, stream)
    if failed:
        check(failed, "run a recording")


def forget_graph(executable: int) -> None:
    """One that runs is forgotten when it has run."""
    with _relaxed():
        library().cuGraphExecDestroy(ctypes.c_void_p(executable))


@contextlib.contextmanager
def _relaxed() -> Iterator[None]:
    """What is done here may be done while something is recorded; else it would be refused."""
    mode = ctypes.c_int(_RELAXED)
    library().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:
        library().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
