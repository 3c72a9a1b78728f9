"""A captured program: a pure graph, what its inputs and outputs are, and how it is called."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from adjoint.graph.calling import CallingConvention
from adjoint.graph.descriptors import Input, Output
from adjoint.graph.metadata import input_descriptors, output_descriptors
from adjoint.graph.show import show
from adjoint.graph.sizes import Guards
from adjoint.torch_private import trees


@dataclass(frozen=True)
class Signature:
    """How the leaves that a program takes and gives are packed in Python containers."""

    in_spec: trees.TreeSpec
    out_spec: trees.TreeSpec
    constants: tuple[tuple[str, Any], ...] = ()
    """Arguments that are no tensors, with their paths: the program holds for these alone."""


@dataclass(frozen=True)
class CapturedProgram:
    """What capture gives to the stages after it."""

    graph_module: fx.GraphModule
    calling: CallingConvention
    bound: tuple[torch.Tensor, ...] = ()
    """Tensors that come before the caller's: the parameters and buffers of a captured module."""
    closed_over: tuple[torch.Tensor, ...] = ()
    """Tensors that come after them: those that the program found outside itself."""
    signature: Signature | None = None
    guards: Guards | None = None
    """Which sizes of `leaves(given)` the program is for."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """What each input of the graph is."""
        return tuple(input_descriptors(self.graph_module.graph))

    @property
    def outputs(self) -> tuple[Output, ...]:
        """What each output of the graph is."""
        return tuple(output_descriptors(self.graph_module.graph))

    def show(self) -> str:
        """The readable program."""
        return show(self.graph_module)

    def closing_over(self, tensors: Sequence[torch.Tensor]) -> CapturedProgram:
        """The same program, given these tensors at each call."""
        return dataclasses.replace(self, closed_over=tuple(tensors))

    def called_with(
        self, bound: Sequence[torch.Tensor], signature: Signature, guards: Guards | None = None
    ) -> CapturedProgram:
        """The same program, called as the Python function that it was captured from."""
        return dataclasses.replace(self, bound=tuple(bound), signature=signature, guards=guards)

    def leaves(self, given: Sequence[Any]) -> list[Any]:
        """All inputs in the order that the calling convention counts them in."""
        return [*self.bound, *given, *self.closed_over]
