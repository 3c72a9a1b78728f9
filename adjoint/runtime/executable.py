"""The interfaces between the runtime and the compiler: executables, derivatives on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from torch import fx

from adjoint.graph.derivative import Backward, Derivative
from adjoint.open_types import TorchValue
from adjoint.options import Options
from adjoint.torch_private.symbols import Sizes

__all__ = ["Checker", "Derivatives", "Executable", "PlacedCotangents", "Sizes"]

# Runs a graph.  Clears the list of inputs, so that each can be freed after its last use.  If it has
# a true attribute `forgets_histories`, inputs that require grad need not be detached.
Executable: TypeAlias = Callable[[list[TorchValue]], Sequence[object]]

# Pairs of the position of an output and its cotangent.
PlacedCotangents: TypeAlias = Sequence[tuple[int, TorchValue]]


class Checker(Protocol):
    """Compares gradients with those of eager autograd."""

    def wants(self, subject: object) -> bool:
        """Whether the next backward pass of `subject` is to be compared."""
        ...

    def gradients(
        self,
        derivative: Derivative,
        wrt: Sequence[int],
        inputs: Sequence[object],
        cotangents: PlacedCotangents,
        found: Sequence[object],
        eager: Callable[[], Sequence[object]],
    ) -> None:
        """Raise an error if the gradients `found` are not those that `eager` returns.

        `wrt`: positions of the inputs that they are gradients of.
        """
        ...


class Derivatives(Protocol):
    """The part of the compiler that the autograd bridge calls when a derivative is needed."""

    @property
    def options(self) -> Options: ...

    @property
    def checker(self) -> Checker | None: ...

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
        """A backward graph that computes only the gradients at the positions `wanted`."""
        ...

    def program(self, graph_module: fx.GraphModule, overwrites: bool = False) -> Executable:
        """The graph, compiled and loaded.

        `overwrites`: the program may store new values of inputs in the inputs.
        """
        ...

    def whole(self, graph_module: fx.GraphModule) -> Executable:
        """A graph that is not differentiated, compiled and loaded."""
        ...

    def composed(self, graph_module: fx.GraphModule) -> fx.GraphModule:
        """The graph with ops that torch can differentiate, for running it op by op."""
        ...
