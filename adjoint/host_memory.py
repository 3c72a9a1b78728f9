"""Values that wait in host memory between a forward and a backward graph.

`to_host` and `from_host` are the identity, into other memory.  Between a GPU and pinned memory
they copy on a stream of their own, overlapped with computation: the program continues as soon as
the value is in one of two *staging buffers* on the device. A buffer is written to again once it
has been copied, so that however far the host is ahead of the device, two buffers are all that the
transfers hold there. `from_host` is told which value will be fetched after its own, and begins to
fetch it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from adjoint.strides import span_of
from adjoint.torch_private.autograd import saved_tensor_hooks
from adjoint.torch_private.operators import OpOverload

# Buffers of a device: one is computed with while the other is copied.
STAGING_BUFFERS = 2

CPU = torch.device("cpu")


@torch.library.custom_op("adjoint::to_host", mutates_args=())
def _to_host(x: Tensor) -> Tensor:
    """A copy in host memory, with the strides of `x`; pinned, if `x` is on a GPU.

    What is copied from a GPU may arrive only after this has returned: `from_host` waits for it.
    """
    copy = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, pin_memory=x.is_cuda)
    if x.is_cuda:
        transfers_of(x.device).send(x, copy)
        return copy
    return copy.copy_(x)


@_to_host.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=CPU)


@torch.library.custom_op("adjoint::from_host", mutates_args=())
def _from_host(x: Tensor, device: torch.device, following: Sequence[Tensor]) -> Tensor:
    """A copy of what `to_host` returned on `device`.

    `following`: values in host memory that will be copied next, in this order.
    """
    copy = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=device)
    if copy.is_cuda:
        transfers_of(copy.device).fetch(x, copy, following)
        return copy
    return copy.copy_(x)


@_from_host.register_fake
def _(x: Tensor, device: torch.device, following: Sequence[Tensor]) -> Tensor:
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=device)


@_to_host.register_vmap
def _(info: object, in_dims: tuple[int | None, ...], x: Tensor) -> tuple[Tensor, int | None]:
    return to_host(x), in_dims[0]


@_from_host.register_vmap
def _(
    info: object,
    in_dims: tuple[int | None, ...],
    x: Tensor,
    device: torch.device,
    following: Sequence[Tensor],
) -> tuple[Tensor, int | None]:
    return from_host(x, device, []), in_dims[0]


class _Context(Protocol):
    """What is kept for the derivative."""

    device: torch.device
    others: list[object]
    """What stands for the cotangents of the other arguments, which have none."""


def _keep(ctx: _Context, inputs: tuple[object, ...], output: Tensor) -> None:
    x, *others = inputs
    assert isinstance(x, Tensor)
    ctx.device = x.device
    ctx.others = [[None] * len(each) if isinstance(each, list) else None for each in others]


def _back(ctx: _Context, cotangent: Tensor) -> tuple[object, ...]:
    """The cotangent is copied without these operators: others may read it at once."""
    return (cotangent.to(ctx.device), *ctx.others)


_to_host.register_autograd(_back, setup_context=_keep)
_from_host.register_autograd(_back, setup_context=_keep)

to_host: OpOverload = torch.ops.adjoint.to_host.default
from_host: OpOverload = torch.ops.adjoint.from_host.default


class StagingBuffer:
    """A buffer on the device, through which one value at a time is copied."""

    def __init__(self) -> None:
        self.buffer: Tensor | None = None
        self.copied = torch.cuda.Event()
        """The transfer into it, or out of it, is over."""
        self.read = torch.cuda.Event()
        """What was fetched into it has been read."""
        self.fetched: Tensor | None = None
        """The value in host memory that is being fetched, until somebody reads it.

        As long as it is referenced no other value can have its address.
        """

    def shaped_like(self, x: Tensor, on: torch.cuda.Stream) -> Tensor:
        """The buffer as a tensor like `x`; transfers run on the stream `on`."""
        count = span_of(x.shape, x.stride()) * x.element_size()
        if self.buffer is None or self.buffer.numel() < count:
            self.buffer = torch.empty(count, dtype=torch.uint8, device=on.device)
            # Kernels that run before it is free may still use its memory.
            on.wait_stream(torch.cuda.current_stream(on.device))
        for stream in (on, torch.cuda.current_stream(on.device)):
            self.buffer.record_stream(stream)
        return self.buffer[:count].view(x.dtype).as_strided(x.size(), x.stride())


class Transfers:
    """Copies between one GPU and host memory, on a stream of their own, in order."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self._buffers = [StagingBuffer() for _ in range(STAGING_BUFFERS)]
        self._busy = threading.Lock()

    def send(self, x: Tensor, to: Tensor) -> None:
        """Copy `x` to pinned memory."""
        if torch.cuda.is_current_stream_capturing():
            to.copy_(x, non_blocking=True)
            return
        if saved_tensor_hooks() is not None:
            # They are shown what is saved, and may read it at once.
            to.copy_(x)
            return
        with self._busy, torch.cuda.device(self.device):
            buffer = self._next()
            staged = buffer.shaped_like(x, self.stream)
            staged.copy_(x)
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                to.copy_(staged, non_blocking=True)
                buffer.copied.record()

    def fetch(self, x: Tensor, to: Tensor, following: Sequence[Tensor]) -> None:
        """Copy `x` to the device, and begin to copy what follows."""
        if torch.cuda.is_current_stream_capturing():
            to.copy_(x, non_blocking=True)
            return
        with self._busy, torch.cuda.device(self.device):
            buffer = self._fetching(x) or self._fetch(x)
            main = torch.cuda.current_stream()
            main.wait_event(buffer.copied)
            to.copy_(buffer.shaped_like(x, self.stream))
            buffer.read.record(main)
            buffer.fetched = None
            for each in following[: STAGING_BUFFERS - 1]:
                if self._fetching(each) is None:
                    self._fetch(each)

    def _fetching(self, x: Tensor) -> StagingBuffer | None:
        """The buffer into which `x` is being copied."""
        for buffer in self._buffers:
            if buffer.fetched is not None and _is_same(buffer.fetched, x):
                return buffer
        return None

    def _fetch(self, x: Tensor) -> StagingBuffer:
        buffer = self._next()
        staged = buffer.shaped_like(x, self.stream)
        with torch.cuda.stream(self.stream):
            staged.copy_(x, non_blocking=True)
            buffer.copied.record()
        buffer.fetched = x
        return buffer

    def _next(self) -> StagingBuffer:
        """The buffer that was used least recently, when the device no longer uses it."""
        buffer = self._buffers.pop(0)
        self._buffers.append(buffer)
        buffer.fetched = None
        for stream in (self.stream, torch.cuda.current_stream()):
            stream.wait_event(buffer.copied)
            stream.wait_event(buffer.read)
        return buffer


def _is_same(one: Tensor, other: Tensor) -> bool:
    return (one.data_ptr(), one.dtype, one.shape, one.stride()) == (
        other.data_ptr(),
        other.dtype,
        other.shape,
        other.stride(),
    )


@functools.cache
def transfers_of(device: torch.device) -> Transfers:
    return Transfers(device)
