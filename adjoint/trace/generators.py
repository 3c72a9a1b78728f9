"""Random generators: a graph draws from them, and cannot set them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from adjoint.errors import CaptureError
from adjoint.torch_private.modes import without_dispatch_modes, without_torch_function


class Generators:
    """The generators that a program uses, and the state each had when the program first did."""

    def __init__(self) -> None:
        self._own: dict[torch.Generator, torch.Tensor] = {}
        self._default: list[tuple[torch.Generator, torch.Tensor]] = []

    def note(self, leaf: Any) -> None:
        """`leaf` may be a generator of the user's that the program draws from."""
        if isinstance(leaf, torch.Generator) and leaf not in self._own:
            self._own[leaf] = leaf.get_state()

    @contextlib.contextmanager
    def unset(self) -> Iterator[None]:
        """Refuse a program that sets a generator.  Capturing draws nothing, so that each is as it
        was; one that was set is put back."""
        self._default = _default_states()
        try:
            yield
        finally:
            changed = self._changed()
            for generator, state in changed:
                generator.set_state(state)
        _refuse(changed)

    def drawn_from(self) -> None:
        """Numbers are drawn now: a generator may be set only for a while (`fork_rng`)."""
        _refuse(self._changed())

    def _changed(self) -> list[tuple[torch.Generator, torch.Tensor]]:
        """The generators that are not as they were, with the state they had."""
        return [
            (generator, state)
            for generator, state in [*self._default, *self._own.items()]
            if _bytes(generator.get_state()) != _bytes(state)
        ]


def _refuse(changed: Sequence[Any]) -> None:
    if changed:
        raise CaptureError(
            "the seeding of a random generator",
            "a graph draws random numbers, and has no op that sets where they come from",
            "seed outside the compiled function",
        )


def _default_states() -> list[tuple[torch.Generator, torch.Tensor]]:
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():
        generators += torch.cuda.default_generators
    return [(generator, generator.get_state()) for generator in generators]


def _bytes(state: torch.Tensor) -> bytes:
    with without_torch_function(), without_dispatch_modes():
        return state.numpy().tobytes()
