"""Recordings of a program's calls, done again where tensors lie where they lay before.

To tell a device what to do may take longer than doing it.  In a loop, memory comes back at the same
addresses step after step: a call whose inputs lie where those of a recorded one lay, and for whose
results torch's allocator gives the memory that it gave then, is that recording, launched again.

So a recording keeps nothing that a caller sees, and what it reads and writes belongs to the call at
hand.  Only a few bytes that come from, or go to, a new place each time (a batch, a loss that is
kept) are copied to and from memory of the recording's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import torch

from adjoint.torch_private import trees
from adjoint.torch_private.fake import storage_key

T = TypeVar("T")

# Calls with the same addresses that run as they are, before one is recorded.
SEEN = 2

# Recordings of a program at a time.
MOST = 4

# Recordings of a program in all: after that, to make them takes longer than they save.
TRIES = 16

# Calls in a row that no recording was for, after which none is looked for.
PATIENCE = 64

# Addresses remembered.
REMEMBERED = 16

# Up to so many bytes are copied: that takes less than to launch a kernel.
SMALL = 1 << 20

# What is at another address so many calls in a row will not stay where it is.
MOVES = 6


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

    def new(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """Memory for a result."""
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
    """A result that the program makes, or a view of one."""

    number: int
    window: Window | None


@dataclass(frozen=True)
class Fixed:
    """A result that is no tensor."""

    value: Any


Result: TypeAlias = FromInput | FromMade | Fixed


@dataclass(frozen=True)
class Made:
    """A tensor that the program makes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    slot: int | None
    """By which the program asks for its memory; None: an operator takes that by itself."""

    @property
    def is_small(self) -> bool:
        return _span(self.shape, self.strides) * self.dtype.itemsize <= SMALL


