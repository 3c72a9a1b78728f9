"""Random generators: a graph draws from them but cannot seed them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from adjoint.errors import CaptureError, SourceLine
from adjoint.source import user_line
from adjoint.torch_private import trees
from adjoint.torch_private.generators import generators_watched, identity
from adjoint.torch_private.operators import OpOverload


class Generators:
    """Tracks the state of each generator that a program uses while it is captured.

    Capture neither draws from a generator nor sets it.  A program may restore a state that it has
    read before (as `fork_rng` does) if it has drawn nothing since, or if it draws nothing before it
    restores the later state.
    """

    def __init__(self) -> None:
        self._drawn: dict[int, int] = {}
        """By generator: how often the program drew from it."""
        self._place: dict[int, int] = {}
        """By generator: its current state, as the number of draws before it."""
        self._read: dict[int, tuple[torch.Tensor, int]] = {}
        """By the id of a state that the program read: the state, and the number of draws before."""
        self._restored_at: SourceLine | None = None
        """The line that last set a state."""
        self._made: dict[int, torch.Generator] = {}
        self._refused: CaptureError | None = None

    @contextlib.contextmanager
    def unset(self) -> Iterator[None]:
        """Refuse a program that leaves a generator in a state other than the last."""
        with generators_watched(self):
            yield
            for generator in self._drawn:
                self._require_last_state(generator)
        if self._refused is not None:
            # The program caught the exception.
            raise self._refused

    def drawn_from(self, op: OpOverload, arguments: object) -> None:
        """Note that `op` is about to run; it may draw."""
        if torch.Tag.nondeterministic_seeded not in op.tags:
            return
        leaves = trees.leaves(arguments)
        given = [identity(leaf) for leaf in leaves if isinstance(leaf, torch.Generator)]
        generator = given[0] if given else 0
        if generator in self._made:
            self._refuse(
                "a random generator that is made in the program",
                "eager creates a new one in each call, but a graph draws from the captured one",
                "make it outside the compiled function",
                user_line(),
            )
        self._require_last_state(generator)
        self._drawn[generator] = self._place[generator] = self._drawn.get(generator, 0) + 1

    def read(self, generator: torch.Generator, state: torch.Tensor) -> None:
        """Note that the program read the state of `generator`."""
        self._read[id(state)] = (state, self._place.get(identity(generator), 0))

    def restore(self, generator: torch.Generator, state: torch.Tensor) -> None:
        """Note that the program sets the state of `generator`."""
        if id(state) not in self._read:
            self.seed()
        self._place[identity(generator)] = self._read[id(state)][1]
        self._restored_at = user_line()

    def seed(self) -> None:
        """Refuse a program that seeds a generator."""
        self._refuse_setting(user_line())

    def make(self, generator: torch.Generator) -> None:
        """Note that the program created `generator`."""
        self._made[identity(generator)] = generator

    def _require_last_state(self, generator: int) -> None:
        """Refuse to draw from a generator whose state is not the last one."""
        if self._place.get(generator, 0) != self._drawn.get(generator, 0):
            self._refuse_setting(self._restored_at)

    def _refuse_setting(self, source: SourceLine | None) -> None:
        self._refuse(
            "the seeding of a random generator",
            "a graph draws random numbers, and has no op that seeds a generator",
            "seed outside the compiled function",
            source,
        )

    def _refuse(self, construct: str, why: str, remedy: str, source: SourceLine | None) -> None:
        self._refused = CaptureError(construct, why, remedy, source)
        raise self._refused
