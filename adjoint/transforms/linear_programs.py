"""A function at a point, in two programs: its value with what is saved, and its derivative there.

`vjp` and `linearize` return the derivative as a function.  It runs the second program only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import fx

from adjoint.compiler import Compiler
from adjoint.graph.evaluation import evaluate
from adjoint.open_types import TorchValue
from adjoint.torch_private import trees
from adjoint.trace.tracer import Tracer, current_tracer
from adjoint.transforms.compiled import TransformProgram
from adjoint.transforms.kinds import Call
from adjoint.transforms.linear import Linearized

# From cotangents of the results to those of the inputs, or from tangents of the inputs to those of
# the results.
LinearMap: TypeAlias = Callable[[Sequence[object]], list[object]]


class _LinearMap:
    """A derivative at a point.  It runs its own program, or becomes part of one under capture."""

    def __init__(self, compiler: Compiler, graph_module: fx.GraphModule) -> None:
        self._graph_module = graph_module
        self._compiled = compiler.differentiable(graph_module)

    def __call__(self, inputs: Sequence[object]) -> Sequence[TorchValue]:
        tracer = current_tracer()
        if not isinstance(tracer, Tracer):
            return self._compiled(inputs)
        known = [tracer.known(each) for each in inputs]
        return evaluate(self._graph_module, known, captured=True)  # type: ignore[no-any-return]


class _PointPrograms(ABC):
    """The two programs, whichever way the derivative goes."""

    def __init__(
        self,
        compiler: Compiler,
        linearized: Callable[[tuple[object, ...]], Linearized],
        call: Call,
        axes: Callable[[torch.Tensor], Sequence[bool]],
    ) -> None:
        """`linearized`: from primals to `Linearized`."""
        points: list[Linearized] = []
        self.given: list[int] = []
        """The results that are differentiated."""

        def forward(*primals: object) -> object:
            point = linearized(primals)
            self.given = self._differentiated(point)
            points.append(point)
            return point.value, point.saved(self.given)

        self.forward = TransformProgram(compiler, forward, call, axes)
        self.memory = self.forward.memory
        self.is_shared = self.forward.is_shared
        (point,) = points
        graph = self._graph(point)
        self.derivative = None if graph is None else _LinearMap(compiler, graph)
        self.forward.close()

    def is_for(self, call: Call) -> bool:
        """Whether both programs hold for the sizes in the call."""
        return self.forward.is_for(call)

    def _differentiated(self, point: Linearized) -> list[int]:
        return point.differentiable

    @abstractmethod
    def _graph(self, point: Linearized) -> fx.GraphModule | None:
        """The graph of the derivative; None: it is zero."""

    @abstractmethod
    def __call__(self, call: Call) -> tuple[object, LinearMap]:
        """The value at a point, and the derivative there."""


class PullBack(_PointPrograms):
    """The derivative is from cotangents of the leaves of the value to cotangents of the primals."""

    def __init__(
        self,
        compiler: Compiler,
        linearized: Callable[[tuple[object, ...]], Linearized],
        value_of: Callable[[object], object],
        call: Call,
        axes: Callable[[torch.Tensor], Sequence[bool]],
    ) -> None:
        """`value_of`: from what the function returns to what has a cotangent."""
        self._value_of = value_of
        super().__init__(compiler, linearized, call, axes)

    def _differentiated(self, point: Linearized) -> list[int]:
        results = range(len(trees.leaves(self._value_of(point.value))))
        return [place for place in point.differentiable if place in results]

    def _graph(self, point: Linearized) -> fx.GraphModule | None:
        return point.reverse_graph(self.given)

    def __call__(self, call: Call) -> tuple[object, LinearMap]:
        leaves = trees.leaves(call.args)
        value, saved = self.forward(call)

        def pull_back(cotangents: Sequence[object]) -> list[object]:
            found: Sequence[object] = [None] * len(leaves)
            if self.derivative is not None:
                found = self.derivative([*saved, *(cotangents[i] for i in self.given)])
            return [
                torch.zeros_like(leaf) if each is None else each
                for leaf, each in zip(leaves, found, strict=True)
            ]

        return value, pull_back


class PushForward(_PointPrograms):
    """The derivative is from tangents of the primals to tangents of the tensors of the value."""

    present: Sequence[int] = ()
    """The primals whose tangents the derivative depends on."""

    def _graph(self, point: Linearized) -> fx.GraphModule | None:
        found = point.forward_graph(self.given)
        if found is None:
            return None
        graph, self.present = found
        return graph

    def __call__(self, call: Call) -> tuple[object, LinearMap]:
        value, saved = self.forward(call)
        results = [each for each in trees.leaves(value) if isinstance(each, torch.Tensor)]

        def push_forward(tangents: Sequence[object]) -> list[TorchValue]:
            pushed = [torch.zeros_like(each) for each in results]
            if self.derivative is None:
                return pushed
            given = [pushed[place] for place in self.given]
            along = [tangents[place] for place in self.present]
            found = self.derivative([*saved, *given, *along])
            for place, each in zip(self.given, found, strict=True):
                if each is not None:
                    pushed[place] = each
            return pushed

        return value, push_forward
