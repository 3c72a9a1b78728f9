"""Dispatch modes, function modes and autocast: which are active, and how to run without them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

from adjoint.torch_private.autograd import Hooks, saved_tensor_hooks

__all__ = [
    "TorchDispatchMode",
    "TorchFunctionMode",
    "are_ops_observed",
    "count_dispatch_modes",
    "default_devices",
    "dispatch_modes",
    "enable_python_dispatcher",
    "has_torch_dispatch",
    "has_torch_function_mode",
    "is_autocast_enabled",
    "is_traceable_wrapper_subclass",
    "isolated",
    "settings",
    "without_autocast",
    "without_dispatch_modes",
    "without_observers",
    "without_torch_function",
]

_AUTOCAST_DEVICES = ("cpu", "cuda")

# How many dispatch modes are active: they would not see kernels that bypass the dispatcher.
count_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack

_has_transforms: Callable[[], bool] = torch._C._are_functorch_transforms_active


def is_traceable_wrapper_subclass(tensor: object) -> bool:
    """Whether this is a subclass that wraps tensors and implements `__tensor_flatten__`."""
    return _python_dispatch.is_traceable_wrapper_subclass(tensor)


def has_torch_dispatch(tensor: torch.Tensor) -> bool:
    """Whether the class of a tensor has a `__torch_dispatch__` of its own."""
    return type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl


def are_ops_observed() -> bool:
    """Whether a `torch.func` transform, forward mode or a dispatch mode has to see each op."""
    return _has_transforms() or count_dispatch_modes() > 0 or forward_ad._current_level >= 0


def dispatch_modes() -> list[object]:
    """The active dispatch modes, innermost last."""
    return list(_python_dispatch._get_current_dispatch_mode_stack())


def without_dispatch_modes() -> contextlib.AbstractContextManager[object]:
    """Run without the active dispatch modes."""
    return _python_dispatch._disable_current_modes()


def without_torch_function() -> contextlib.AbstractContextManager[object]:
    """Run without `__torch_function__` of modes and tensor subclasses."""
    return torch._C.DisableTorchFunction()


def default_devices() -> tuple[torch.device, ...]:
    """The devices of active `torch.device` contexts, innermost last."""
    return tuple(each.device for each in _function_modes() if isinstance(each, DeviceContext))


def has_torch_function_mode() -> bool:
    """Whether a `TorchFunctionMode` other than a device context is active."""
    return not all(isinstance(each, DeviceContext) for each in _function_modes())


def _function_modes() -> list[object]:
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]


# Whether autocast is enabled for some device type.  Each call asks, so there is no frame of ours.
is_autocast_enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Run with autocast off: captured graphs contain its casts as ops."""
    if not is_autocast_enabled():
        yield
        return
    with contextlib.ExitStack() as stack:
        for device in _AUTOCAST_DEVICES:
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextlib.contextmanager
def without_observers() -> Iterator[None]:
    """Run without the caller's dispatch modes, saved-tensor hooks and anomaly detection."""
    hooks: list[Hooks] = []
    while (top := saved_tensor_hooks()) is not None:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        hooks.append(top)
    try:
        with without_dispatch_modes(), torch.autograd.set_detect_anomaly(False):
            yield
    finally:
        for pack, unpack in reversed(hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Run our own programs on fakes, unaffected by the caller's modes, hooks and autocast."""
    with without_observers(), without_autocast(), _without_function_modes():
        yield


@contextlib.contextmanager
def _without_function_modes() -> Iterator[None]:
    """Pop all function modes; `__torch_function__` of fx proxies and tensor subclasses still works.

    (`without_torch_function` disables these as well.)
    """
    modes: list[object] = []
    while torch._C._len_torch_function_stack():
        modes.append(torch._C._pop_torch_function_stack())
    try:
        yield
    finally:
        for each in reversed(modes):
            torch._C._push_on_torch_function_stack(each)


def settings() -> dict[str, str]:
    """What is set in this thread and process that decides which operators a program runs."""
    autocast = [
        (device, torch.is_autocast_enabled(device), str(torch.get_autocast_dtype(device)))
        for device in _AUTOCAST_DEVICES
    ]
    cuda = torch.backends.cuda
    attention: list[Callable[[], bool]] = [cuda.flash_sdp_enabled, cuda.mem_efficient_sdp_enabled]
    attention += [cuda.math_sdp_enabled, cuda.cudnn_sdp_enabled]
    return {
        "grad mode": f"{torch.is_grad_enabled()} {torch.is_inference_mode_enabled()}",
        "forward mode": str(forward_ad._is_fwd_grad_enabled()),
        "autocast": f"{autocast} {torch.is_autocast_cache_enabled()}",
        "default dtype": str(torch.get_default_dtype()),
        "default devices": str([*default_devices(), torch.get_default_device()]),
        "libraries": str(
            [
                *(each() for each in attention),
                torch._C._get_mkldnn_enabled(),
                torch._C._get_cudnn_enabled(),
                torch.backends.cudnn.deterministic,
                # A library may be chosen by whether there are several threads.
                torch.get_num_threads() > 1,
            ]
        ),
    }
