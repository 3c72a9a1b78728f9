"""A captured program: a pure graph and its calling convention."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from adjoint.graph.calling import CallingConvention
from adjoint.graph.descriptors import Input, Output
from adjoint.graph.metadata import input_descriptors, output_descriptors
from adjoint.graph.show import show
from adjoint.graph.sizes import Guards
from adjoint.open_types import TorchValue
from adjoint.torch_private import trees


@dataclass(frozen=True)
class Signature:
    """The pytrees that a program takes and returns."""

    in_spec: trees.TreeSpec
    out_spec: trees.TreeSpec
    constants: tuple[tuple[str, object], ...] = ()
    """Arguments that are not tensors, with their paths: the program is specialized to them."""


@dataclass(frozen=True)
class CapturedProgram:
    """The result of capture."""

    graph_module: fx.GraphModule
    calling: CallingConvention
    bound: tuple[torch.Tensor, ...] = ()
    """The parameters and buffers of a captured module: inputs before the caller's."""
    closed_over: tuple[torch.Tensor, ...] = ()
    """Tensors that the program closes over: inputs after the caller's."""
    signature: Signature | None = None
    guards: Guards | None = None
    """The sizes of `leaves(given)` that the program is specialized to."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The descriptors of the graph's inputs."""
        return tuple(input_descriptors(self.graph_module.graph))

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The descriptors of the graph's outputs."""
        return tuple(output_descriptors(self.graph_module.graph))

    def show(self) -> str:
        """The graph as a readable program."""
        return show(self.graph_module)

    def closing_over(self, tensors: Sequence[torch.Tensor]) -> CapturedProgram:
        """The same program, closing over these tensors."""
        return dataclasses.replace(self, closed_over=tuple(tensors))

    def called_with(
        self, bound: Sequence[torch.Tensor], signature: Signature, guards: Guards | None = None
    ) -> CapturedProgram:
        """The same program, with the signature of the Python function it was captured from."""
        return dataclasses.replace(self, bound=tuple(bound), signature=signature, guards=guards)

    def leaves(self, given: Sequence[object]) -> list[TorchValue]:
        """All inputs, in the order in which the calling convention counts them."""
        return [*self.bound, *given, *self.closed_over]
