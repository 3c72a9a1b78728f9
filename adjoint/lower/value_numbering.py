"""Value numbering: tensors whose elements are computed by the same formula are computed once.

`merge-common-subexpressions` compares operators and their arguments.  This pass compares what
kernels would compute, with views resolved and operators replaced by their definitions, so that two
ways to write one derivative become one.  It runs last before lowering, because a definition depends
on the target.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import fx
from typing_extensions import assert_never

from adjoint.failing import works_on
from adjoint.graph.metadata import run_of
from adjoint.graph.origins import replace
from adjoint.graph.purity import remove_dead_code
from adjoint.loops.expressions import Expression, Name
from adjoint.loops.show import identity_of
from adjoint.lower.calls import is_returned
from adjoint.lower.definitions import Mapped
from adjoint.lower.index import (
    Axis,
    Gathered,
    Index,
    Quotient,
    Remainder,
    linear,
    of_axis,
    row_major,
)
from adjoint.lower.items import element_of, strides_of
from adjoint.lower.selection import Selection
from adjoint.lower.sizes import Size
from adjoint.lower.views import MultiIndex, dtype_of, shape_of
from adjoint.target import Target


@works_on("node")
def merge_equal_values(graph_module: fx.GraphModule, target: Target) -> fx.GraphModule:
    """Merge nodes that compute the same elements in the same layout.

    Two results of the program stay two tensors.  Nodes that nothing needs are removed.
    """
    graph, selection = graph_module.graph, Selection(target)
    remove_dead_code(graph)
    known: dict[Hashable, fx.Node] = {}
    for node in list(graph.nodes):
        number = _value_number(node, selection)
        if number is None:
            continue
        first = known.setdefault(number, node)
        if first is not node and not is_returned(node):
            replace(node, first)
    remove_dead_code(graph)
    return graph_module


def _value_number(node: fx.Node, selection: Selection) -> Hashable | None:
    """Equal for nodes that compute the same tensor, element by element.

    None for nodes that are never merged: library calls, reductions, scatters, and nodes that check
    indices.
    """
    definition = selection.definition(node) if node.op == "call_function" else None
    if not isinstance(definition, Mapped) or definition.bounds:
        return None
    shape = shape_of(node)
    if 0 in shape:
        return None
    index = tuple(of_axis(Axis(str(dim), size)) for dim, size in enumerate(shape))
    try:
        element = definition.element(index, _Naming())
    except NotImplementedError:
        return None
    # What a checkpoint recomputes is not merged with what was computed first.
    return identity_of(element), shape, strides_of(node), dtype_of(node), run_of(node)


class _Naming:
    """A reader that returns, for each element, a name that says which it is."""

    def read(self, node: fx.Node, index: MultiIndex) -> Expression:
        return element_of(node, index, self, _element_name)

    def size(self, size: Size) -> Expression:
        return Name(str(size), torch.int64)

    def position(self, index: Index) -> Expression:
        return Name(_shown(index), torch.int64)


def _element_name(node: fx.Node, index: MultiIndex) -> Name:
    place = linear(index, row_major(shape_of(node)))
    return Name(f"{node.name}{_shown(place)}", dtype_of(node))


def _shown(index: Index) -> str:
    """A text for an index into a tensor."""
    terms: list[str] = []
    for atom, coefficient in index.terms:
        match atom:
            case Axis(name):
                terms.append(f"{name}*{coefficient}")
            case Quotient(of, by) | Remainder(of, by):
                terms.append(f"{type(atom).__name__}({_shown(of)},{by})*{coefficient}")
            case Gathered(value, _):
                terms.append(f"[{identity_of(value)}]*{coefficient}")
            case _:
                assert_never(atom)
    return f"<{'+'.join(sorted(terms))}+{index.constant}>"
