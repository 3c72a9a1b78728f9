"""The native programs of one graph: one for all sizes, or one for each set of assumptions.

For sizes that violate the assumptions of all programs the graph is compiled again, up to a bound;
after that it runs op by op for such sizes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TypeAlias

from torch import fx

from adjoint.graph.boundary import attempt, location_of_graph, warn_of_failure, warn_of_fallback
from adjoint.graph.evaluation import detach_inputs, evaluate_taking
from adjoint.graph.purity import is_impure_graph
from adjoint.graph.sizes import Sizes, Sizing
from adjoint.open_types import TorchValue
from adjoint.runtime.checking import UnexpectedResult, check_dtypes
from adjoint.runtime.plans.binding import BindingFailed
from adjoint.runtime.plans.program import PlanProgram
from adjoint.runtime.seeds import draws_are_captured, new_seeds
from adjoint.runtime.specializations import (
    MAX_SIZE_VERSIONS,
    Full,
    SizeSpecializations,
    Specializations,
    shown,
)
from adjoint.torch_private.dynamo import compiling
from adjoint.torch_private.modes import count_dispatch_modes

# Sets of sizes for which it is remembered that they run op by op.
MAX_REFUSED_SIZES = 1024

# Compiles a graph to native code; returns None if it should run op by op.
Compile: TypeAlias = Callable[[fx.GraphModule], PlanProgram | None]

# Given a verb and a graph ("lowering", graph): the context manager around that work.
During: TypeAlias = Callable[[str, fx.GraphModule], contextlib.AbstractContextManager[None]]


def _unseen(doing: str, graph_module: fx.GraphModule) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


class SizedPrograms:
    """Runs a graph.  Clears the list of inputs that it is given."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        make: Compile,
        during: During = _unseen,
        reported: set[str] | None = None,
    ) -> None:
        """`make` compiles the graph, inside the context that `during` returns.

        `reported`: failures that the user has been warned of.
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
        self.is_native = first is not None
        self._general = first if first is not None and not first.plan.assumed else None
        """The program that has no assumptions, if there is one."""
        self._has_failed = False
        """Whether compiling for other sizes failed; it is not tried again."""
        # What draws random numbers or has effects cannot be run again.
        self._is_checked = is_impure_graph(graph_module.graph)
        self._refused: Specializations[tuple[int, ...], bool] = Specializations(MAX_REFUSED_SIZES)
        """Sizes that there is no native program for, or that it cannot be bound to."""
        self.forgets_histories = self._general is not None and self._general.forgets_histories

    def __call__(self, inputs: list[TorchValue]) -> Sequence[TorchValue]:
        if not count_dispatch_modes():
            program = self._general or self._program_for(inputs)
            if program is not None and (not program.plan.streams or _seeded(program, inputs)):
                try:
                    results: Sequence[object] = program(inputs)
                    return results
                except BindingFailed as error:
                    self._give_up(program, inputs, error)
                except UnexpectedResult:
                    if program.plan.streams:
                        inputs.pop()
                    raise
        if self.forgets_histories:
            detach_inputs(inputs)
        if self._is_checked:
            return evaluate_taking(self.graph_module, inputs)
        return self._evaluate_checked(inputs)

    def _evaluate_checked(self, inputs: list[object]) -> Sequence[object]:
        """Run op by op for the first time, and check the dtypes of what ops return."""
        kept = list(inputs)
        try:
            results = evaluate_taking(self.graph_module, inputs, check_dtypes)
        except UnexpectedResult:
            inputs[:] = kept
            raise
        self._is_checked = True
        return results

    def _give_up(self, program: PlanProgram, inputs: list[object], error: BindingFailed) -> None:
        """Run op by op for these sizes from now on."""
        if program.plan.streams:
            inputs.pop()
        assert isinstance(error.__cause__, Exception)
        sizes = self._sizing.of(inputs)
        otherwise = f"runs op by op for sizes {shown(sizes)}" if sizes else "runs op by op"
        warn_of_failure(error.__cause__, self.graph_module, otherwise, self._reported)
        self._refused.add(tuple(sizes.values()), True)
        self._general = None  # It is looked for in every call, after the sizes that are refused.

    def _program_for(self, inputs: Sequence[object]) -> PlanProgram | None:
        if not self.is_native:
            return None
        sizes = self._sizing.of(inputs)
        key = tuple(sizes.values())
        if key in self._refused:
            return None
        version = self._versions.find(sizes)
        if version is not None:
            return version.value
        with compiling(), self._during("lowering", self.graph_module):
            version = self._versions.find(sizes)
            program = self._compiled(sizes) if version is None else version.value
            if program is None:
                self._refused.add(key, True)
            return program

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
    """The assumptions made until the program was compiled; later ones do not concern it."""
    return Sizing(graph_module, program.plan.assumed)


def _seeded(program: PlanProgram, inputs: list[object]) -> bool:
    """Append the seeds to `inputs` of a program that draws random numbers.

    False while the caller captures a CUDA graph: each replay would draw the same numbers.
    """
    if draws_are_captured(program.device):
        return False
    inputs.append(new_seeds(program.plan.streams, program.device))
    return True
