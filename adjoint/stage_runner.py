"""Running a stage or a pass: it is timed, verified and shown to the observer.

Stages neither print nor time themselves: this is done here for all of them, so that the command
line, progress, reports and tests show the same.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from torch import fx

from adjoint.errors import RewriteError
from adjoint.failing import call_user_code
from adjoint.garbage import full_collections_wait
from adjoint.graph.boundary import location_of_graph
from adjoint.graph.interface import Interface, interface_of
from adjoint.graph.metadata import source_of
from adjoint.graph.show import show_call
from adjoint.graph.verify import GraphError, verify, verify_made
from adjoint.observing import Observer, Sighting, count_with, tell, unobserved
from adjoint.options import Options
from adjoint.passes import Pass
from adjoint.progress import PROGRESS
from adjoint.rewrite.engine import MATCHES
from adjoint.rewrite.refreshing import wrong_value
from adjoint.torch_private.counters import counted

Value = TypeVar("Value")

# Compilations and fallbacks are counted where Dynamo counts its own.
count_with(counted)


@dataclass(frozen=True)
class StageRunner:
    """Runs the stages of one compilation."""

    options: Options = field(default_factory=Options)
    observer: Observer = unobserved
    function: str = ""
    """The name of what is compiled, for those who watch."""
    _nested_seconds: list[float] = field(
        default_factory=list, init=False, compare=False, repr=False
    )
    """For each running stage, the seconds spent in stages nested in it."""

    def passes(
        self, passes: Sequence[Pass], graph_module: fx.GraphModule, order: int
    ) -> fx.GraphModule:
        """The graph after these passes, each a stage of its own, except those that are skipped."""
        for each in passes:
            if each.name in self.options.skip_passes:
                continue
            nodes = len(graph_module.graph.nodes)
            if hasattr(self.observer, "given"):
                call_user_code(self.observer.given, each.name, order, graph_module)
            run = partial(call_user_code, each.run, graph_module)
            if each in self.options.passes:
                run = partial(_checked, each, interface_of(graph_module), run)
            graph_module = self.stage(each.name, order, run, nodes)
        return graph_module

    def stage(
        self, name: str, order: int, make: Callable[[], Value], nodes: int | None = None
    ) -> Value:
        """The result of a stage, timed, verified and shown to the observer.

        `nodes`: of a pass, the number of nodes of the graph that it was given.
        """
        self._nested_seconds.append(0.0)
        begun = time.perf_counter()
        try:
            with full_collections_wait():
                made = make()
        finally:
            seconds = time.perf_counter() - begun
            own = seconds - self._nested_seconds.pop()
            if self._nested_seconds:
                self._nested_seconds[-1] += seconds
        if nodes is None or not isinstance(made, fx.GraphModule):
            self._seen(Sighting(name, order, made, own))
        else:
            matches = made.meta.pop(MATCHES, {})
            after = len(made.graph.nodes)
            self._seen(Sighting(name, order, made, own, (nodes, after), matches))
        if self.options.verify:
            verify_made(name, made)
        return made

    def _seen(self, sighting: Sighting) -> None:
        sighting = replace(sighting, function=self.function)
        call_user_code(self.observer, sighting)
        tell(sighting)
        if self.options.progress:
            PROGRESS(sighting)

    @contextlib.contextmanager
    def during(self, doing: str, graph_module: fx.GraphModule) -> Iterator[None]:
        """The context around work on a graph: progress is reported, garbage is left for later."""
        with full_collections_wait():
            if self.options.progress:
                with PROGRESS.during(doing, lambda: location_of_graph(graph_module).source):
                    yield
            else:
                yield


def _checked(each: Pass, before: Interface, run: Callable[[], object]) -> fx.GraphModule:
    """What a user's pass makes; an error if that breaks an invariant of graphs.

    `before`: the inputs and outputs of the graph that it is given.
    """
    try:
        made = run()
    except RewriteError:
        raise
    except Exception as error:
        why = f"it raised {type(error).__name__}: {error}"
        raise RewriteError(None, each.name, None, why) from error
    if not isinstance(made, fx.GraphModule):
        returned = type(made).__name__
        raise RewriteError(None, each.name, None, f"it returned {returned}, not a graph module")
    try:
        verify(made)
    except GraphError as error:
        raise RewriteError(None, each.name, None, f"it broke the graph: {error}") from error
    wrong = wrong_value(made)
    if wrong is not None:
        node, why = wrong
        shown = f"{node.name} = {show_call(node)}"
        raise RewriteError(None, each.name, shown, f"the node {why}", source_of(node))
    difference = before.difference(interface_of(made))
    if difference is not None:
        raise RewriteError(None, each.name, None, difference, location_of_graph(made).source)
    return made
