"""Random generators: a graph draws from them, and cannot set them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from adjoint.errors import CaptureError


class Generators:
    """The generators that a program uses, and the state each had when the program first did."""

    def __init__(self) -> None:
        self._own: dict[torch.Generator, torch.Tensor] = {}

    def note(self, leaf: Any) -> None:
        """`leaf` may be a generator of the user's that the program draws from."""
        if isinstance(leaf, torch.Generator) and leaf not in self._own:
            self._own[leaf] = leaf.get_state()

    @contextlib.contextmanager
    def unset(self) -> Iterator[None]:
        """Refuse a program that sets a generator.  Capturing draws nothing, so that each is as it
        was; one that was set is put back."""
        default = _default_states()
        try:
            yield
        finally:
            changed = [put_back for now, then, put_back in self._compared(default) if now != then]
            for put_back in changed:
                put_back()
        if changed:
            raise CaptureError(
                "the seeding of a random generator",
                "a graph draws random numbers, and has no op that sets where they come from",
                "seed outside the compiled function",
            )

    def _compared(
        self, default: list[tuple[torch.Generator, torch.Tensor]]
    ) -> Iterator[tuple[bytes, bytes, Callable[[], None]]]:
        for generator, state in [*default, *self._own.items()]:
            yield (
                _bytes(generator.get_state()),
                _bytes(state),
                lambda generator=generator, state=state: generator.set_state(state),  # type: ignore[misc]
            )


def _default_states() -> list[tuple[torch.Generator, torch.Tensor]]:
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():
        generators += torch.cuda.default_generators
    return [(generator, generator.get_state()) for generator in generators]


def _bytes(state: torch.Tensor) -> bytes:
    return state.numpy().tobytes()
