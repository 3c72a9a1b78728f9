"""The CUDA driver API, by ctypes: modules, kernels, and CUDA graphs.

Nothing has to be installed besides the driver itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TypeVar

from adjoint.runtime.code import NativeFunction

# Options of cuModuleLoadDataEx: the buffer for the assembler's error log, and its size.
_ERROR_LOG = 5
_ERROR_LOG_BYTES = 6
_LOG_BYTES = 8192

# Capture modes: unsafe calls are refused in this thread; in no thread.
_THREAD_LOCAL = 1
_RELAXED = 2

T = TypeVar("T")


class DriverError(RuntimeError):
    """A call of the driver failed."""


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
def _context(device: int) -> object:
    """The primary context of a device, which torch uses, too."""
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
    """Make the device's context current: a new thread has none to launch in."""
    if getattr(_THREAD, "device", None) != device:
        _use(device)
        _THREAD.device = device


class Module:
    """A loaded module, unloaded with this object."""

    def __init__(self, handle: int, device: int) -> None:
        self.handle = handle
        # Not at exit: the driver may already be shut down.
        weakref.finalize(self, _unload, handle, device).atexit = False


def _unload(handle: int, device: int) -> None:
    # The driver waits for kernels of the module that are still running.
    with relaxed():
        library().cuCtxSetCurrent(_context(device))
        library().cuModuleUnload(ctypes.c_void_p(handle))


def load(code: bytes, names: list[str], device: int) -> list[NativeFunction]:
    """Load PTX; the module stays loaded as long as one of the functions is referenced."""
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
    """The address of cuLaunchKernel, for native code."""
    address = ctypes.cast(library().cuLaunchKernel, ctypes.c_void_p).value
    assert address is not None
    return address


def capture(work: Callable[[], T], stream: int, device: int) -> tuple[int, T]:
    """Capture what `work` launches on `stream` as an executable graph.  Nothing runs.

    Capturing ends in any case, also if `work` raises.
    """
    _use(device)
    on = ctypes.c_void_p(stream)
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    check(library().cuStreamBeginCapture_v2(on, _THREAD_LOCAL), "begin to capture")
    try:
        result = work()
    except BaseException:
        library().cuStreamEndCapture(on, ctypes.byref(graph))
        if graph.value is not None:
            library().cuGraphDestroy(graph)
        raise
    check(library().cuStreamEndCapture(on, ctypes.byref(graph)), "capture")
    none = ctypes.c_ulonglong(0)
    failed = library().cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, none)
    library().cuGraphDestroy(graph)
    check(failed, "instantiate a CUDA graph")
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
        check(failed, "launch a CUDA graph")


def destroy_graph(executable: int) -> None:
    """Free a graph; the driver defers that until running launches of it are done."""
    with relaxed():
        library().cuGraphExecDestroy(ctypes.c_void_p(executable))


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """Allow calls that would be refused while a stream of this thread is being captured."""
    mode = ctypes.c_int(_RELAXED)
    library().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:
        library().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
