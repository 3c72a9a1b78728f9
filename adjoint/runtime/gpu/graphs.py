"""Recordings of a program's calls, done again where tensors lie where they lay before.

To tell a device what to do may take longer than doing it.  In a loop, memory comes back at the same
addresses step after step: a call whose inputs lie where those of a recorded one lay, and for whose
large results torch's allocator gives the memory that it gave then, is that recording, launched
again.  So a recording keeps little memory, however large what it reads and writes.

For small tensors the allocator finds another place each time.  So small results lie in memory of
the recording, which is launched again only if nobody holds them; a few that are held from one step
to the next (a loss) are copied, and so are small inputs that come from a new place each time.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import torch

from adjoint.graph.evaluation import detach_inputs
from adjoint.runtime.gpu.results import (
    SMALL,
    Giver,
    Layout,
    Memory,
    New,
    Uncapturable,
    laid_out,
    span,
)
from adjoint.torch_private.cuda import foreach_copy
from adjoint.torch_private.storages import Holders

T = TypeVar("T")

# Calls with the same addresses that run as they are, before one is recorded.
SEEN = 2

# Recordings of a program at a time.
MOST = 4

# Recordings for the same addresses: two take turns where results are held for a step.
TURNS = 2

# Recordings of a program in all: after that, to make them takes longer than they save.
TRIES = 8

# Calls in a row that no recording was for, after which none is looked for.
PATIENCE = 16

# Addresses remembered.
REMEMBERED = 16

# Up to so many results are copied: where more are held, all of a step's results are.
FEW = 4

# Where small results of recordings lie: they do so for good.
_LENT: Counter[int] = Counter()


class Launchable(Protocol):
    def launch(self, stream: int) -> None: ...


class Recorder(Protocol):
    """Writes down what a device is told to do."""

    device: torch.device

    def is_capturing(self) -> bool:
        """Somebody else records what runs now."""
        ...

    def settings(self) -> Hashable:
        """What operators obey besides their arguments."""
        ...

    @property
    def new(self) -> Memory:
        """Gives memory for a result."""
        ...

    def record(self, work: Callable[[int], T], stream: int) -> tuple[Launchable, T]:
        """What `work` launches on the stream that it is given, to be launched on `stream`.

        RuntimeError if that cannot be.
        """
        ...


class Place(Protocol):
    """Memory for what lives inside the program, for one stream and one set of sizes."""

    is_stale: bool


class Landing:
    """Memory for an input that comes from a new place each time."""

    def __init__(self, like: torch.Tensor) -> None:
        self._count = span(like.shape, like.stride())
        self._flat = torch.empty(self._count, dtype=like.dtype, device=like.device)
        self.tensor = self._flat.as_strided(like.shape, like.stride())
        self._is_dense: bool = torch.ops.aten.is_non_overlapping_and_dense(like)

    def pair(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Where `tensor` goes, and what: also what lies between its elements."""
        if self._is_dense:
            return self.tensor, tensor
        return self._flat, tensor.as_strided((self._count,), (1,))


