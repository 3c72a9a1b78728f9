"""Recordings of a program's calls, done again where tensors lie where they lay before.

To tell a device what to do may take longer than doing it.  In a loop, memory comes back at the same
addresses step after step: a call whose inputs lie where those of a recorded one lay is that
recording, launched again, and reads whatever they hold by now.

Results lie in the recording's own memory.  It runs again only if nobody holds what it made the last
time; otherwise another recording does, or the program itself.  A few bytes that are held from one
step to the next (a loss), or that come from a new place each time, are copied instead.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import torch

from adjoint.torch_private import trees
from adjoint.torch_private.fake import storage_key
from adjoint.torch_private.storages import Holders

T = TypeVar("T")

# Calls with the same addresses that run as they are, before one is recorded.
SEEN = 2

# Recordings of a program at a time: each has memory for the results.
MOST = 4

# Recordings for the same addresses: two take turns where results are held for a step.
TURNS = 2

# Recordings of a program in all: after that, to make them takes longer than they save.
TRIES = 16

# Calls in a row that no recording was for, after which none is looked for.
PATIENCE = 64

# Addresses remembered.
REMEMBERED = 16

# Up to so many bytes are copied: that takes less than to launch a kernel.
SMALL = 1 << 20

# Up to so many results are copied: where more are held, all of a step's results are.
FEW = 4

# An input that was at another address so many times will not stay where it is.
MOVES = 3


# Where results of recordings lie: they do so for good.
_LENT: Counter[int] = Counter()

# How many bytes that is, on each device.
_LENT_BYTES: Counter[torch.device] = Counter()

# So much may always be kept for results that nobody holds.
LEAST_ROOM = 1 << 28


class Launchable(Protocol):
    def launch(self, stream: int) -> None: ...


class Recorder(Protocol):
    """Writes down what a device is told to do."""

    device: torch.device

    def is_recording(self) -> bool:
        """Somebody else records what runs now."""
        ...

    def settings(self) -> Hashable:
        """What operators obey besides their arguments."""
        ...

    def most_used(self) -> int:
        """How many bytes of the device's memory were in use at a time, at most."""
        ...

    def record(self, work: Callable[[int], T]) -> tuple[Launchable, T]:
        """What `work` launches on the stream that it is given; RuntimeError if that cannot be."""
        ...


class Place(Protocol):
    """Memory for what lives inside the program, for one stream and one set of sizes."""

    is_stale: bool


class Unrecordable(RuntimeError):
    """A result that could not be handed out again."""


