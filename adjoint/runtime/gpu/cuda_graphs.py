"""CUDA graphs of a program's calls, replayed when all tensor addresses match the captured ones.

Launching kernels one by one may take longer than running them.  In a training loop torch's caching
allocator returns the same addresses step after step: a call whose inputs have the addresses of a
captured one, and for whose large results the allocator returns the captured addresses, replays that
CUDA graph.  So a graph keeps little memory, however large its inputs and results are.

Small tensors get new addresses each time.  Small results therefore lie in memory of the graph,
which is replayed only if nothing refers to them any more; a few that stay referenced from one step
to the next (a loss) are copied, and so are small inputs whose addresses change.

Where the allocator returns other addresses in each step, large results lie in memory of the graph,
too, as long as all graphs hold only a small part of the device's memory.  Inputs that another graph
computes then have the same addresses, and other inputs (a batch) are copied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from adjoint.graph.derivative import picker
from adjoint.graph.evaluation import detach_inputs
from adjoint.open_types import TorchValue
from adjoint.runtime.gpu.captured_calls import (
    CAPTURES,
    STATIC_BYTES,
    BoundSizes,
    CallInto,
    CallKey,
    CallKind,
    CapturedCall,
    Capturer,
    InputBuffer,
    Run,
    bytes_of,
    is_small,
    is_static_result,
)
from adjoint.runtime.gpu.results import (
    NewTensor,
    ResultAllocator,
    ResultLayout,
    Uncapturable,
    layout_of_results,
)

# Calls with the same addresses that run uncaptured before one is captured.
CALLS_BEFORE_CAPTURE = 2

# CUDA graphs that a program keeps: a layer's program is called with the weights of each layer.
MAX_GRAPHS = 32

# CUDA graphs for the same addresses: two alternate where results stay referenced for a step.
MAX_GRAPHS_PER_KEY = 2

# Captures that were not replayed: with more, capturing takes longer than replays save.
MAX_UNUSED_CAPTURES = 8

# Consecutive calls without a matching graph, after which the program gives up.
MAX_CONSECUTIVE_MISSES = 64

# After this many calls with repeated inputs, but large results at other addresses, large results
# lie in memory of the graph.  A call right after a capture does not count: the capture takes
# memory, so the allocator returns other addresses once.
MISSES_BEFORE_HOLDING = 3

# The part of the device's memory that graphs may hold for results.
MAX_HELD_FRACTION = 1 / 32

# The most bytes of inputs that are copied if results lie in memory of the graph.
MAX_COPIED_BYTES = 1 << 26

# The part of a call's inputs, by bytes, that may change from step to step.  If more changes, it
# counts as another call, such as that of another layer.
MAX_CHANGING_FRACTION = 1 / 4

# Kinds and keys of calls that are remembered.
MAX_REMEMBERED_KEYS = 64

# If more small results stay referenced, the caller keeps all results of a step: copying some of
# them would not make the graph replayable.
MAX_COPIED_RESULTS = 4


def _have_no_memory(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether one of them has elements but no memory: a ZeroTensor."""
    return any(tensor.numel() and not tensor.data_ptr() for tensor in tensors)


