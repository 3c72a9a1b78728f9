"""The cotangents of the nodes of a graph, summed as they arrive in a reverse sweep."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping

import torch
from torch import fx

from adjoint.differentiate.activity import getitem_path
from adjoint.graph.metadata import Mode, tensor_of, value_of
from adjoint.open_types import TorchValue
from adjoint.torch_private import symbols
from adjoint.torch_private.operators import OpOverload
from adjoint.trace.emission import as_under
from adjoint.trace.tracer import Tracer

_ZEROS = {
    torch.ops.aten.zeros.default,
    torch.ops.aten.zeros_like.default,
    torch.ops.aten.new_zeros.default,
}


class Cotangents:
    """One cotangent for each active tensor that has had one; the others are symbolic zeros."""

    def __init__(self, tracer: Tracer, active: Collection[fx.Node]) -> None:
        self._tracer = tracer
        self._active = active
        self._single: dict[fx.Node, torch.Tensor] = {}
        self._several: dict[fx.Node, dict[tuple[int, ...], torch.Tensor]] = {}
        """Of operators with several results: by the path to the result."""
        self.reached: set[fx.Node] = set()
        """The nodes that have had a cotangent."""

    def add(self, node: fx.Node, cotangent: torch.Tensor | None) -> None:
        """Add to the cotangent of `node`, which computes a tensor."""
        if cotangent is None or node not in self._active or self._is_zero(cotangent):
            return
        self.reached.add(node)
        fitted = _fitted(cotangent, tensor_of(node))
        if node.target is operator.getitem:
            several, path = getitem_path(node)
            results = self._several.setdefault(several, {})
            results[path] = _sum(results.get(path), fitted)
        else:
            self._single[node] = _sum(self._single.get(node), fitted)

    def of(self, node: fx.Node) -> torch.Tensor | None:
        """The cotangent of a node that computes one tensor."""
        return self._single.get(node)

    def take(self, node: fx.Node) -> TorchValue:
        """The cotangent of a node, in the form of its value; None if there is none.

        The sweep is past all users of the node, so that nothing can be added any more.
        """
        if (several := self._several.pop(node, None)) is not None:
            return _arranged(several, value_of(node))
        return self._single.pop(node, None)

    def _is_zero(self, cotangent: torch.Tensor) -> bool:
        """A formula returned a tensor of zeros, or a view of one."""
        node = self._tracer.node(cotangent)
        while isinstance(node.target, OpOverload) and node.target.is_view:
            (node, *_) = node.all_input_nodes
        return node.target in _ZEROS


def _sum(one: torch.Tensor | None, other: torch.Tensor) -> torch.Tensor:
    if one is None:
        return other
    with as_under(Mode()):
        return one + other


def _fitted(cotangent: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """`cotangent` in the shape and dtype of the value it belongs to."""
    with as_under(Mode()):
        if cotangent.is_complex() and not value.is_complex():
            cotangent = torch.real(cotangent)
        if axes := symbols.axes_of_unbacked_size(cotangent.shape, value.shape):
            cotangent = cotangent.sum(axes, keepdim=True)
        # Comparing shapes of different rank would compare their first sizes, and guard on them.
        if cotangent.dim() != value.dim() or cotangent.shape != value.shape:
            cotangent = cotangent.sum_to_size(value.shape)
        if cotangent.dtype != value.dtype:
            cotangent = cotangent.to(value.dtype)
        return cotangent


def _arranged(
    cotangents: Mapping[tuple[int, ...], torch.Tensor], out: object, path: tuple[int, ...] = ()
) -> object:
    """One cotangent, or None, for each tensor in `out`, which may be nested."""
    if not isinstance(out, (tuple, list)):
        return cotangents.get(path)
    return tuple(_arranged(cotangents, each, (*path, i)) for i, each in enumerate(out))
