"""A call of a program that was captured as a CUDA graph: its key, its memory and its replay.

Its small results, or all of them, lie in memory of the graph, and inputs whose addresses change are
copied into buffers of it.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import torch

from adjoint.open_types import TorchValue
from adjoint.runtime.gpu.results import (
    MAX_SMALL_BYTES,
    Allocate,
    AllocateSlot,
    ResultAllocator,
    ResultLayout,
    Uncapturable,
    layout_of_results,
)
from adjoint.strides import span_of
from adjoint.torch_private.storages import Holders, foreach_copy

T = TypeVar("T")

# Storage addresses of the results that lie in memory of graphs, which stay the same.
_STATIC_STORAGES: Counter[int] = Counter()

# How many bytes these are, on each device.
STATIC_BYTES: Counter[torch.device] = Counter()

# How many calls were captured on each device.
CAPTURES: Counter[torch.device] = Counter()


class Launchable(Protocol):
    def launch(self, stream: int) -> None: ...


class Capturer(Protocol):
    """Captures CUDA graphs."""

    device: torch.device

    @property
    def device_bytes(self) -> int:
        """The memory of the device."""
        ...

    def is_capturing(self) -> bool:
        """Whether the caller is capturing what runs now."""
        ...

    def settings(self) -> Hashable:
        """Global settings on which the kernels of library calls depend."""
        ...

    @property
    def new(self) -> Allocate:
        """Allocates a result."""
        ...

    @property
    def allocate(self) -> AllocateSlot:
        """Allocates the result at a slot."""
        ...

    def capture(self, work: Callable[[int], T], stream: int) -> tuple[Launchable, T]:
        """Capture what `work` launches on the stream that it is given, for replays on `stream`.

        Raises RuntimeError if that cannot be captured.
        """
        ...


class Memory(Protocol):
    """Memory for temporaries."""

    @property
    def is_stale(self) -> bool: ...


class BoundSizes(Protocol):
    """The binding that a call uses."""

    @property
    def lease(self) -> Memory: ...

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """The input sizes and, last, the number of threads."""
        ...


class InputBuffer:
    """Memory of a graph for a small input whose address changes from call to call."""

    def __init__(self, like: torch.Tensor) -> None:
        self._count = span_of(like.shape, like.stride())
        self._flat = torch.empty(self._count, dtype=like.dtype, device=like.device)
        self.tensor = self._flat.as_strided(like.shape, like.stride())
        self._is_dense: bool = torch.ops.aten.is_non_overlapping_and_dense(like)

    def pair(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Target and source of the copy: all memory from the first to the last element."""
        if self._is_dense:
            return self.tensor, tensor
        return self._flat, tensor.as_strided((self._count,), (1,))


def is_static_result(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a result in memory of a graph: its address stays the same."""
    return _STATIC_STORAGES[tensor.untyped_storage().data_ptr()] > 0


def bytes_of(tensor: torch.Tensor) -> int:
    """The bytes from the first element to the last, both included."""
    return span_of(tensor.shape, tensor.stride()) * tensor.element_size()


def is_small(tensor: torch.Tensor) -> bool:
    return bytes_of(tensor) <= MAX_SMALL_BYTES


class CapturedCall:
    """A call that was captured as a CUDA graph."""

    def __init__(
        self,
        graph: Launchable,
        lease: Memory,
        input_buffers: Mapping[int, InputBuffer],
        static_results: Mapping[int, torch.Tensor],
    ) -> None:
        self.lease = lease
        self._graph = graph
        self._input_buffers = input_buffers
        self._static_results = static_results
        """Results in memory of the graph."""
        self._holders = {number: Holders(tensor) for number, tensor in static_results.items()}
        addresses = [tensor.untyped_storage().data_ptr() for tensor in static_results.values()]
        _STATIC_STORAGES.update(addresses)
        weakref.finalize(self, _STATIC_STORAGES.subtract, addresses)
        held: Counter[torch.device] = Counter()
        for tensor in static_results.values():
            held[tensor.device] += bytes_of(tensor)
        STATIC_BYTES.update(held)
        weakref.finalize(self, STATIC_BYTES.subtract, held)

    def held(self) -> list[int]:
        """The numbers of the results in memory of the graph that are still referenced."""
        return [number for number, holders in self._holders.items() if not holders.are_gone()]

    def replay(
        self, inputs: Sequence[TorchValue], copied: Set[int], stream: int
    ) -> dict[int, torch.Tensor]:
        """Replay the call for `inputs`; its static results, those in `copied` in new memory."""
        if self._input_buffers:
            foreach_copy(buffer.pair(inputs[n]) for n, buffer in self._input_buffers.items())
        self._graph.launch(stream)
        # `.data` shares the memory, but not the version counter.
        return {
            number: (tensor.clone() if number in copied else tensor).data
            for number, tensor in self._static_results.items()
        }


class CallKind(NamedTuple):
    """The properties of a call that determine the layout of its results."""

    binding: BoundSizes
    lease: Memory
    sizes: tuple[int, ...]
    settings: Hashable
    numbers: tuple[object, ...]
    strides: tuple[tuple[int, ...], ...]


class CallKey(NamedTuple):
    """What two calls must have in common to be replayed by one graph."""

    kind: CallKind
    inputs: tuple[int, ...]
    """Addresses of inputs; 0 for those that are copied."""
    made: tuple[int, ...]
    """Addresses of large results."""


Run: TypeAlias = Callable[[list[object], BoundSizes, int, AllocateSlot], object]


@dataclass(frozen=True)
class CallInto:
    """A call that writes its results to `targets`."""

    run: Run
    inputs: Sequence[object]
    targets: Mapping[int, torch.Tensor]
    layout: ResultLayout
    binding: BoundSizes
    capturer: Capturer

    def __call__(self, stream: int, checked: bool = True) -> None:
        """`checked`: compare the layout, and copy results that library calls allocated."""
        targets = {n: self.layout.for_program(n, goal) for n, goal in self.targets.items()}
        made = enumerate(self.layout.made)
        ready = {each.slot: targets[n] for n, each in made if each.slot is not None}
        allocator = ResultAllocator(self.capturer.new, ready)
        outputs = self.run(list(self.inputs), self.binding, stream, allocator)
        if not checked:
            return
        found, tensors = layout_of_results(outputs, self.inputs, allocator, self.capturer.device)
        if found != self.layout:
            raise Uncapturable("its results are not laid out as they were before")
        for n, (each, tensor) in enumerate(zip(found.made, tensors, strict=True)):
            if each.slot is None:
                targets[n].copy_(tensor)
