"""Products with a weight of 8-bit integers and a scale for each row, without a copy in bfloat16.

    (x @ cast(w)^T) * scale        = _weight_int8pack_mm(x, w, scale)
    x @ (cast(w) * scale[:, 1])^T  = _weight_int8pack_mm(x, w, scale)

Torch's operator reads the integers and rounds once, at the end.  It is used where it is faster: for
bfloat16 on the CPU.  It has no derivative, so this runs on graphs that are about to run.
"""

from __future__ import annotations

import torch
from torch import fx

from adjoint.graph.metadata import arguments_of, computes_tensor, operand_of, tensor_of
from adjoint.open_types import OpArgument
from adjoint.optimize.casts import CAST, is_cast
from adjoint.optimize.views import PERMUTATIONS, permutation_of
from adjoint.rewrite.engine import rewrite
from adjoint.rewrite.patterns import Match, NoMatch, Wildcard, call
from adjoint.rewrite.refreshing import RESHAPES
from adjoint.rewrite.rules import Replacement, rewrites

aten = torch.ops.aten
MM, MUL, VIEW = aten.mm.default, aten.mul.Tensor, aten.view.default
PACKED = aten._weight_int8pack_mm.default
a, b = Wildcard("a"), Wildcard("b")

# The operator reads beyond a weight whose rows and columns are not multiples of its blocks.
ROW_BLOCK, COLUMN_BLOCK = 32, 64


def _integers(match: Match, cast: fx.Node) -> fx.Node:
    """The integers of which `cast` is a copy in bfloat16."""
    match.absorb(cast, CAST)
    source = operand_of(cast)
    value = tensor_of(source)
    is_weight = value.dtype == torch.int8 and value.dim() == 2 and value.is_contiguous()
    if not is_cast(cast) or not is_weight or tensor_of(cast).dtype != torch.bfloat16:
        raise NoMatch
    return source


def _are_numbers(*sizes: object) -> bool:
    return all(isinstance(each, int) for each in sizes)


def _transposed(match: Match, node: fx.Node) -> fx.Node:
    match.absorb(node, *PERMUTATIONS)
    if permutation_of(node) != [1, 0]:
        raise NoMatch
    return operand_of(node)


def _product(match: Match, x: fx.Node, weight: fx.Node, scale: fx.Node) -> Replacement:
    """The product, if the operator takes its operands."""
    rows, columns = tensor_of(weight).shape
    given, factor = tensor_of(x), tensor_of(scale)
    alike = given.dtype == factor.dtype == torch.bfloat16 and given.device.type == "cpu"
    sizes = list(factor.shape)
    if not alike or not given.is_contiguous() or not _are_numbers(rows, columns):
        raise NoMatch
    if rows % ROW_BLOCK or columns % COLUMN_BLOCK:
        raise NoMatch
    # The scale of each row of the weight, whichever of its axes have one element.
    if [size for size in sizes if size != 1] != [rows] or not factor.is_contiguous():
        raise NoMatch
    vector = scale if len(sizes) == 1 else call(VIEW, scale, [rows])
    return call(PACKED, x, weight, vector)


@rewrites(call(MUL, a, b, commutes=True))
def scale_the_product(a: OpArgument, b: OpArgument, match: Match) -> Replacement | None:
    """(x @ cast(w)^T) * scale = _weight_int8pack_mm(x, w, scale)"""
    if not all(isinstance(each, fx.Node) and computes_tensor(each) for each in (a, b)):
        return None
    product = operand_of(match.absorb(a, *RESHAPES)) if a.target in RESHAPES else a
    match.absorb(product, MM)
    x, turned = arguments_of(product)
    weight = _integers(match, _transposed(match, turned))
    sizes = list(tensor_of(b).shape)
    # The scale is that of a column of the product.
    if not sizes or sizes[-1] != tensor_of(product).shape[1]:
        return None
    packed = _product(match, x, weight, b)
    shape = list(tensor_of(match.root).shape)
    return packed if product is a else call(VIEW, packed, shape)


@rewrites(call(MM, a, b))
def scale_the_weight(a: fx.Node, b: fx.Node, match: Match) -> Replacement | None:
    """x @ (cast(w) * scale[:, 1])^T = _weight_int8pack_mm(x, w, scale)"""
    scaled = _transposed(match, b)
    match.absorb(scaled, MUL)
    for cast, scale in (scaled.args, scaled.args[::-1]):
        if not isinstance(scale, fx.Node) or tensor_of(scale).shape[-1:] != (1,):
            continue
        if isinstance(cast, fx.Node) and cast.target is CAST:
            return _product(match, a, _integers(match, cast), scale)
    return None


RULES = (scale_the_product, scale_the_weight)


def multiply_integers(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Multiply by a weight of 8-bit integers without a copy of it in bfloat16."""
    return rewrite(graph_module, RULES, "multiply-integers")
