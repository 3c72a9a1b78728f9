"""Which nodes of a graph a kernel can compute on a target; the others are library calls."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch
from torch import fx

from adjoint.failing import works_on
from adjoint.graph.metadata import value_or_none
from adjoint.loops.verify import DTYPES
from adjoint.lower.definitions import CONSTANTS, Definition, Scattered, definition_of
from adjoint.lower.items import Item, base_of, item_of
from adjoint.lower.products import product_of
from adjoint.lower.views import dtype_of
from adjoint.target import CPU, Target

aten = torch.ops.aten


def is_plain(value: object, device: torch.device = CPU) -> bool:
    """Whether kernels for `device` can read and write this tensor."""
    return (
        isinstance(value, torch.Tensor)
        and value.dtype in DTYPES
        and value.device == device
        and value.layout is torch.strided
    )


class Selection:
    """Chooses between kernels and library calls."""

    def __init__(self, target: Target, called: Collection[str] = frozenset()) -> None:
        """`called`: names of nodes that have to be library calls."""
        self.target = target
        self.called = called

    @works_on("node")
    def item(self, node: fx.Node) -> Item | None:
        """The item that computes a node; None if it is a library call."""
        definition = self.definition(node)
        try:
            item = None if definition is None else item_of(node, definition)
        except NotImplementedError:
            return None
        # Empty tensors are left to eager.
        return None if item is None or 0 in item.domain else item

    def definition(self, node: fx.Node) -> Definition | None:
        """The definition by which a kernel computes a node; None if it is a library call."""
        # Constants read at most the sizes of their arguments.
        read = [] if node.target in CONSTANTS else node.all_input_nodes
        # Symbolic sizes are arguments of kernels.
        read = [each for each in read if not isinstance(value_or_none(each), torch.SymInt)]
        is_computable = is_plain(value_or_none(node), self.target.device)
        if not is_computable or not all(map(self._is_readable, read)):
            return None
        definition = None if node.name in self.called else definition_of(node)
        if self.target.has_product_kernels and node.name not in self.called:
            definition = definition or product_of(node)
        if definition is None or _differs_from_eager(node, definition, self.target):
            return None
        if self.target.checks_indices_in_kernels:
            return replace(definition, bounds=())
        return definition

    def _is_readable(self, node: fx.Node) -> bool:
        value = value_or_none(node)
        # A constant scalar is inlined into kernels, whatever its device.
        is_number = isinstance(value, torch.Tensor) and not value.dim()
        is_number = is_number and base_of(node).target in CONSTANTS
        return is_plain(value, value.device if is_number else self.target.device)


def _differs_from_eager(node: fx.Node, definition: Definition, target: Target) -> bool:
    """Whether a kernel would round differently from eager, or differently in each run."""
    if node.target in _ROUNDED_DIVISIONS and dtype_of(node).itemsize == 2:
        return not target.divides_halves_as_eager
    if not isinstance(definition, Scattered) or target.scatters_in_order:
        return False
    return torch.are_deterministic_algorithms_enabled()


_ROUNDED_DIVISIONS = frozenset(
    getattr(packet, overload)
    for packet in (aten.div, aten.fmod, aten.remainder, aten.floor_divide)
    for overload in packet.overloads()
    if packet is not aten.div or overload.endswith("_mode")
)