class _Inputs:
    """The bytes of the tensors of one kind of call, the largest first.

    Calls are compared with up to `MAX_REMEMBERED_KEYS` earlier ones, each of some hundred tensors.
    """

    most: float
    """How many bytes may change from step to step; if more do, it is another call."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        counts = list(map(bytes_of, tensors))
        self._largest_first = sorted(enumerate(counts), key=lambda pair: -pair[1])
        self.most = min(MAX_COPIED_BYTES, sum(counts) * MAX_CHANGING_FRACTION)

    def are_few(self, new: Sequence[int], old: Sequence[int]) -> bool:
        """Whether the tensors whose addresses differ are a small part, as a batch is."""
        left = self.most
        for place, count in self._largest_first:
            if new[place] != old[place]:
                left -= count
                if left < 0:
                    return False
        return True


class CudaGraphs:
    """Runs a program, capturing CUDA graphs of its calls and replaying them."""

    def __init__(
        self,
        run: Run,
        used: Sequence[int],
        capturer: Capturer,
        why: str = "",
        detach: Callable[[list[object]], None] = detach_inputs,
    ) -> None:
        """`detach`: what is done to inputs before the program itself runs."""
        self._run = run
        self._detach = detach
        self._used = tuple(used)
        """The positions of the inputs that the program uses."""
        self._capturer = capturer
        self.why = why
        """Why calls are not captured, or no longer; empty if they may be."""
        self.replays = 0
        self._busy = threading.Lock()
        self._captures = 0
        self._tensors: list[int] = []
        self._numbers: list[int] = []
        """The used inputs that are tensors, and those that are not, known from the first call."""
        self._tensors_of: Callable[[Sequence[TorchValue]], Sequence[TorchValue]] = picker([])
        self._layouts: dict[CallKind, ResultLayout] = {}
        self._last_kind: tuple[CallKind, ResultLayout] | None = None
        """Kind and layout of the last call, which most calls share."""
        self._captured: list[tuple[CallKey, CapturedCall]] = []
        """The most recently used last."""
        self._seen: dict[CallKey, int] = {}
        """How many calls with a key have run uncaptured since its last capture."""
        self._latest: CallKey | None = None
        self._latest_seen = 0
        """The key of the last call that was not replayed, and how many such calls had run."""
        self._missed = 0
        """Consecutive calls that were not replayed."""
        self._moved = 0
        """Calls with inputs that had come before, but large results at other addresses."""
        self._captures_before = 0
        """How many calls had been captured on the device when the last one was not replayed."""
        self._holds_results = False
        """Large results lie in memory of the graph, too."""
        self._copied_results: set[int] = set()
        """Static results that were still referenced at a later call: copied from then on."""
        self._addresses: dict[int, int] = {}
        self._moving_inputs: set[int] = set()
        """Inputs whose addresses change, small unless results are held."""
        self._copied_inputs: tuple[CallKind, list[int]] | None = None
        """The inputs that are copied into buffers of a graph, for one kind of call."""
        self._measured: tuple[CallKind, _Inputs] | None = None
        """The inputs of the last kind of call that was not replayed."""
        self._last_sizes: tuple[int, ...] | None = None
        self._seen_sizes: dict[tuple[int, ...], None] = {}

    def __call__(self, inputs: list[object], binding: BoundSizes, stream: int) -> TorchValue:
        if self.why or self._are_new(binding) or not self._busy.acquire(blocking=False):
            return self._run_uncaptured(inputs, binding, stream)
        try:
            kind = None if self._capturer.is_capturing() else self._kind(inputs, binding)
            if kind is None:
                return self._run_uncaptured(inputs, binding, stream)
            if self._last_kind is None or kind != self._last_kind[0]:
                layout = self._layouts.get(kind)
                if layout is None:
                    return self._run_first(kind, inputs, stream)
                self._last_kind = (kind, layout)
            return self._run_known(*self._last_kind, inputs, stream)
        finally:
            self._busy.release()

    def _are_new(self, binding: BoundSizes) -> bool:
        """Whether these sizes have not been seen: such a call is not considered for capture."""
        sizes = binding.sizes
        if sizes == self._last_sizes:
            return False
        self._last_sizes = sizes
        assert sizes is not None
        if len(sizes) == 1 or sizes in self._seen_sizes:
            return False
        while len(self._seen_sizes) >= MAX_REMEMBERED_KEYS:
            self._seen_sizes.pop(next(iter(self._seen_sizes)))
        self._seen_sizes[sizes] = None
        return True

    def _run_uncaptured(self, inputs: list[object], binding: BoundSizes, stream: int) -> object:
        self._detach(inputs)
        return self._run(inputs, binding, stream, self._capturer.allocate)

    def _run_first(self, kind: CallKind, inputs: list[object], stream: int) -> object:
        """Run the first call of a kind, and find the layout of its results."""
        self._detach(inputs)
        allocator, given = ResultAllocator(self._capturer.new), list(inputs)
        outputs = self._run(inputs, kind.binding, stream, allocator)
        try:
            layout, _ = layout_of_results(outputs, given, allocator, self._capturer.device)
        except Uncapturable as error:
            self._give_up(f"it cannot be captured: {error}")
            return outputs
        self._drop_stale()
        while len(self._layouts) >= MAX_REMEMBERED_KEYS:
            self._layouts.pop(next(iter(self._layouts)))
        self._layouts[kind] = layout
        return outputs

    def _run_known(
        self, kind: CallKind, layout: ResultLayout, inputs: list[object], stream: int
    ) -> object:
        large = {} if self._holds_results else self._memory_for(layout.large)
        key = self._key(kind, inputs, large)
        captured = self._replayable(key)
        if captured is None:
            self._detach(inputs)
            if self._finds_moving_inputs(kind, inputs):
                self._captured.clear()
            # What is copied may have changed: it may be in memory of a graph by now.
            key = self._key(kind, inputs, large)
            captured = self._capture_if_due(key, layout, inputs, large, stream)
        if captured is not None:
            self._missed = 0
            self.replays += 1
            made = large | captured.replay(inputs, self._copied_results, stream)
        else:
            # Allocated as for a capture, so that programs that read them see the same addresses.
            made = large | self._memory_for(self._static(layout))
            work = CallInto(self._run, inputs, made, layout, kind.binding, self._capturer)
            try:
                work(stream, checked=not layout.is_asked_for)
            except Uncapturable as error:
                self._give_up(f"it cannot be captured: {error}")
                return self._run_uncaptured(inputs, kind.binding, stream)
        results = layout.results_from(inputs, made)
        inputs.clear()
        return results

    def _static(self, layout: ResultLayout) -> list[tuple[int, NewTensor]]:
        """The results that lie in memory of the graph, and their numbers."""
        return layout.all if self._holds_results else layout.small

    def _memory_for(self, results: Sequence[tuple[int, NewTensor]]) -> dict[int, torch.Tensor]:
        new = self._capturer.new
        return {n: new(each.shape, each.strides, each.dtype) for n, each in results}

    def _kind(self, inputs: Sequence[object], binding: BoundSizes) -> CallKind | None:
        """The kind of a call; None if it cannot be captured."""
        if not self._tensors and not self._numbers:
            for n in self._used:
                kind = self._tensors if isinstance(inputs[n], torch.Tensor) else self._numbers
                kind.append(n)
            self._tensors_of = picker(self._tensors)
            if self._has_unsupported_input(inputs):
                return None
        tensors = self._tensors_of(inputs)
        if any(map(torch.Tensor.is_neg, tensors)):
            return None
        assert binding.sizes is not None
        return CallKind(
            binding,
            binding.lease,
            binding.sizes,
            self._capturer.settings(),
            tuple(inputs[n] for n in self._numbers),
            tuple(map(torch.Tensor.stride, tensors)),
        )

    def _key(
        self, kind: CallKind, inputs: Sequence[object], large: dict[int, torch.Tensor]
    ) -> CallKey | None:
        """Everything that a replay assumes; None if the call cannot be captured."""
        tensors = self._tensors_of(inputs)
        addresses = list(map(torch.Tensor.data_ptr, tensors))
        if 0 in addresses and _have_no_memory(tensors):
            return None
        for n in self._copied_inputs_of(kind, inputs):
            addresses[self._tensors.index(n)] = 0
        return CallKey(kind, tuple(addresses), tuple(map(torch.Tensor.data_ptr, large.values())))

    def _copied_inputs_of(self, kind: CallKind, inputs: Sequence[TorchValue]) -> list[int]:
        """The inputs that are copied into buffers of a graph: small ones, of changing addresses.

        Not inputs that another CUDA graph computes: their addresses changed only until that graph
        was captured.
        """
        if self._copied_inputs is None or self._copied_inputs[0] is not kind:
            moving = [n for n in sorted(self._moving_inputs) if not is_static_result(inputs[n])]
            if sum(bytes_of(inputs[n]) for n in moving) > MAX_COPIED_BYTES:
                moving = [n for n in moving if is_small(inputs[n])]
            self._copied_inputs = (kind, moving)
        return self._copied_inputs[1]

    def _has_unsupported_input(self, inputs: Sequence[TorchValue]) -> bool:
        """Whether an input is not a strided real tensor on the device; if so, give up."""
        for each in (inputs[n] for n in self._tensors):
            where = (each.device, each.layout)
            if where != (self._capturer.device, torch.strided) or each.is_complex():
                self._give_up(f"an input is {each.dtype}, {each.layout}, on {each.device}")
                return True
        return False

    def _drop_stale(self) -> None:
        self._captured = [pair for pair in self._captured if not pair[1].lease.is_stale]
        self._layouts = {s: kept for s, kept in self._layouts.items() if not s.lease.is_stale}
        self._last_kind = None

    def _replayable(self, key: CallKey | None) -> CapturedCall | None:
        """A captured call for `key` whose small results are not referenced any more."""
        for n, (each, captured) in enumerate(self._captured):
            if each != key or captured.lease.is_stale:
                continue
            held = captured.held()
            if not held:
                self._captured.append(self._captured.pop(n))
                return captured
            # Copied from the next replay on: the results that are referenced now lie in memory of
            # the graph.
            if len(held) <= MAX_COPIED_RESULTS:
                self._copied_results.update(held)
        return None

    def _capture_if_due(
        self,
        key: CallKey | None,
        layout: ResultLayout,
        inputs: list[object],
        large: dict[int, torch.Tensor],
        stream: int,
    ) -> CapturedCall | None:
        """Capture a call with `key`, if there were enough of them."""
        if key is None or self._has_unsupported_input(inputs):
            return None
        self._drop_stale()
        self._missed += 1
        captures = CAPTURES[self._capturer.device]
        is_quiet, self._captures_before = captures == self._captures_before, captures
        if (
            not self._holds_results
            and is_quiet
            and self._has_moved_results(key, self._tensors_of(inputs))
        ):
            self._moved += 1
            # Two CUDA graphs may alternate for each key.
            count = MAX_GRAPHS_PER_KEY * layout.count_bytes
            if self._moved == MISSES_BEFORE_HOLDING and self._may_hold(count):
                self._holds_results = True
                self._seen.clear()
                return None
        if self._missed == MAX_CONSECUTIVE_MISSES:
            self._give_up(
                f"for {MAX_CONSECUTIVE_MISSES} calls in a row, tensors were not where they had"
                " been, or the results of earlier calls were all held"
            )
            return None
        seen = self._seen.pop(key, 1)  # The first call of a kind ran in `_run_first`.
        if self._continues_last(key, inputs):
            seen = max(seen, self._latest_seen)
        turns = sum(each == key for each, _ in self._captured)
        self._latest, self._latest_seen = key, seen + 1
        if (
            seen >= CALLS_BEFORE_CAPTURE
            and turns < MAX_GRAPHS_PER_KEY
            and 2 * self._captures - self.replays < MAX_UNUSED_CAPTURES
        ):
            return self._capture(key, layout, inputs, large, stream)
        while len(self._seen) >= MAX_REMEMBERED_KEYS:
            self._seen.pop(next(iter(self._seen)))
        self._seen[key] = seen + 1
        return None

    def _has_moved_results(self, key: CallKey, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether a call with the same inputs, but for few, had large results elsewhere."""
        measured = self._measured_inputs(key.kind, tensors)
        return any(
            each.made != key.made
            and each.kind == key.kind
            and measured.are_few(key.inputs, each.inputs)
            for each in reversed(self._seen)
        )

    def _measured_inputs(self, kind: CallKind, tensors: Sequence[torch.Tensor]) -> _Inputs:
        if self._measured is None or self._measured[0] is not kind:
            self._measured = (kind, _Inputs(tensors))
        return self._measured[1]

    def _may_hold(self, count_bytes: int) -> bool:
        """Whether `count_bytes` more bytes of results may lie in memory of graphs."""
        held = STATIC_BYTES[self._capturer.device] + count_bytes
        return held <= self._capturer.device_bytes * MAX_HELD_FRACTION

    def _continues_last(self, key: CallKey, inputs: Sequence[TorchValue]) -> bool:
        """Whether the call differs from the last one only in inputs that are copied or static."""
        before = self._latest
        if before is None or (key.kind, key.made) != (before.kind, before.made):
            return False
        pairs = zip(self._tensors, key.inputs, before.inputs, strict=True)
        return all(is_static_result(inputs[n]) for n, new, old in pairs if new not in (0, old))

    def _finds_moving_inputs(self, kind: CallKind, inputs: Sequence[TorchValue]) -> bool:
        """Whether the address of an input that may be copied has changed for the first time."""
        before = len(self._moving_inputs)
        self._copied_inputs = None
        large: list[int] = []
        for n in self._tensors:
            address = inputs[n].data_ptr()
            if n in self._moving_inputs or not address or is_static_result(inputs[n]):
                continue
            if self._addresses.setdefault(n, address) == address:
                continue
            if is_small(inputs[n]):
                self._moving_inputs.add(n)
            else:
                large.append(n)
        if self._holds_results and large:
            measured = self._measured_inputs(kind, self._tensors_of(inputs))
            are_few = sum(bytes_of(inputs[n]) for n in large) <= measured.most
            self._moving_inputs.update(large if are_few else ())
        return len(self._moving_inputs) > before

    def _capture(
        self,
        key: CallKey,
        layout: ResultLayout,
        inputs: Sequence[TorchValue],
        large: dict[int, torch.Tensor],
        stream: int,
    ) -> CapturedCall | None:
        # Free the oldest first: the new graph may use its memory.
        del self._captured[: max(0, len(self._captured) - MAX_GRAPHS + 1)]
        if self._holds_results:
            while self._captured and not self._may_hold(layout.count_bytes):
                del self._captured[0]
            if not self._may_hold(layout.count_bytes):
                return None
        self._captures += 1
        copied = self._copied_inputs_of(key.kind, inputs)
        try:
            buffers = {n: InputBuffer(inputs[n]) for n in copied}
            given = [buffers[n].tensor if n in buffers else x for n, x in enumerate(inputs)]
            static_results = self._memory_for(self._static(layout))
            targets = large | static_results
            work = CallInto(self._run, given, targets, layout, key.kind.binding, self._capturer)
            graph, _ = self._capturer.capture(work, stream)
        except RuntimeError as error:
            self._give_up(f"it cannot be captured: {error}")
            return None
        # References to the results are counted from here on.
        del work, targets
        captured = CapturedCall(graph, key.kind.lease, buffers, static_results)
        self._captured.append((key, captured))
        CAPTURES[self._capturer.device] += 1
        return captured

    def _give_up(self, why: str) -> None:
        self.why = why
        self._captured.clear()
        self._seen.clear()
        self._layouts.clear()
        self._last_kind = None