@dataclass(frozen=True)
class Window:
    """How a view lies in the memory of a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    """From the tensor's first element."""

    @staticmethod
    def between(view: torch.Tensor, tensor: torch.Tensor) -> Window:
        if view.dtype != tensor.dtype:
            raise Unrecordable(f"a result is {view.dtype} over memory of {tensor.dtype}")
        offset = int(view.storage_offset()) - int(tensor.storage_offset())
        return Window(tuple(view.shape), view.stride(), offset)

    def on(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.as_strided(self.shape, self.strides, tensor.storage_offset() + self.offset)


@dataclass(frozen=True)
class FromInput:
    """A result that is an input, or a view of one."""

    place: int
    window: Window | None


@dataclass(frozen=True)
class FromMade:
    """A result that the recording makes, or a view of one."""

    number: int
    window: Window | None


@dataclass(frozen=True)
class Fixed:
    """A result that is no tensor."""

    value: Any


Result: TypeAlias = FromInput | FromMade | Fixed


def taken_apart(
    leaves: Sequence[Any], inputs: Sequence[Any], device: torch.device
) -> tuple[list[Result], list[torch.Tensor]]:
    """How each result is made of inputs and new tensors, and the new tensors."""
    given: dict[Any, list[int]] = {}
    for place, each in enumerate(inputs):
        if isinstance(each, torch.Tensor):
            given.setdefault(storage_key(each), []).append(place)
    made: dict[Any, int] = {}
    tensors: list[torch.Tensor] = []
    results: list[Result] = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            results.append(Fixed(leaf))
            continue
        if leaf.device != device or leaf.layout is not torch.strided or _is_lazy(leaf):
            raise Unrecordable(f"a result is {leaf.layout} on {leaf.device}, or not computed yet")
        memory = storage_key(leaf)
        if memory in given:
            place = _source(leaf, given[memory], inputs)
            source = inputs[place]
            window = None if leaf is source else Window.between(leaf, source)
            results.append(FromInput(place, window))
            continue
        root = _root(leaf)
        if memory not in made:
            made[memory] = len(tensors)
            tensors.append(root)
        whole = tensors[made[memory]]
        window = None if leaf is whole else Window.between(leaf, whole)
        results.append(FromMade(made[memory], window))
    return results, tensors


def _bytes_of(result: Any) -> int:
    tensors = [leaf for leaf in trees.leaves(result) if isinstance(leaf, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _is_lazy(tensor: torch.Tensor) -> bool:
    return tensor.is_neg() or tensor.is_conj()


def _are_nowhere(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether one of them has elements, and no memory: they are known to be zeros."""
    return any(tensor.numel() and not tensor.data_ptr() for tensor in tensors)


def _root(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor._base is None else tensor._base


def _source(leaf: torch.Tensor, places: Sequence[int], inputs: Sequence[Any]) -> int:
    """The input that `leaf` is, or is a view of; they may share memory and be no views."""
    for place in places:
        if inputs[place] is leaf:
            return place
    for place in places:
        if _root(inputs[place]) is _root(leaf):
            return place
    return places[0]


class Landing:
    """Memory for an input that comes from a new place each time."""

    def __init__(self, like: torch.Tensor) -> None:
        self._count = _extent(like)
        self._flat = torch.empty(self._count, dtype=like.dtype, device=like.device)
        self.tensor = self._flat.as_strided(like.shape, like.stride())

    def take(self, tensor: torch.Tensor) -> None:
        # What lies between its elements, too, whatever its strides.
        self._flat.copy_(tensor.as_strided((self._count,), (1,)))


def _extent(tensor: torch.Tensor) -> int:
    """How many elements it spans."""
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def _is_small(tensor: torch.Tensor) -> bool:
    return _extent(tensor) * tensor.element_size() <= SMALL


class Recording:
    """A call, to be done again."""

    def __init__(
        self,
        graph: Launchable,
        place: Place,
        landings: Mapping[int, Landing],
        results: Sequence[Result],
        made: list[torch.Tensor],
        spec: trees.TreeSpec,
    ) -> None:
        self.place = place
        self._landings = landings
        self._results = results
        self._made = made
        self._spec = spec
        self._holders = [Holders(tensor) for tensor in made]
        lent = [tensor.untyped_storage().data_ptr() for tensor in made]
        _LENT.update(lent)
        weakref.finalize(self, _LENT.subtract, lent)
        for tensor in made:
            size = Counter({tensor.device: tensor.untyped_storage().nbytes()})
            _LENT_BYTES.update(size)
            weakref.finalize(self, _LENT_BYTES.subtract, size)
        self._graph = graph

    def held(self) -> list[int]:
        """Which of its tensors somebody holds."""
        return [n for n, holders in enumerate(self._holders) if not holders.are_gone()]

    def is_small(self, number: int) -> bool:
        return self._made[number].untyped_storage().nbytes() <= SMALL

    def replay(self, inputs: list[Any], copied: set[int], stream: int) -> Any:
        """The results for `inputs`; those in `copied` in memory of their own."""
        for place, landing in self._landings.items():
            landing.take(inputs[place])
        self._graph.launch(stream)
        # The same memory with a version count of its own, and no view of anything.
        new = [
            (_copy(tensor) if n in copied else tensor).data for n, tensor in enumerate(self._made)
        ]
        leaves = [_handed(result, inputs, new) for result in self._results]
        inputs.clear()
        return trees.unflatten(leaves, self._spec)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """With all of its memory: another result may be a view of that."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    copy = tensor.as_strided((count,), (1,), 0).clone()
    return copy.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _handed(result: Result, inputs: Sequence[Any], new: Sequence[torch.Tensor]) -> Any:
    match result:
        case Fixed(value):
            return value
        case FromInput(place, window):
            return inputs[place] if window is None else window.on(inputs[place])
        case FromMade(number, window):
            return new[number] if window is None else window.on(new[number])


class Key(NamedTuple):
    """What calls must have in common for one recording to do for both."""

    place: Any
    settings: Hashable
    numbers: tuple[Any, ...]
    strides: tuple[tuple[int, ...], ...]
    addresses: tuple[int, ...]
    """0: it is copied from wherever it is."""


Run: TypeAlias = Callable[[list[Any], Any, int], Any]


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
        self._kept: list[tuple[Key, Recording]] = []
        """The one used last is last."""
        self._seen: dict[Key, int] = {}
        """How many calls have run as they are since something was recorded for them."""
        self._latest: Key | None = None
        self._latest_seen = 0
        """The last call that no recording was for, and how many there had been by then."""
        self._missed = 0
        """Calls in a row without a recording."""
        self._bytes = 0
        """Of its results, once there was a call."""
        self._copied: set[int] = set()
        """Results that are held when their memory is wanted again."""
        self._addresses: dict[int, int] = {}
        self._moves: dict[int, int] = {}

    def __call__(self, inputs: list[Any], place: Any, stream: int) -> Any:
        if self.why or not self._busy.acquire(blocking=False):
            return self._run(inputs, place, stream)
        try:
            if self._recorder.is_recording():
                return self._run(inputs, place, stream)
            key = self._key(inputs, place)
            if key is None:
                return self._run(inputs, place, stream)
            recording = self._free(key) or self._new(key, inputs, place)
            if recording is None:
                result = self._run(inputs, place, stream)
                self._bytes = self._bytes or _bytes_of(result)
                return result
            self._missed = 0
            self.replays += 1
            return recording.replay(inputs, self._copied, stream)
        finally:
            self._busy.release()

    def _key(self, inputs: Sequence[Any], place: Any) -> Key | None:
        """Everything that a recording takes for granted; None if it cannot."""
        if not self._tensors and not self._numbers:
            for n in self._used:
                kind = self._tensors if isinstance(inputs[n], torch.Tensor) else self._numbers
                kind.append(n)
            if self._is_elsewhere(inputs):
                return None
        tensors = [inputs[n] for n in self._tensors]
        addresses = list(map(torch.Tensor.data_ptr, tensors))
        if any(map(torch.Tensor.is_neg, tensors)) or (0 in addresses and _are_nowhere(tensors)):
            return None
        for n in self._moves:
            if self._is_landing(n, inputs):
                addresses[self._tensors.index(n)] = 0
        return Key(
            place,
            self._recorder.settings(),
            tuple(inputs[n] for n in self._numbers),
            tuple(map(torch.Tensor.stride, tensors)),
            tuple(addresses),
        )

    def _is_elsewhere(self, inputs: Sequence[Any]) -> bool:
        """Whether an input is nothing that a device reads where it is."""
        for each in (inputs[n] for n in self._tensors):
            where = (each.device, each.layout)
            if where != (self._recorder.device, torch.strided) or each.is_complex():
                self._give_up(f"an input is {each.dtype}, {each.layout}, on {each.device}")
                return True
        return False

    def _is_landing(self, n: int, inputs: Sequence[Any]) -> bool:
        """Whether an input is copied to where a recording reads it."""
        return self._moves.get(n, 0) >= MOVES and _is_small(inputs[n])

    def _free(self, key: Key) -> Recording | None:
        """A recording for `key` whose results nobody holds."""
        for n, (each, recording) in enumerate(self._kept):
            if each != key:
                continue
            held = recording.held()
            if not held:
                self._kept.append(self._kept.pop(n))
                return recording
            # From now on; what is held already was lent.
            if len(held) <= FEW and all(map(recording.is_small, held)):
                self._copied.update(held)
        return None

    def _new(self, key: Key, inputs: list[Any], place: Any) -> Recording | None:
        """A new recording for `key`, if it is time for one."""
        if self._is_elsewhere(inputs):
            return None
        self._kept = [pair for pair in self._kept if not pair[1].place.is_stale]
        if self._have_moved(inputs):
            self._kept.clear()
            self._seen.clear()
            return None
        self._missed += 1
        if self._missed == PATIENCE:
            self._give_up(
                f"for {PATIENCE} calls in a row, tensors were not where they had been, or the"
                " results of earlier calls were all held"
            )
            return None
        seen = self._seen.pop(key, 0)
        if self._follows(key, inputs):
            seen = max(seen, self._latest_seen)
        turns = sum(each == key for each, _ in self._kept)
        self._latest, self._latest_seen = key, seen + 1
        if seen >= SEEN and turns < TURNS and self._tries < TRIES:
            return self._recorded(key, inputs, place)
        while len(self._seen) >= REMEMBERED:
            self._seen.pop(next(iter(self._seen)))
        self._seen[key] = seen + 1
        return None

    def _follows(self, key: Key, inputs: Sequence[Any]) -> bool:
        """It is as the call before, but for inputs that other programs have recorded since."""
        before = self._latest
        if before is None or key == before or key[:-1] != before[:-1]:
            return False
        pairs = zip(self._tensors, key.addresses, before.addresses, strict=True)
        moved = [inputs[n] for n, new, old in pairs if new != old]
        return all(_LENT[each.untyped_storage().data_ptr()] > 0 for each in moved)

    def _have_moved(self, inputs: Sequence[Any]) -> bool:
        """Whether some small input has just turned out not to stay where it is."""
        found = False
        for n in self._tensors:
            if _is_small(inputs[n]):
                address = inputs[n].data_ptr()
                if self._addresses.setdefault(n, address) != address:
                    self._addresses[n] = address
                    self._moves[n] = self._moves.get(n, 0) + 1
                    found = found or self._moves[n] == MOVES
        return found

    def _recorded(self, key: Key, inputs: Sequence[Any], place: Any) -> Recording | None:
        device = self._recorder.device
        if self._bytes + _LENT_BYTES[device] > max(LEAST_ROOM, self._recorder.most_used() // 4):
            self._give_up(
                f"its results, {self._bytes} bytes, would be kept while nobody holds them"
            )
            return None
        self._tries += 1
        # The oldest first: its memory may do for the new one.
        del self._kept[: max(0, len(self._kept) - MOST + 1)]
        landings = {n: Landing(inputs[n]) for n in self._used if self._is_landing(n, inputs)}
        given = [landings[n].tensor if n in landings else x for n, x in enumerate(inputs)]
        try:
            recording = self._record(given, landings, place)
        except RuntimeError as error:
            self._give_up(f"it cannot be recorded: {error}")
            return None
        self._kept.append((key, recording))
        return recording

    def _record(
        self, given: Sequence[Any], landings: Mapping[int, Landing], place: Any
    ) -> Recording:
        graph, outputs = self._recorder.record(lambda on: self._run(list(given), place, on))
        leaves, spec = trees.flatten(outputs)
        results, made = taken_apart(leaves, given, self._recorder.device)
        # Who holds the memory is counted from here on.
        del leaves, outputs
        return Recording(graph, place, landings, results, made, spec)

    def _give_up(self, why: str) -> None:
        self.why = why
        self._kept.clear()
        self._seen.clear()
