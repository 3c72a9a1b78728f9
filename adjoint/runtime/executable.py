"""What the runtime runs, and what the autograd bridge asks of the compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from torch import fx

from adjoint.graph.derivative import Backward, Derivative
from adjoint.options import Options

# Runs a graph.  Takes its inputs out of the list, so that each can be freed after its last use.
# One that has an attribute `forgets_histories` can be given `InputsWithHistory`.
Executable: TypeAlias = Callable[[list[Any]], Sequence[Any]]


class Derivatives(Protocol):
    """What the bridge asks of the compiler, when autograd first needs it."""

    @property
    def options(self) -> Options: ...

    def derivative(
        self, graph_module: fx.GraphModule, wrt: Sequence[int], segmented: bool = False
    ) -> Derivative | None:
        """The graph with saved values and its first backward graph; None if nothing requires grad.

        `segmented`: results can be differentiated with respect to each other.
        """
        ...

    def backward(self, derivative: Derivative, of: Sequence[int], wrt: Sequence[int]) -> Backward:
        """The backward graph for cotangents of the outputs at the positions `of`."""
        ...

    def narrowed(self, backward: Backward, wanted: frozenset[int]) -> Backward:
        """The same without the gradients at other places than `wanted`."""
        ...

    def program(self, graph_module: fx.GraphModule) -> Executable:
        """The graph, ready to run."""
        ...

    def composed(self, graph_module: fx.GraphModule) -> fx.GraphModule:
        """The graph, to be run op by op where torch differentiates the ops."""
        ...
