"""The native programs of one graph: one for all sizes, or one for each kind of sizes.

A program holds for the sizes that its assumptions hold for.  For others the graph is compiled anew,
up to a bound; sizes that there is no program for run op by op.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch import fx

from adjoint.graph.boundary import attempt, location_of_graph, warn_of_failure, warn_of_fallback
from adjoint.graph.evaluation import detach_inputs, evaluate_taking
from adjoint.graph.sizes import Sizes, Sizing
from adjoint.runtime.checking import UnexpectedResult
from adjoint.runtime.plans.binding import BindingFailed
from adjoint.runtime.plans.program import PlanProgram
from adjoint.runtime.seeds import draws_are_captured, new_seeds
from adjoint.runtime.specializations import Full, SizeSpecializations, Specializations, shown
from adjoint.torch_private.dynamo import compiling
from adjoint.torch_private.modes import has_dispatch_mode

# Programs of one graph for sizes of different kinds; after that, it runs op by op.
MAX_SIZE_VERSIONS = 8

# Sets of sizes for which the choice of a program is remembered.
MAX_CHOICES = 4096

# Compiles a graph to native code; None if it is to be run op by op.
Compile: TypeAlias = Callable[[fx.GraphModule], PlanProgram | None]

# For what is done, and the graph it is done to, a context to do it in.
During: TypeAlias = Callable[[str, fx.GraphModule], contextlib.AbstractContextManager[None]]


def _unseen(doing: str, graph_module: fx.GraphModule) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


class SizedPrograms:
    """Runs a graph.  Takes its inputs out of the list that it is given."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        make: Compile,
        during: During = _unseen,
        reported: set[str] | None = None,
    ) -> None:
        """`make` compiles the graph, and `during` is a context to do that in.

        `reported` are the failures that the user has been told of.
        """
        self.graph_module = graph_module
        self._reported = reported
        self._during = during
        self._sizing = Sizing(graph_module)
        self._versions = SizeSpecializations(
            graph_module, make, MAX_SIZE_VERSIONS, "native code", _assumed
        )
        attempt(lambda: self._versions.add(graph_module, None), graph_module, reported=reported)
        first = self._versions.versions[0].value if self._versions.versions else None
        self._is_native = first is not None
        self._general = first if first is not None and not first.plan.assumed else None
        """The program, if it is for all sizes."""
        self._has_failed = False
        """To compile it for other sizes failed, and is not tried again."""
        self._chosen: Specializations[tuple[int, ...], tuple[PlanProgram | None]]
        self._chosen = Specializations(MAX_CHOICES)
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
        """Run op by op from now on."""
        if program.plan.streams:
            inputs.pop()
        assert isinstance(error.__cause__, Exception)
        warn_of_failure(error.__cause__, self.graph_module, reported=self._reported)
        self._general, self._is_native = None, False

    def _program_for(self, inputs: Sequence[Any]) -> PlanProgram | None:
        if not self._is_native:
            return None
        sizes = self._sizing.of(inputs)
        key = tuple(sizes.values())
        chosen = self._chosen.get(key)
        if chosen is None:
            with compiling(), self._during("lowering", self.graph_module):
                version = self._versions.find(sizes)
                chosen = (self._compiled(sizes) if version is None else version.value,)
                self._chosen.add(key, chosen)
        return chosen[0]

    def _compiled(self, sizes: Sizes) -> PlanProgram | None:
        if self._has_failed:
            return None
        attempted = attempt(
            lambda: (self._compiled_anew(sizes),),
            self.graph_module,
            f"runs op by op for sizes {shown(sizes)}, and others that it has no native code for",
            self._reported,
        )
        self._has_failed = attempted is None
        return attempted[0] if attempted else None

    def _compiled_anew(self, sizes: Sizes) -> PlanProgram | None:
        try:
            version = self._versions.make(sizes)
            return None if version is None else version.value
        except Full as full:
            place = location_of_graph(self.graph_module)
            message = f"{place.op} runs op by op for sizes {shown(sizes)}: {full}"
            warn_of_fallback(message, place.source)
            return None


def _assumed(graph_module: fx.GraphModule, program: PlanProgram) -> Sizing:
    """A program assumes what had been assumed when it was compiled, and nothing that came later."""
    return Sizing(graph_module, program.plan.assumed)


def _seeded(program: PlanProgram, inputs: list[Any]) -> bool:
    """Add what the random numbers of the program begin with, if it draws any.

    Not while somebody captures what is launched: replayed, it would draw the same again.
    """
    streams = program.plan.streams
    if streams:
        if draws_are_captured(program.device):
            return False
        inputs.append(new_seeds(streams, program.device))
    return True