# Called with a slot, and how what it is for is laid out.
New: TypeAlias = Callable[[int, tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]


class Giver:
    """Gives the program memory for its results, and knows later what it gave."""

    def __init__(self, recorder: Recorder, ready: Mapping[int, torch.Tensor] | None = None) -> None:
        self._recorder = recorder
        self._ready = dict(ready or {})
        self.given: dict[Any, tuple[int, torch.Tensor]] = {}
        """Slots and what they were given, by what identifies the memory."""

    def __call__(
        self, slot: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        ready = self._ready.pop(slot, None)
        new = self._recorder.new(shape, strides, dtype) if ready is None else ready
        self.given[storage_key(new)] = (slot, new)
        return new


@dataclass(frozen=True)
class Layout:
    """What a call returns, made of inputs and new tensors."""

    results: tuple[Result, ...]
    made: tuple[Made, ...]
    spec: trees.TreeSpec

    def handed(self, inputs: Sequence[Any], made: Sequence[torch.Tensor]) -> Any:
        leaves = [_handed(result, inputs, made) for result in self.results]
        return trees.unflatten(leaves, self.spec)


def _handed(result: Result, inputs: Sequence[Any], made: Sequence[torch.Tensor]) -> Any:
    match result:
        case Fixed(value):
            return value
        case FromInput(place, window):
            return inputs[place] if window is None else window.on(inputs[place])
        case FromMade(number, window):
            return made[number] if window is None else window.on(made[number])


def laid_out(
    outputs: Any, inputs: Sequence[Any], giver: Giver, device: torch.device
) -> tuple[Layout, list[torch.Tensor]]:
    """How each result is made of inputs and new tensors, and the new tensors."""
    given: dict[Any, list[int]] = {}
    for place, each in enumerate(inputs):
        if isinstance(each, torch.Tensor):
            given.setdefault(storage_key(each), []).append(place)
    leaves, spec = trees.flatten(outputs)
    numbers: dict[Any, int] = {}
    tensors: list[torch.Tensor] = []
    made: list[Made] = []
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
            results.append(FromInput(place, _window(leaf, inputs[place])))
            continue
        slot, root = giver.given.get(memory, (None, _root(leaf)))
        if memory in numbers and not _is_inside(leaf, tensors[numbers[memory]]):
            memory, root, slot = (memory, len(tensors)), leaf, None
        if memory not in numbers:
            if not _is_inside(leaf, root) or _overlaps_itself(root):
                raise Unrecordable("a result lies in memory of which no other result is all")
            numbers[memory] = len(tensors)
            tensors.append(root)
            made.append(Made(tuple(root.shape), root.stride(), root.dtype, slot))
        number = numbers[memory]
        results.append(FromMade(number, _window(leaf, tensors[number])))
    return Layout(tuple(results), tuple(made), spec), tensors


def _window(leaf: torch.Tensor, of: torch.Tensor) -> Window | None:
    return None if leaf is of else Window.between(leaf, of)


def _is_lazy(tensor: torch.Tensor) -> bool:
    return tensor.is_neg() or tensor.is_conj()


def _are_nowhere(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether one of them has elements, and no memory: they are known to be zeros."""
    return any(tensor.numel() and not tensor.data_ptr() for tensor in tensors)


def _root(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor._base is None else tensor._base


def _is_inside(view: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether all elements of `view` are between the first and the last one of `tensor`."""
    if not view.numel():
        return True
    first = int(view.storage_offset()) - int(tensor.storage_offset())
    end = first + _span(view.shape, view.stride())
    return view.dtype != tensor.dtype or (
        first >= 0 and end <= _span(tensor.shape, tensor.stride())
    )


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    return any(n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True))


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
        self._count = _span(like.shape, like.stride())
        self._flat = torch.empty(self._count, dtype=like.dtype, device=like.device)
        self.tensor = self._flat.as_strided(like.shape, like.stride())

    def take(self, tensor: torch.Tensor) -> None:
        # What lies between its elements, too, whatever its strides.
        self._flat.copy_(tensor.as_strided((self._count,), (1,)))


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements there are from the first to the last."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def _is_small(tensor: torch.Tensor) -> bool:
    return _span(tensor.shape, tensor.stride()) * tensor.element_size() <= SMALL


@dataclass(frozen=True)
class Recording:
    """A call, to be done again."""

    graph: Launchable
    place: Place
    landings: Mapping[int, Landing]
    departures: Mapping[int, torch.Tensor]
    """Results that go to a new place each time, where the recording makes them."""

    def replay(self, inputs: Sequence[Any], made: Sequence[torch.Tensor], stream: int) -> None:
        """Fills `made` for `inputs`."""
        for place, landing in self.landings.items():
            landing.take(inputs[place])
        self.graph.launch(stream)
        for number, tensor in self.departures.items():
            made[number].copy_(tensor)


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
    made: tuple[int, ...]
    """Addresses.  0: it is copied, wherever it is."""


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
        self._layouts: dict[Sort, Layout] = {}
        self._kept: list[tuple[Key, Recording]] = []
        """The one used last is last."""
        self._seen: dict[Key, int] = {}
        """How many calls have run as they are since something was recorded for them."""
        self._missed = 0
        """Calls in a row without a recording."""
        self._addresses: dict[int, int] = {}
        self._moves: dict[int, int] = {}
        """For how many calls in a row small inputs, and results (-1 is the first), have moved."""

    def __call__(self, inputs: list[Any], place: Any, stream: int) -> Any:
        if self.why or not self._busy.acquire(blocking=False):
            return self._plainly(inputs, place, stream)
        try:
            sort = None if self._recorder.is_recording() else self._sort(inputs, place)
            if sort is None:
                return self._plainly(inputs, place, stream)
            layout = self._layouts.get(sort)
            if layout is None:
                return self._looked_at(sort, inputs, stream)
            return self._again(sort, layout, inputs, stream)
        finally:
            self._busy.release()

    def _plainly(self, inputs: list[Any], place: Any, stream: int) -> Any:
        return self._run(inputs, place, stream, Giver(self._recorder))

    def _looked_at(self, sort: Sort, inputs: list[Any], stream: int) -> Any:
        """The call, with a look at what it returns."""
        giver, given = Giver(self._recorder), list(inputs)
        outputs = self._run(inputs, sort.place, stream, giver)
        try:
            layout, _ = laid_out(outputs, given, giver, self._recorder.device)
        except Unrecordable as error:
            self._give_up(f"it cannot be recorded: {error}")
            return outputs
        self._drop_stale()
        while len(self._layouts) >= REMEMBERED:
            self._layouts.pop(next(iter(self._layouts)))
        self._layouts[sort] = layout
        return outputs

    def _again(self, sort: Sort, layout: Layout, inputs: list[Any], stream: int) -> Any:
        new = self._recorder.new
        made = [new(each.shape, each.strides, each.dtype) for each in layout.made]
        key = self._key(sort, layout, inputs, made)
        recording = self._find(key) or self._new(key, layout, inputs, made)
        if recording is not None:
            self._missed = 0
            self.replays += 1
            recording.replay(inputs, made, stream)
        else:
            # Results go where a recording would put them, so that what follows finds them there.
            try:
                _Work(self._run, inputs, made, layout, sort.place, self._recorder)(stream)
            except Unrecordable as error:
                self._give_up(f"it cannot be recorded: {error}")
                return self._plainly(inputs, sort.place, stream)
        results = layout.handed(inputs, made)
        inputs.clear()
        return results

    def _sort(self, inputs: Sequence[Any], place: Any) -> Sort | None:
        """What decides how results are laid out; None if nothing can be recorded of the call."""
        if not self._tensors and not self._numbers:
            for n in self._used:
                kind = self._tensors if isinstance(inputs[n], torch.Tensor) else self._numbers
                kind.append(n)
            if self._is_elsewhere(inputs):
                return None
        tensors = [inputs[n] for n in self._tensors]
        if any(map(torch.Tensor.is_neg, tensors)):
            return None
        return Sort(
            place,
            self._recorder.settings(),
            tuple(inputs[n] for n in self._numbers),
            tuple(map(torch.Tensor.stride, tensors)),
        )

    def _key(
        self, sort: Sort, layout: Layout, inputs: Sequence[Any], made: Sequence[torch.Tensor]
    ) -> Key | None:
        """Everything that a recording takes for granted; None if it cannot."""
        tensors = [inputs[n] for n in self._tensors]
        addresses = list(map(torch.Tensor.data_ptr, tensors))
        if 0 in addresses and _are_nowhere(tensors):
            return None
        results = list(map(torch.Tensor.data_ptr, made))
        for n in self._copied(layout, inputs):
            if n < 0:
                results[-1 - n] = 0
            else:
                addresses[self._tensors.index(n)] = 0
        return Key(sort, tuple(addresses), tuple(results))

    def _copied(self, layout: Layout, inputs: Sequence[Any]) -> list[int]:
        """The inputs and results that are copied to where a recording has them, and from there."""
        moving = [n for n, moves in self._moves.items() if moves >= MOVES]
        results = {-1 - n for n, each in enumerate(layout.made) if each.is_small} if moving else ()
        return [n for n in moving if n in results or (n >= 0 and _is_small(inputs[n]))]

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

    def _find(self, key: Key | None) -> Recording | None:
        for n, (each, recording) in enumerate(self._kept):
            if each == key and not recording.place.is_stale:
                self._kept.append(self._kept.pop(n))
                return recording
        return None

    def _new(
        self, key: Key | None, layout: Layout, inputs: list[Any], made: Sequence[torch.Tensor]
    ) -> Recording | None:
        """A new recording for `key`, if it is time for one."""
        if key is None or self._is_elsewhere(inputs):
            return None
        self._drop_stale()
        if self._have_moved(layout, inputs, made):
            self._kept.clear()
            self._seen.clear()
            return None
        self._missed += 1
        if self._missed == PATIENCE:
            self._give_up(f"for {PATIENCE} calls in a row, tensors were not where they had been")
            return None
        seen = self._seen.pop(key, 1)  # The first call of a sort is looked at.
        if seen >= SEEN and self._tries < TRIES:
            return self._recorded(key, layout, inputs, made)
        while len(self._seen) >= REMEMBERED:
            self._seen.pop(next(iter(self._seen)))
        self._seen[key] = seen + 1
        return None

    def _have_moved(
        self, layout: Layout, inputs: Sequence[Any], made: Sequence[torch.Tensor]
    ) -> bool:
        """Whether something small has just turned out not to stay where it is."""
        small = [(n, inputs[n]) for n in self._tensors if _is_small(inputs[n])]
        small += [(-1 - n, made[n]) for n, each in enumerate(layout.made) if each.is_small]
        found = False
        for n, tensor in small:
            address, moves = tensor.data_ptr(), self._moves.get(n, 0)
            if moves < MOVES:
                has_moved = self._addresses.setdefault(n, address) != address
                self._addresses[n] = address
                self._moves[n] = moves + 1 if has_moved else 0
                found = found or self._moves[n] == MOVES
        return found

    def _recorded(
        self, key: Key, layout: Layout, inputs: Sequence[Any], made: Sequence[torch.Tensor]
    ) -> Recording | None:
        self._tries += 1
        # The oldest first: its memory may do for the new one.
        del self._kept[: max(0, len(self._kept) - MOST + 1)]
        copied = self._copied(layout, inputs)
        landings = {n: Landing(inputs[n]) for n in copied if n >= 0}
        departures = {-1 - n: torch.empty_like(made[-1 - n]) for n in copied if n < 0}
        given = [landings[n].tensor if n in landings else x for n, x in enumerate(inputs)]
        goals = [departures.get(n, tensor) for n, tensor in enumerate(made)]
        work = _Work(self._run, given, goals, layout, key.sort.place, self._recorder)
        try:
            graph, _ = self._recorder.record(work)
        except RuntimeError as error:
            self._give_up(f"it cannot be recorded: {error}")
            return None
        recording = Recording(graph, key.sort.place, landings, departures)
        self._kept.append((key, recording))
        return recording

    def _give_up(self, why: str) -> None:
        self.why = why
        self._kept.clear()
        self._seen.clear()
        self._layouts.clear()


@dataclass(frozen=True)
class _Work:
    """A call whose results end in `goals`."""

    run: Run
    inputs: Sequence[Any]
    goals: Sequence[torch.Tensor]
    layout: Layout
    place: Any
    recorder: Recorder

    def __call__(self, stream: int) -> None:
        giver = Giver(self.recorder, _by_slot(self.layout, self.goals))
        outputs = self.run(list(self.inputs), self.place, stream, giver)
        found, tensors = laid_out(outputs, self.inputs, giver, self.recorder.device)
        if found != self.layout:
            raise Unrecordable("its results are not laid out as they were before")
        for made, tensor, goal in zip(found.made, tensors, self.goals, strict=True):
            if made.slot is None:
                goal.copy_(tensor)


def _by_slot(layout: Layout, made: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
    pairs = zip(layout.made, made, strict=True)
    return {each.slot: tensor for each, tensor in pairs if each.slot is not None}
