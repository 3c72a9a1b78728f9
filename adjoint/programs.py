"""The native programs of one graph: one for all sizes, or one for each kind of sizes.

A program holds for the sizes of which all is true that was assumed when it was made.  For others it
is made anew, up to a bound; what there is no program for runs op by op.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from torch import fx

from adjoint.graph.boundary import attempt, location_of_graph, warn_of_failure, warn_of_fallback
from adjoint.graph.evaluation import detach_inputs, evaluate
from adjoint.graph.sizes import NotResizable, Renaming, Sizes, Sizing, renamed, resized
from adjoint.native import DEFAULTS, native_program
from adjoint.observing import Observer, unobserved
from adjoint.options import Options
from adjoint.runtime.checking import UnexpectedResult
from adjoint.runtime.plans.binding import BindingFailed
from adjoint.runtime.plans.program import PlanProgram
from adjoint.runtime.seeds import draws_are_captured, new_seeds
from adjoint.torch_private import symbols
from adjoint.torch_private.dynamo import compiling
from adjoint.torch_private.modes import has_dispatch_mode

# Programs of one graph for sizes of different kinds; after that, it runs op by op.
KINDS = 8

# Sizes of which it is remembered which program is for them.
REMEMBERED = 4096


# Of what is done, and of the graph that it is done to, a context to do it in.
During: TypeAlias = Callable[[str, fx.GraphModule], contextlib.AbstractContextManager[None]]


def _unseen(doing: str, graph_module: fx.GraphModule) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


class Programs:
    """Runs a graph.  Takes its inputs out of the list that it is given."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        options: Options = DEFAULTS,
        saw: Observer = unobserved,
        during: During = _unseen,
        told: set[str] | None = None,
    ) -> None:
        """`saw` observes what is made, and `during` when; `told`: failures the user knows of."""
        self.graph_module = graph_module
        self._options = (options, saw, told)
        self._told = told
        self._during = during
        self._sizing = Sizing(graph_module)
        first = attempt(
            lambda: native_program(graph_module, *self._options), graph_module, reported=told
        )
        self._general = first if first is not None and not first.plan.assumed else None
        """The program, if it is for all sizes."""
        self._kinds: list[tuple[PlanProgram, Renaming | None]] = []
        if first is not None:
            self._kinds.append((first, None))
        self._has_failed = False
        """It is not tried again for other sizes."""
        self._chosen: dict[tuple[int, ...], PlanProgram | None] = {}
        self.forgets_histories = self._general is not None and self._general.forgets_histories

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        if not has_dispatch_mode():
            program = self._general or self._program_for(inputs)
            if program is not None and _seeded(program, inputs):
                try:
                    return program(inputs)  # type: ignore[no-any-return]
                except BindingFailed as error:
                    self._give_up(program, inputs, error)
                except UnexpectedResult:
                    if program.plan.streams:
                        inputs.pop()
                    raise
        if self.forgets_histories:
            detach_inputs(inputs)
        return evaluate_taking(self.graph_module, inputs)

    def _give_up(self, program: PlanProgram, inputs: list[Any], error: BindingFailed) -> None:
        """It runs op by op from now on."""
        if program.plan.streams:
            inputs.pop()
        assert isinstance(error.__cause__, Exception)
        warn_of_failure(error.__cause__, self.graph_module, reported=self._told)
        self._general, self._kinds = None, []
        self._chosen.clear()

    def _program_for(self, inputs: Sequence[Any]) -> PlanProgram | None:
        if not self._kinds:
            return None
        sizes = self._sizing.of(inputs)
        key = tuple(sizes.values())
        if key not in self._chosen:
            with compiling(), self._during("lowering", self.graph_module):
                if len(self._chosen) >= REMEMBERED:
                    self._chosen.clear()
                self._chosen[key] = self._find(sizes) or self._attempted(sizes)
                return self._chosen[key]
        return self._chosen[key]

    def _find(self, sizes: Sizes) -> PlanProgram | None:
        for program, names in self._kinds:
            if symbols.first_violated(program.plan.assumed, renamed(sizes, names)) is None:
                return program
        return None

    def _attempted(self, sizes: Sizes) -> PlanProgram | None:
        if self._has_failed:
            return None
        made = attempt(
            lambda: [self._made_anew(sizes)],
            self.graph_module,
            f"runs op by op for sizes {_shown(sizes)}, and others that it has no native code for",
            self._told,
        )
        self._has_failed = made is None
        return made[0] if made else None

    def _made_anew(self, sizes: Sizes) -> PlanProgram | None:
        why = f"native code was made {KINDS} times for sizes of different kinds"
        if len(self._kinds) < KINDS:
            try:
                graph_module, names = resized(self.graph_module, sizes)
            except NotResizable as error:
                first, _ = self._kinds[0]
                wrong = symbols.first_violated(first.plan.assumed, sizes)
                why = f"its native code assumes {wrong}, and {error}"
            else:
                program = native_program(graph_module, *self._options)
                if program is not None:
                    self._kinds.append((program, names))
                return program
        place = location_of_graph(self.graph_module)
        warn_of_fallback(f"{place.op} runs op by op for sizes {_shown(sizes)}: {why}", place.source)
        return None


def _shown(sizes: Sizes) -> str:
    return ", ".join(f"{symbol}={size}" for symbol, size in sizes.items())


def _seeded(program: PlanProgram, inputs: list[Any]) -> bool:
    """Add what the random numbers of the program begin with, if it draws any.

    Not if somebody writes down what is launched: repeated, it would draw the same again.
    """
    streams = program.plan.streams
    if streams:
        if draws_are_captured(program.device):
            return False
        inputs.append(new_seeds(streams, program.device))
    return True


def evaluate_taking(graph_module: fx.GraphModule, inputs: list[Any]) -> Sequence[Any]:
    """The graph, op by op.  Takes inputs out of the list, to release each after its last use."""
    return evaluate(graph_module, _taken(inputs))  # type: ignore[arg-type, no-any-return]


def _taken(inputs: list[Any]) -> Iterator[Any]:
    inputs.reverse()
    while inputs:
        yield inputs.pop()
