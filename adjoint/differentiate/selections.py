"""Masking factors in derivatives, so that their transposes do not multiply zero by infinity.

A derivative may compute a product everywhere and then select the elements that count:

    where(x == 0, 0, cotangent * slope(x))

That is right even if the slope at zero is infinite.  The transpose applies the steps in the
opposite order: it first selects from the tangent and then multiplies the result, 0, by the slope,
inf.  The pass therefore masks the factors too,

    where(x == 0, 0, cotangent * where(x == 0, 0, slope(x)))

which changes no value of the derivative.

Only selections within the derivative of one operator are treated.  A selection in the user's
program that masks a factor of another operator is transposed as it is, as forward mode does in
eager.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from adjoint.failing import works_on
from adjoint.graph.copying import GraphCopy
from adjoint.graph.metadata import GradOf, arguments_of, callee_of, grad_of, has_value, value_of
from adjoint.graph.origins import for_part_of
from adjoint.graph.reachability import dependents
from adjoint.graph.subgraphs import subgraphs_of
from adjoint.open_types import Callee, OpArgument, OpKeywords
from adjoint.torch_private.fake import fake_call, fake_mode_of

aten = torch.ops.aten

# Elementwise and linear in each argument, up to the dtype.
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
# Products and quotients, with the value that masked elements of each argument get.
_FACTORS = {aten.mul.Tensor: (0, 0), aten.div.Tensor: (0, 1)}
_FILLING = {aten.masked_fill.Scalar, aten.masked_fill.Tensor}


@works_on("node")
def with_finite_factors(
    graph_module: fx.GraphModule, tangents: Sequence[fx.Node] | None = None
) -> fx.GraphModule:
    """A copy of a derivative that is linear in `tangents`, with factors set to zero, and divisors
    to one, where a selection masks their product.

    None: it is not known which inputs are tangents.
    """
    copying = _FiniteFactors(graph_module, None if tangents is None else dependents(tangents))
    for node in graph_module.graph.nodes:
        copying.copy(node)
    made = copying.finish()
    for name, body in subgraphs_of(graph_module).items():
        setattr(made, name, with_finite_factors(body))
    return made


@dataclass(frozen=True)
class _Mask:
    """The elements that a selection in the derivative `of` an operator masks: those for which
    `condition` equals `holds`."""

    of: GradOf
    condition: fx.Node
    holds: bool


class _FiniteFactors(GraphCopy):
    """A copy of a graph with masked factors."""

    def __init__(self, graph_module: fx.GraphModule, linear: set[fx.Node] | None) -> None:
        """`linear`: the nodes that depend on tangents; None: not known."""
        super().__init__(graph_module)
        self.fake_mode = fake_mode_of(graph_module)
        self.linear = linear

    def copy(self, node: fx.Node) -> None:
        copy = self.add(node)
        of = grad_of(node)
        if of is None:
            return
        args = arguments_of(node)
        with self.graph.inserting_before(copy):
            if node.target is aten.where.self:
                condition, one, other = args
                one = self._finite(one, _Mask(of, condition, holds=False))
                other = self._finite(other, _Mask(of, condition, holds=True))
                copy.args = (copy.args[0], one, other)
            elif node.target in _FILLING:
                x, condition, _ = args
                x = self._finite(x, _Mask(of, condition, holds=True))
                copy.args = (x, *copy.args[1:])

    def _finite(self, value: object, mask: _Mask) -> OpArgument:
        """A copy of `value` with finite factors where the selection masks it."""
        if not isinstance(value, fx.Node):
            return value
        may_be_linear = self.linear is None or value in self.linear
        args: list[object] = list(value.args)
        if grad_of(value) != mask.of or not may_be_linear:
            return self.copies[value]
        if value.target in _LINEAR:
            args = [self._finite(each, mask) for each in args]
        elif value.target in _FACTORS:
            fills = _FACTORS[value.target]
            args = [self._factor(*each, mask) for each in zip(args, fills, strict=True)]
        else:
            return self.copies[value]
        return self._call(value, callee_of(value), args, self.copies[value].kwargs)

    def _factor(self, value: OpArgument, fill: int, mask: _Mask) -> object:
        made = self._finite(value, mask)
        is_linear = self.linear is not None and value in self.linear
        if is_linear or not _is_tensor(value):
            return made
        where = self.copies[mask.condition]
        if not mask.holds:
            where = self._call(value, aten.logical_not.default, [where])
        return self._call(value, aten.masked_fill.Scalar, [made, where, fill])

    def _call(
        self,
        like: fx.Node,
        op: Callee,
        args: Sequence[OpArgument],
        kwargs: OpKeywords | None = None,
    ) -> fx.Node:
        made = self.graph.call_function(op, tuple(args), kwargs)
        values, named = fx.map_arg((made.args, made.kwargs), value_of)
        with self.fake_mode, torch.no_grad():
            made.meta = for_part_of(like, fake_call(op, values, named))
        return made


def _is_tensor(value: object) -> bool:
    return (
        isinstance(value, fx.Node)
        and has_value(value)
        and isinstance(value_of(value), torch.Tensor)
    )
