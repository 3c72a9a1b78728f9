"""Selections in derivatives, so that what they leave out is left out of the transpose, too.

A formula may compute a product everywhere and then select where it counts:

    where(x == 0, 0, cotangent * slope(x))

That is right whatever the slope is at zero.  The transpose takes the steps in the opposite order,
selects from a tangent and multiplies what is left by the slope: 0 * inf.  Here the factors are
selected from as well,

    where(x == 0, 0, cotangent * where(x == 0, 0, slope(x)))

which changes no value, and all factors are finite where they do not count.

It is done within the derivative of one operator.  A selection in the user's own program that leaves
out a factor of another operator is transposed as it is, which is what forward mode does in eager.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from adjoint.failing import works_on
from adjoint.graph.copying import GraphCopy
from adjoint.graph.metadata import GradOf
from adjoint.graph.origins import for_part_of
from adjoint.graph.subgraphs import subgraphs_of
from adjoint.torch_private.fake import fake_call, fake_mode_of

aten = torch.ops.aten

# Of each element they give one element, linear in that of each argument but for its dtype.
_LINEAR = {
    aten.neg.default,
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.mul.Scalar,
    aten.div.Scalar,
    aten._conj.default,
    aten._to_copy.default,
    aten.clone.default,
}
# Products and quotients, and what their arguments may be where they do not count.
_FACTORS = {aten.mul.Tensor: (0, 0), aten.div.Tensor: (0, 1)}
_FILLING = {aten.masked_fill.Scalar, aten.masked_fill.Tensor}


@works_on("node")
def with_finite_factors(
    graph_module: fx.GraphModule, tangents: Sequence[fx.Node] | None = None
) -> fx.GraphModule:
    """A copy of a derivative that is linear in `tangents`, with factors that are zero, and divisors
    that are one, where a selection leaves their products out.

    None: some of the inputs are tangents.
    """
    copying = _Copying(graph_module, None if tangents is None else _depending_on(tangents))
    for node in graph_module.graph.nodes:
        copying.copy(node)
    made = copying.finish()
    for name, body in subgraphs_of(graph_module).items():
        setattr(made, name, with_finite_factors(body))
    return made


def _depending_on(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    work = list(nodes)
    while work:
        node = work.pop()
        if node not in found:
            found.add(node)
            work += node.users
    return found


@dataclass(frozen=True)
class _LeftOut:
    """What a selection in the derivative `of` an operator does not count: where `condition`, or
    else where it does not hold.
    """

    of: GradOf
    condition: fx.Node
    holds: bool


class _Copying(GraphCopy):
    def __init__(self, graph_module: fx.GraphModule, linear: set[fx.Node] | None) -> None:
        """`linear`: the nodes that depend on tangents; None: nobody knows."""
        super().__init__(graph_module)
        self.fake_mode = fake_mode_of(graph_module)
        self.linear = linear

    def copy(self, node: fx.Node) -> None:
        copy = self.add(node)
        of = node.meta.get("grad_of")
        if of is None:
            return
        args: Any = node.args
        with self.graph.inserting_before(copy):
            if node.target is aten.where.self:
                condition, one, other = args
                one = self._finite(one, _LeftOut(of, condition, holds=False))
                other = self._finite(other, _LeftOut(of, condition, holds=True))
                copy.args = (copy.args[0], one, other)
            elif node.target in _FILLING:
                x, condition, _ = args
                x = self._finite(x, _LeftOut(of, condition, holds=True))
                copy.args = (x, *copy.args[1:])

    def _finite(self, value: Any, left_out: _LeftOut) -> Any:
        """A copy of `value` with finite factors where it is `left_out`."""
        if not isinstance(value, fx.Node):
            return value
        may_be_linear = self.linear is None or value in self.linear
        args: list[Any] = list(value.args)
        if value.meta.get("grad_of") != left_out.of or not may_be_linear:
            return self.copies[value]
        if value.target in _LINEAR:
            args = [self._finite(each, left_out) for each in args]
        elif value.target in _FACTORS:
            fills = _FACTORS[value.target]
            args = [self._factor(*each, left_out) for each in zip(args, fills, strict=True)]
        else:
            return self.copies[value]
        return self._call(value, value.target, args, self.copies[value].kwargs)

    def _factor(self, value: Any, fill: int, left_out: _LeftOut) -> Any:
        made = self._finite(value, left_out)
        is_linear = self.linear is not None and value in self.linear
        if is_linear or not _is_tensor(value):
            return made
        where = self.copies[left_out.condition]
        if not left_out.holds:
            where = self._call(value, aten.logical_not.default, [where])
        return self._call(value, aten.masked_fill.Scalar, [made, where, fill])

    def _call(self, like: fx.Node, op: Any, args: Sequence[Any], kwargs: Any = None) -> fx.Node:
        made = self.graph.call_function(op, tuple(args), kwargs)
        values, named = fx.map_arg((made.args, made.kwargs), lambda node: node.meta["val"])
        with self.fake_mode, torch.no_grad():
            made.meta = for_part_of(like, fake_call(op, values, named))
        return made


def _is_tensor(value: Any) -> bool:
    return isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)
