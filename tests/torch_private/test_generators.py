from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from adjoint.torch_private.generators import generators_watched, identity

GENERATOR = torch.Generator()


class Seen(Exception):
    pass


class Watcher:
    """Keeps what it is told, and raises where it may."""

    def __init__(self) -> None:
        self.states: list[Tensor] = []
        self.restored: list[Tensor] = []
        self.made: list[torch.Generator] = []

    def read(self, generator: torch.Generator, state: Tensor) -> None:
        self.states.append(state)

    def restore(self, generator: torch.Generator, state: Tensor) -> None:
        self.restored.append(state)

    def seed(self) -> None:
        raise Seen

    def make(self, generator: torch.Generator) -> None:
        self.made.append(generator)


SETTING: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.manual_seed(3),
    "torch, at random": lambda: torch.seed(),
    "cuda": lambda: torch.cuda.manual_seed(3),
    "all of cuda": lambda: torch.cuda.manual_seed_all(3),
    "the default": lambda: torch.default_generator.manual_seed(3),
    "own": lambda: GENERATOR.manual_seed(3),
    "own, at random": lambda: GENERATOR.seed(),
    "own, ahead": lambda: GENERATOR.set_offset(8),
    "a copy": lambda: copy.copy(GENERATOR),
}


@pytest.mark.parametrize("name", SETTING)
def test_setting_a_generator_is_seen_before_it_happens(name: str) -> None:
    states = torch.get_rng_state(), GENERATOR.get_state()
    queued = len(torch.cuda._queued_calls)
    with generators_watched(Watcher()), pytest.raises(Seen):
        SETTING[name]()
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(GENERATOR.get_state(), states[1])
    assert len(torch.cuda._queued_calls) == queued


def test_states_are_read_and_not_set() -> None:
    watcher, before = Watcher(), torch.get_rng_state()
    with generators_watched(watcher):
        state = torch.get_rng_state()
        other = torch.zeros_like(state)
        torch.set_rng_state(other)
        assert GENERATOR.set_state(other) is GENERATOR
    assert [id(each) for each in watcher.states] == [id(state)]
    assert [id(each) for each in watcher.restored] == [id(other)] * 2
    assert torch.equal(torch.get_rng_state(), before)


def test_new_generators_are_seen() -> None:
    watcher = Watcher()
    with generators_watched(watcher):
        made = [torch.Generator(), torch.Generator(device="cpu"), GENERATOR.clone_state()]
        assert isinstance(GENERATOR, torch.Generator)
        assert not isinstance(3, torch.Generator)
        assert issubclass(torch._C.Generator, torch.Generator)
    assert [id(each) for each in watcher.made] == [id(each) for each in made]
    assert all(type(each) is torch._C.Generator for each in made)


def test_the_innermost_watcher_is_told() -> None:
    outer, inner = Watcher(), Watcher()
    with generators_watched(outer):
        with generators_watched(inner):
            torch.Generator()
        torch.Generator()
    assert (len(outer.made), len(inner.made)) == (1, 1)


def test_other_threads_are_left_alone() -> None:
    def seed() -> None:
        GENERATOR.manual_seed(5)
        states.append(GENERATOR.get_state())
        torch.rand(3, generator=GENERATOR)
        GENERATOR.set_state(states[0])

    states: list[Tensor] = []
    watcher = Watcher()
    with generators_watched(watcher):
        thread = threading.Thread(target=seed)
        thread.start()
        thread.join()
    assert (watcher.states, watcher.restored, watcher.made) == ([], [], [])
    assert torch.equal(GENERATOR.get_state(), torch.Generator().manual_seed(5).get_state())


def test_afterwards_all_is_as_it_was() -> None:
    with generators_watched(Watcher()):
        pass
    assert torch.Generator is torch._C.Generator
    assert type(GENERATOR.manual_seed).__name__ == "builtin_function_or_method"
    assert vars(torch.cuda.random)["_lazy_call"] is torch.cuda._lazy_call


def test_the_generators_that_are_used_without_being_named_are_one() -> None:
    assert identity(torch.default_generator) == 0
    assert identity(GENERATOR) not in (0, identity(torch.Generator()))


def test_one_generator_may_be_several_objects() -> None:
    class Draws(TorchDispatchMode):
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            kwargs = kwargs or {}
            seen.append(kwargs["generator"])
            return op(*args, **kwargs)

    seen: list[torch.Generator] = []
    generator = torch.Generator()
    with Draws():  # type: ignore[no-untyped-call]
        torch.rand(3, generator=generator)
    assert identity(seen[0]) == identity(generator)
