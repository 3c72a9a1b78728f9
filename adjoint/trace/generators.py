"""Random generators: a graph draws from them, and cannot set them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from adjoint.errors import CaptureError, SourceLine
from adjoint.source import user_line
from adjoint.torch_private import trees
from adjoint.torch_private.generators import generators_watched, identity
from adjoint.torch_private.operators import OpOverload


class Generators:
    """Where in its sequence of numbers a program has brought each generator that it uses.

    Capturing draws nothing and sets nothing, so that generators are as they were, whatever other
    threads do.  A program may go back to a state that it has read before (`fork_rng` does), if it
    has drawn nothing since, or draws nothing before it returns to where it was.
    """

    def __init__(self) -> None:
        self._drawn: dict[int, int] = {}
        """By identity: how often the program drew from a generator."""
        self._place: dict[int, int] = {}
        """How many of these draws the state is past."""
        self._read: dict[int, tuple[torch.Tensor, int]] = {}
        """By `id`: a state, and how many draws it is past."""
        self._went_at: SourceLine | None = None
        """Where the program last set a state."""
        self._made: dict[int, torch.Generator] = {}
        self._refused: CaptureError | None = None

    @contextlib.contextmanager
    def unset(self) -> Iterator[None]:
        """Refuse a program that sets a generator."""
        with generators_watched(self):
            yield
            for generator in self._drawn:
                self._require_the_end(generator)
        if self._refused is not None:
            # The program has caught it.
            raise self._refused

    def drawn_from(self, op: OpOverload, arguments: Any) -> None:
        """`op` is about to run, which may draw numbers."""
        if torch.Tag.nondeterministic_seeded not in op.tags:
            return
        leaves = trees.leaves(arguments)
        given = [identity(leaf) for leaf in leaves if isinstance(leaf, torch.Generator)]
        generator = given[0] if given else 0
        if generator in self._made:
            self._refuse(
                "a random generator that is made in the program",
                "eager makes it anew in each call, and a graph draws from the one it has",
                "make it outside the compiled function",
                user_line(),
            )
        self._require_the_end(generator)
        self._drawn[generator] = self._place[generator] = self._drawn.get(generator, 0) + 1

    def read(self, generator: torch.Generator, state: torch.Tensor) -> None:
        """The program was given the state of `generator`."""
        self._read[id(state)] = (state, self._place.get(identity(generator), 0))

    def restore(self, generator: torch.Generator, state: torch.Tensor) -> None:
        """The program sets the state of `generator`."""
        if id(state) not in self._read:
            self.seed()
        self._place[identity(generator)] = self._read[id(state)][1]
        self._went_at = user_line()

    def seed(self) -> None:
        """The program sets a generator."""
        self._refuse_setting(user_line())

    def make(self, generator: torch.Generator) -> None:
        """The program has made `generator`."""
        self._made[identity(generator)] = generator

    def _require_the_end(self, generator: int) -> None:
        """What is drawn next are numbers that have not been drawn before."""
        if self._place.get(generator, 0) != self._drawn.get(generator, 0):
            self._refuse_setting(self._went_at)

    def _refuse_setting(self, source: SourceLine | None) -> None:
        self._refuse(
            "the seeding of a random generator",
            "a graph draws random numbers, and has no op that sets where they come from",
            "seed outside the compiled function",
            source,
        )

    def _refuse(self, construct: str, why: str, remedy: str, source: SourceLine | None) -> None:
        self._refused = CaptureError(construct, why, remedy, source)
        raise self._refused
