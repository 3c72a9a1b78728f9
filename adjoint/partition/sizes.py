"""Symbolic sizes in backward graphs: read off saved tensors, or saved as numbers themselves.

Which sizes a backward graph needs depends on which cotangents are present, and on which sizes were
assumed equal since the forward graph was made.  So every size of the forward graph stays available:
saving a number costs next to nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Sequence

import sympy
import torch
from torch import fx

from adjoint.graph.descriptors import EarlierResult
from adjoint.graph.metadata import Mode, descriptor_of, operand_of, value_of, value_or_none
from adjoint.partition.extraction import descendants
from adjoint.torch_private import symbols

aten = torch.ops.aten

_QUERIES = frozenset({aten.sym_size.int, aten.sym_stride.int, aten.sym_storage_offset.default})


def is_earlier_result(node: fx.Node) -> bool:
    """Whether this is an input that stands for a result of an earlier segment."""
    return node.op == "placeholder" and isinstance(descriptor_of(node), EarlierResult)


def sizes_beside(saved: Sequence[fx.Node], primals: Sequence[fx.Node]) -> list[fx.Node]:
    """Nodes for the size symbols of `primals` that are not a size of any value in `saved`.

    What a later segment saves does not exist yet when an earlier one does, so only sizes of values
    of the first segment count.  A size stands first where it arises, in the earliest segment.
    """
    earlier = filter(is_earlier_result, primals)
    later = descendants(primals[0].graph, earlier) if primals else set()
    known: set[sympy.Basic] = set(_shown(node for node in saved if node not in later))
    found: list[fx.Node] = []
    for node in primals:
        if is_earlier_result(node):
            continue
        value = value_or_none(node)
        if isinstance(value, torch.Tensor):
            for symbol, query, axis in symbols.size_symbols(value):
                # A stride or offset is saved only if the backward graph itself uses it.
                if query is aten.sym_size.int and symbol not in known:
                    known.add(symbol)
                    found.append(_asked(node, axis, at=node))
        elif isinstance(value, torch.SymInt):
            symbol = symbols.expression(value)
            if isinstance(symbol, sympy.Symbol) and symbol not in known:
                known.add(symbol)
                found.append(node)
    return found


def read_sizes_of(known: Sequence[fx.Node], graph: fx.Graph, available: Container[fx.Node]) -> None:
    """Replace each size of an unavailable value by an equal size of one of the `known` values."""
    shown = _shown(known)
    for node in list(graph.nodes):
        size = value_or_none(node)
        if node in available or not isinstance(size, torch.SymInt) or not _is_read(node, available):
            continue
        place = shown.get(symbols.expression(size))
        if place is not None:
            owner, axis = place
            node.replace_all_uses_with(owner if axis is None else _asked(owner, axis, at=node))


def _is_read(node: fx.Node, available: Container[fx.Node]) -> bool:
    """Whether this size is an input, or is queried from a value that is not available."""
    if node.op == "placeholder":
        return True
    if node.target not in _QUERIES:
        return False
    owner = operand_of(node)
    return owner not in available or is_earlier_result(owner)


def _shown(nodes: Iterable[fx.Node]) -> dict[sympy.Basic, tuple[fx.Node, int | None]]:
    """For each size: a node whose value has it, and the axis (None: the node is the number).

    Not results of an earlier segment: the backward graph of that segment itself has none.
    """
    shown: dict[sympy.Basic, tuple[fx.Node, int | None]] = {}
    for node in itertools.filterfalse(is_earlier_result, nodes):
        value = value_or_none(node)
        axes: list[tuple[int | None, int | torch.SymInt]] = []
        if isinstance(value, torch.Tensor):
            axes += enumerate(value.shape)
        elif isinstance(value, torch.SymInt):
            axes = [(None, value)]
        for axis, size in axes:
            if isinstance(size, torch.SymInt):
                shown.setdefault(symbols.expression(size), (node, axis))
    return shown


def _asked(node: fx.Node, axis: int, at: fx.Node) -> fx.Node:
    """A new `sym_size` node for an axis of `node`, inserted after `at`."""
    with node.graph.inserting_after(at):
        made = node.graph.call_function(aten.sym_size.int, (node, axis))
    made.meta = {"val": value_of(node).shape[axis], "mode": Mode()}
    return made
