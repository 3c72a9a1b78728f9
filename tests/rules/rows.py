"""Rules are checked by rows: a call, the shapes of its arguments, and the numbers they hold.

`agrees` compares value, first and second derivative with eager's, through the bridge; `is_right`
asks torch's gradgradcheck, where eager has no second derivative to compare with.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from adjoint.graph.captured import CapturedProgram
from adjoint.rules.registry import COMPOSITIONS, VJPS
from tests.differentiation import bridged, check

Function = Callable[..., Any]
Shape = tuple[int, ...]


class Domain(enum.Enum):
    """The numbers an argument holds."""

    REAL = "any"
    POSITIVE = "0.5 to 1.5"
    UNIT = "-0.9 to 0.9"
    ABOVE_ONE = "1.1 to 2.1"


@dataclass(frozen=True)
class Row:
    """One call that is checked."""

    name: str
    function: Function
    shapes: Sequence[Shape]
    domain: Domain = Domain.REAL
    complex: bool = False
    """It is checked for complex numbers, too."""

    def __str__(self) -> str:
        return self.name

    def inputs(self, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
        """Arguments that require grad."""
        generator = torch.Generator().manual_seed(17)
        return [_drawn(shape, self.domain, dtype, generator) for shape in self.shapes]


def _drawn(
    shape: Shape, domain: Domain, dtype: torch.dtype, generator: torch.Generator
) -> torch.Tensor:
    if domain is Domain.REAL or dtype.is_complex:
        drawn = torch.randn(shape, dtype=dtype, generator=generator)
        return drawn.requires_grad_()
    drawn = torch.rand(shape, dtype=dtype, generator=generator)
    scale, shift = {
        Domain.POSITIVE: (1.0, 0.5),
        Domain.UNIT: (1.8, -0.9),
        Domain.ABOVE_ONE: (1.0, 1.1),
    }[domain]
    return (drawn * scale + shift).requires_grad_()


def agrees(row: Row) -> None:
    """Eager's value, first and second derivative."""
    check(row.function, row.inputs(), 2)
    if row.complex:
        check(row.function, row.inputs(torch.complex128), 2)


def is_right(function: Function, *inputs: torch.Tensor, first: bool = True) -> None:
    """The compiled derivatives are those of finite differences.

    `first`: so is the first; it is not where eager defines it otherwise.
    """
    compiled = bridged(function, *inputs)
    if first:
        assert torch.autograd.gradcheck(compiled, inputs)
    assert torch.autograd.gradgradcheck(compiled, inputs)


def real(*shape: int, seed: int = 0) -> torch.Tensor:
    """Random numbers that require grad."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()


def targets(captured: CapturedProgram) -> set[Any]:
    """The ops of a captured graph."""
    nodes = captured.graph_module.graph.nodes
    return {node.target for node in nodes if node.op == "call_function"}


def has_rule(row: Row) -> bool:
    """Some op of the row's graph has a rule of ours."""
    captured = bridged(row.function, *row.inputs()).captured
    return any(op in VJPS or op in COMPOSITIONS for op in targets(captured))