def _chosen(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Takes what is at `places`."""
    return itemgetter(*places) if len(places) > 1 else lambda values: [values[n] for n in places]


def _are_nowhere(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether one of them has elements, and no memory: they are known to be zeros."""
    return any(tensor.numel() and not tensor.data_ptr() for tensor in tensors)


def _is_lent(tensor: torch.Tensor) -> bool:
    """It lies where a recording put it, and will do so again."""
    return _LENT[tensor.untyped_storage().data_ptr()] > 0


def _is_small(tensor: torch.Tensor) -> bool:
    return span(tensor.shape, tensor.stride()) * tensor.element_size() <= SMALL


class Recording:
    """A call, to be done again."""

    def __init__(
        self,
        graph: Launchable,
        place: Place,
        landings: Mapping[int, Landing],
        lent: Mapping[int, torch.Tensor],
    ) -> None:
        self.place = place
        self._graph = graph
        self._landings = landings
        self._lent = lent
        """Small results, where the recording makes them."""
        self._holders = {number: Holders(tensor) for number, tensor in lent.items()}
        addresses = [tensor.untyped_storage().data_ptr() for tensor in lent.values()]
        _LENT.update(addresses)
        weakref.finalize(self, _LENT.subtract, addresses)

    def held(self) -> list[int]:
        """Which of its results somebody holds."""
        return [number for number, holders in self._holders.items() if not holders.are_gone()]

    def replay(
        self, inputs: Sequence[Any], copied: Set[int], stream: int
    ) -> dict[int, torch.Tensor]:
        """Does it again, for `inputs`; returns the small results, `copied` in new memory."""
        if self._landings:
            foreach_copy(landing.pair(inputs[place]) for place, landing in self._landings.items())
        self._graph.launch(stream)
        # The same memory with a version count of its own.
        return {
            number: (tensor.clone() if number in copied else tensor).data
            for number, tensor in self._lent.items()
        }


class Sort(NamedTuple):
    """What calls have in common that return results laid out alike."""

    place: Any
    settings: Hashable
    numbers: tuple[Any, ...]
    strides: tuple[tuple[int, ...], ...]


class Key(NamedTuple):
    """What calls must have in common for one recording to do for both."""

    sort: Sort
    inputs: tuple[int, ...]
    """Addresses.  0: it is copied from wherever it is."""
    made: tuple[int, ...]
    """Addresses of large results."""


Run: TypeAlias = Callable[[list[Any], Any, int, New], Any]


class Recordings:
    """Runs a program, or does again what was recorded of it."""

    def __init__(self, run: Run, used: Sequence[int], recorder: Recorder, why: str = "") -> None:
        self._run = run
        self._used = tuple(used)
        """The inputs that matter."""
        self._recorder = recorder
        self.why = why
        """Why nothing is recorded (any more); empty if it may be."""
        self.replays = 0
        self._busy = threading.Lock()
        self._tries = 0
        self._tensors: list[int] = []
        self._numbers: list[int] = []
        """Those of them that are tensors and that are not, once there was a call."""
        self._tensors_of: Callable[[Sequence[Any]], Sequence[torch.Tensor]] = _chosen([])
        self._layouts: dict[Sort, Layout] = {}
        self._usual: tuple[Sort, Layout] | None = None
        """That of the last call, which most calls are like."""
        self._kept: list[tuple[Key, Recording]] = []
        """The one used last is last."""
        self._seen: dict[Key, int] = {}
        """How many calls have run as they are since something was recorded for them."""
        self._latest: Key | None = None
        self._latest_seen = 0
        """The last call that no recording was for, and how many there had been by then."""
        self._missed = 0
        """Calls in a row without a recording."""
        self._copied: set[int] = set()
        """Small results that are held when their memory is wanted again."""
        self._addresses: dict[int, int] = {}
        self._moving: set[int] = set()
        """Small inputs that do not stay where they are."""
        self._landing: tuple[Sort, list[int]] | None = None
        """Which of its inputs are copied to where a recording of this sort reads them."""

    def __call__(self, inputs: list[Any], place: Any, stream: int) -> Any:
        if self.why or not self._busy.acquire(blocking=False):
            return self._plainly(inputs, place, stream)
        try:
            sort = None if self._recorder.is_capturing() else self._sort(inputs, place)
            if sort is None:
                return self._plainly(inputs, place, stream)
            if self._usual is None or sort != self._usual[0]:
                layout = self._layouts.get(sort)
                if layout is None:
                    return self._looked_at(sort, inputs, stream)
                self._usual = (sort, layout)
            return self._again(*self._usual, inputs, stream)
        finally:
            self._busy.release()

    def _plainly(self, inputs: list[Any], place: Any, stream: int) -> Any:
        detach_inputs(inputs)
        return self._run(inputs, place, stream, Giver(self._recorder.new))

    def _looked_at(self, sort: Sort, inputs: list[Any], stream: int) -> Any:
        """The call, with a look at what it returns."""
        detach_inputs(inputs)
        giver, given = Giver(self._recorder.new), list(inputs)
        outputs = self._run(inputs, sort.place, stream, giver)
        try:
            layout, _ = laid_out(outputs, given, giver, self._recorder.device)
        except Uncapturable as error:
            self._give_up(f"it cannot be recorded: {error}")
            return outputs
        self._drop_stale()
        while len(self._layouts) >= REMEMBERED:
            self._layouts.pop(next(iter(self._layouts)))
        self._layouts[sort] = layout
        return outputs

    def _again(self, sort: Sort, layout: Layout, inputs: list[Any], stream: int) -> Any:
        new = self._recorder.new
        large = {n: new(each.shape, each.strides, each.dtype) for n, each in layout.large}
        key = self._key(sort, inputs, large)
        recording = self._free(key)
        if recording is None:
            detach_inputs(inputs)
            if self._have_moved(inputs):
                self._kept.clear()
                key = self._key(sort, inputs, large)
            recording = self._new(key, layout, inputs, large, stream)
        if recording is not None:
            self._missed = 0
            self.replays += 1
            made = large | recording.replay(inputs, self._copied, stream)
        else:
            # Results go where a recording would put them, so that what follows finds them there.
            made = large | self._memory_for_small(layout)
            work = _Work(self._run, inputs, made, layout, sort.place, self._recorder)
            try:
                work(stream, checked=not layout.is_asked_for)
            except Uncapturable as error:
                self._give_up(f"it cannot be recorded: {error}")
                return self._plainly(inputs, sort.place, stream)
        results = layout.handed(inputs, made)
        inputs.clear()
        return results

    def _memory_for_small(self, layout: Layout) -> dict[int, torch.Tensor]:
        new = self._recorder.new
        return {n: new(each.shape, each.strides, each.dtype) for n, each in layout.small}

    def _sort(self, inputs: Sequence[Any], place: Any) -> Sort | None:
        """What decides how results are laid out; None if nothing can be recorded of the call."""
        if not self._tensors and not self._numbers:
            for n in self._used:
                kind = self._tensors if isinstance(inputs[n], torch.Tensor) else self._numbers
                kind.append(n)
            self._tensors_of = _chosen(self._tensors)
            if self._is_elsewhere(inputs):
                return None
        tensors = self._tensors_of(inputs)
        if any(map(torch.Tensor.is_neg, tensors)):
            return None
        return Sort(
            place,
            self._recorder.settings(),
            tuple(inputs[n] for n in self._numbers),
            tuple(map(torch.Tensor.stride, tensors)),
        )

    def _key(self, sort: Sort, inputs: Sequence[Any], large: dict[int, torch.Tensor]) -> Key | None:
        """Everything that a recording takes for granted; None if it cannot."""
        tensors = self._tensors_of(inputs)
        addresses = list(map(torch.Tensor.data_ptr, tensors))
        if 0 in addresses and _are_nowhere(tensors):
            return None
        for n in self._landing_of(sort, inputs):
            addresses[self._tensors.index(n)] = 0
        return Key(sort, tuple(addresses), tuple(map(torch.Tensor.data_ptr, large.values())))

    def _landing_of(self, sort: Sort, inputs: Sequence[Any]) -> list[int]:
        """The inputs that are copied to where a recording reads them."""
        if self._landing is None or self._landing[0] is not sort:
            self._landing = (sort, [n for n in sorted(self._moving) if _is_small(inputs[n])])
        return self._landing[1]

    def _is_elsewhere(self, inputs: Sequence[Any]) -> bool:
        """Whether an input is nothing that a device reads where it is."""
        for each in (inputs[n] for n in self._tensors):
            where = (each.device, each.layout)
            if where != (self._recorder.device, torch.strided) or each.is_complex():
                self._give_up(f"an input is {each.dtype}, {each.layout}, on {each.device}")
                return True
        return False

    def _drop_stale(self) -> None:
        self._kept = [pair for pair in self._kept if not pair[1].place.is_stale]
        self._layouts = {s: kept for s, kept in self._layouts.items() if not s.place.is_stale}
        self._usual = None

    def _free(self, key: Key | None) -> Recording | None:
        """A recording for `key` whose results nobody holds."""
        for n, (each, recording) in enumerate(self._kept):
            if each != key or recording.place.is_stale:
                continue
            held = recording.held()
            if not held:
                self._kept.append(self._kept.pop(n))
                return recording
            # From now on; what is held already was lent.
            if len(held) <= FEW:
                self._copied.update(held)
        return None

    def _new(
        self,
        key: Key | None,
        layout: Layout,
        inputs: list[Any],
        large: dict[int, torch.Tensor],
        stream: int,
    ) -> Recording | None:
        """A new recording for `key`, if it is time for one."""
        if key is None or self._is_elsewhere(inputs):
            return None
        self._drop_stale()
        self._missed += 1
        if self._missed == PATIENCE:
            self._give_up(
                f"for {PATIENCE} calls in a row, tensors were not where they had been, or the"
                " results of earlier calls were all held"
            )
            return None
        seen = self._seen.pop(key, 1)  # The first call of a sort is looked at.
        if self._follows(key, inputs):
            seen = max(seen, self._latest_seen)
        turns = sum(each == key for each, _ in self._kept)
        self._latest, self._latest_seen = key, seen + 1
        if seen >= SEEN and turns < TURNS and self._tries < TRIES:
            return self._recorded(key, layout, inputs, large, stream)
        while len(self._seen) >= REMEMBERED:
            self._seen.pop(next(iter(self._seen)))
        self._seen[key] = seen + 1
        return None

    def _follows(self, key: Key, inputs: Sequence[Any]) -> bool:
        """It is as the call before, but for inputs that are copied or were recorded since."""
        before = self._latest
        if before is None or (key.sort, key.made) != (before.sort, before.made):
            return False
        pairs = zip(self._tensors, key.inputs, before.inputs, strict=True)
        return all(_is_lent(inputs[n]) for n, new, old in pairs if new not in (0, old))

    def _have_moved(self, inputs: Sequence[Any]) -> bool:
        """Whether some small input has just turned out not to stay where it is."""
        before = len(self._moving)
        self._landing = None
        for n in self._tensors:
            if n in self._moving or not _is_small(inputs[n]) or _is_lent(inputs[n]):
                continue
            address = inputs[n].data_ptr()
            if self._addresses.setdefault(n, address) != address:
                self._moving.add(n)
        return len(self._moving) > before

    def _recorded(
        self,
        key: Key,
        layout: Layout,
        inputs: Sequence[Any],
        large: dict[int, torch.Tensor],
        stream: int,
    ) -> Recording | None:
        self._tries += 1
        # The oldest first: its memory may do for the new one.
        del self._kept[: max(0, len(self._kept) - MOST + 1)]
        landings = {n: Landing(inputs[n]) for n in self._landing_of(key.sort, inputs)}
        given = [landings[n].tensor if n in landings else x for n, x in enumerate(inputs)]
        lent = self._memory_for_small(layout)
        work = _Work(self._run, given, large | lent, layout, key.sort.place, self._recorder)
        try:
            graph, _ = self._recorder.record(work, stream)
        except RuntimeError as error:
            self._give_up(f"it cannot be recorded: {error}")
            return None
        # Who holds the memory is counted from here on.
        del work
        recording = Recording(graph, key.sort.place, landings, lent)
        self._kept.append((key, recording))
        return recording

    def _give_up(self, why: str) -> None:
        self.why = why
        self._kept.clear()
        self._seen.clear()
        self._layouts.clear()
        self._usual = None


@dataclass(frozen=True)
class _Work:
    """A call whose results end in `goals`."""

    run: Run
    inputs: Sequence[Any]
    goals: Mapping[int, torch.Tensor]
    layout: Layout
    place: Any
    recorder: Recorder

    def __call__(self, stream: int, checked: bool = True) -> None:
        """`checked`: results may be something else, or may have to be copied there."""
        goals = {n: self.layout.for_program(n, goal) for n, goal in self.goals.items()}
        made = enumerate(self.layout.made)
        ready = {each.slot: goals[n] for n, each in made if each.slot is not None}
        giver = Giver(self.recorder.new, ready)
        outputs = self.run(list(self.inputs), self.place, stream, giver)
        if not checked:
            return
        found, tensors = laid_out(outputs, self.inputs, giver, self.recorder.device)
        if found != self.layout:
            raise Uncapturable("its results are not laid out as they were before")
        for n, (each, tensor) in enumerate(zip(found.made, tensors, strict=True)):
            if each.slot is None:
                goals[n].copy_(tensor)
