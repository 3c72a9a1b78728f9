"""Attention written out, as one call of `scaled_dot_product_attention`.

    softmax(q k^T * scale + mask) v  =  scaled_dot_product_attention(q, k, v, mask, scale)

Many spellings are recognized: products by `matmul`, `einsum` or `bmm` over merged heads; a scale
that is a factor or a divisor, a number or a tensor, before or after the product and the mask; a
mask that is added or subtracted, or that fills with -inf or with the lowest number, whatever axes
scores have there; the same mask that then fills weights with zero; one head of keys for several
heads of queries; casts around the softmax, as autocast makes them; dropout of the weights; and the
transpose of all this, as where channels come before positions.  All of them have two products with
a softmax between them, over an axis of both products.  Between the three are only reshapes that
keep the order of elements, copies, casts and what `optimize/scores.py` recognizes.

It runs before differentiation, so the fused backward is used, and at higher orders the composition
of `rules/attention.py`.

* Weights that something else reads, such as the caller, are left alone.
* The fused kernels of a GPU drop weights by random numbers that differ from eager's, so with the
  option `eager_rng` dropout stays written out.  The fused kernels of a CPU know no dropout.
* A mask with a gradient is left alone: the fused kernels have none for it.
* In a fully masked row the fused kernels return zeros, and eager returns NaN or, if the mask fills
  with a finite number, the mean of the values.  What replaces the attention returns what eager
  does.  Its gradients are eager's, too: none reaches a score that a mask fills.
* A finite number that a mask fills with must be so low that its weights are zero: -1e9 or less.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import fx

from adjoint.graph.metadata import arguments_of, inputs_of, operand_of, tensor_of
from adjoint.graph.reachability import reachable
from adjoint.graph.sizes import assuming
from adjoint.optimize.regrouping import broadcast_to_another, groups_of
from adjoint.optimize.scores import (
    COPIES,
    PRODUCTS,
    VIEWS,
    Bias,
    Factor,
    Scores,
    keeps_order,
    scores_of,
    walk_views,
)
from adjoint.rewrite.engine import rewrite
from adjoint.rewrite.patterns import Match, NoMatch, Rest, call
from adjoint.rewrite.recording import operators_of
from adjoint.rewrite.refreshing import RESHAPES
from adjoint.rewrite.rules import Replacement, Rule, Traced
from adjoint.torch_private.operators import schema_arguments
from adjoint.torch_private.symbols import same_number, same_numbers

aten = torch.ops.aten

SOFTMAX = aten._softmax.default
ZEROING = aten.masked_fill.Scalar
DROPOUT = aten.native_dropout.default

FUSED = frozenset(
    {
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
    }
)

# As the last of some views.
_TRANSPOSE = (aten.transpose.int, -2, -1)


@dataclass(frozen=True)
class _Operand:
    """A value of the graph that is query, key or value, or the transpose of it."""

    node: fx.Node
    transposed: bool = False


def _operand(
    node: fx.Node, lead: Sequence[int], length: int, width: int, transposed: bool
) -> _Operand:
    """The earliest value with the axes `lead`, `length`, `width` of which `node` is a reshape.

    `transposed`: `node` has the last two axes in the other order.
    """
    chain = walk_views(node)
    dtype = tensor_of(node).dtype
    then = (_TRANSPOSE,) if transposed else ()
    for shape in ((*lead, length, width), (*tensor_of(node).shape[:-2], length, width)):
        for count in range(len(chain), 0, -1):
            value = tensor_of(chain[count - 1])
            fits = value.dtype == dtype and same_numbers(value.shape, shape)
            if fits and keeps_order(chain[:count], *then):
                return _Operand(chain[count - 1])
    return _Operand(node, transposed)


@dataclass(frozen=True)
class _Attention:
    """One attention, found in a graph."""

    query: _Operand
    key: _Operand
    value: _Operand
    lead: tuple[int, ...]
    """Of the scores, the axes before rows and columns: batch and heads, batch, or none."""
    scores: tuple[int, ...]
    """The shape of the scores: these axes, and then the two of the product."""
    scale: float
    biases: tuple[Bias, ...]
    factors: tuple[Factor, ...]
    shape: tuple[int, ...]
    """Of the result."""
    dense: bool
    """Whether the result is dense, as that of a product is."""
    over_rows: bool
    """Whether the scores are given as their transpose, and so are the biases."""
    transposed: bool
    """Whether the result is the transpose."""
    dropout: float
    """The probability with which a weight is dropped."""
    zeroed: bool
    """Whether weights are zero where the mask fills, in rows where it fills everything, too."""

    @property
    def inputs(self) -> tuple[_Operand, _Operand, _Operand]:
        return (self.query, self.key, self.value)

    @property
    def operands(self) -> list[fx.Node]:
        biases = [each.tensor for each in self.biases]
        factors = [each.tensor for each in self.factors]
        return [*(each.node for each in self.inputs), *biases, *factors]

    def __call__(self, *operands: torch.Tensor) -> torch.Tensor:
        """The fused call, in torch."""
        query, key, value = (
            self._with_heads(given.transpose(-2, -1) if each.transposed else given)
            for each, given in zip(self.inputs, operands[:3], strict=True)
        )
        count = 3 + len(self.biases)
        added, filled = self._masks(operands[3:count], query.dtype)
        for factor, given in zip(self.factors, operands[count:], strict=True):
            # A tensor without axes takes part in type promotion as a number does.
            each = self._broadcast(given, factor.shape) if given.dim() else given
            query = query / each if factor.divides else query * each
        mask = added if filled is None else ~filled
        if added is not None and filled is not None:
            mask = added.masked_fill(filled, -math.inf)
        hidden = None if filled is None else filled.all(-1, keepdim=True)
        nothing = None
        if added is not None:
            assert mask is not None
            nothing = torch.eq(mask, -math.inf).all(-1, keepdim=True)
        fills_infinity = any(map(math.isinf, self._fills()))
        if filled is not None and nothing is not None and not fills_infinity:
            # What the bias does not hide, the mask fills.
            hidden = nothing & filled.any(-1, keepdim=True)
        is_finite = self.zeroed or not fills_infinity
        if hidden is not None and is_finite:
            # What is filled in such a row has equal weights, which depend on neither the query nor
            # the keys.
            query = query.masked_fill(hidden, 0)
            assert mask is not None
            assert filled is not None
            mask = mask | hidden if added is None else mask.masked_fill(hidden & filled, 0)
        out: torch.Tensor = F.scaled_dot_product_attention(
            query, key, value, mask, self.dropout, scale=self.scale
        )
        if nothing is not None:
            nothing = nothing if hidden is None else nothing & ~hidden
            out = out * torch.where(nothing, math.nan, 1.0).to(out.dtype)
        if hidden is not None and self.zeroed:
            out = out.masked_fill(hidden, 0)
        if hidden is not None and not is_finite:
            out = torch.where(hidden, _nan_like_the_values(value, hidden), out)
        if self.transposed:
            out = out.transpose(-2, -1)
        if self.dense:
            out = out.contiguous()
        if not same_numbers(out.shape, self.shape):
            out = out.reshape(self.shape)
        return out

    def _with_heads(self, x: torch.Tensor) -> torch.Tensor:
        """With the axes batch, heads, length and width, the last of them dense."""
        if x.stride(-1) != 1:
            x = x.contiguous()
        if len(self.lead) == 2 and x.dim() == 3:
            parted: torch.Tensor = x.unflatten(0, self.lead)
            return parted
        while x.dim() < 3:
            x = x.unsqueeze(0)
        return x.unsqueeze(1) if x.dim() == 3 else x

    def _masks(
        self, biases: Sequence[torch.Tensor], dtype: torch.dtype
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """What is added to the scores, and where they are filled."""
        added: torch.Tensor | None = None
        filled: torch.Tensor | None = None
        for bias, given in zip(self.biases, biases, strict=True):
            part = self._broadcast(given, bias.shape)
            part = part.transpose(-2, -1) if self.over_rows else part
            if bias.fill is None:
                part = part.to(dtype)
                part = part if bias.scale == 1 else part * bias.scale
                added = part if added is None else added + part
            else:
                part = ~part if bias.inverted else part
                filled = part if filled is None else filled | part
        return added, filled

    def _broadcast(self, mask: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """With the axes batch, heads, rows and columns, any of them of one element.

        `shape`: of the scores where the mask takes part.
        """
        if not same_numbers(shape, self.scores):
            mask = broadcast_to_another(mask, shape, self.scores)
        while mask.dim() < len(self.scores):
            mask = mask.unsqueeze(0)
        if mask.dim() == 3:
            mask = mask.unsqueeze(1)
        while mask.dim() < 4:
            mask = mask.unsqueeze(0)
        return mask

    def _fills(self) -> list[float]:
        return [each.fill for each in self.biases if each.fill is not None]

    def is_one_mask(self) -> bool:
        """Whether the biases act as one: all fill with -inf, or all with one low number that
        nothing is added to."""
        fills = self._fills()
        if not fills or all(map(math.isinf, fills)):
            return True
        first = [bias.fill is not None for bias in self.biases].index(True)
        return all(bias.fill == fills[0] for bias in self.biases[first:])


def _nan_like_the_values(value: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """The result of a row in which every score is -inf, and its softmax NaN; so is the gradient of
    the values."""
    mean: torch.Tensor = value.mean(-2, keepdim=True)
    factor = torch.where(hidden.any(-2, keepdim=True), math.nan, 0.0)
    return mean * factor.to(mean.dtype)


def _walk_weights(node: fx.Node) -> list[fx.Node]:
    """The values that the weights of a product are made of: views, copies, casts, one dropout,
    which is listed after its result, and a mask that fills with zero."""
    chain = walk_views(node)
    drawn = chain[-1].args[0] if chain[-1].target is operator.getitem else None
    if isinstance(drawn, fx.Node) and drawn.target is DROPOUT and chain[-1].args[1] == 0:
        chain += [drawn, *walk_views(operand_of(drawn))]
    if chain[-1].target is ZEROING and chain[-1].args[2] == 0:
        chain += walk_views(operand_of(chain[-1]))
    return chain


def _found(match: Match, dense: bool, drops: bool) -> _Attention | None:
    root = match.root
    product = root
    if root.target in RESHAPES:
        product = match.absorb(root.args[0], *PRODUCTS)
    elif [each.target for each in root.users if each.target in RESHAPES] and len(root.users) == 1:
        return None  # Matched at the reshape, which needs no copy of the result.
    weights, values = arguments_of(product)
    transposed = _walk_weights(weights)[-1].target is not SOFTMAX
    if transposed:  # values weights^T
        weights, values = values, weights
    chain = _walk_weights(weights)
    softmax = chain[-1]
    if softmax.target is not SOFTMAX:
        return None
    rank = tensor_of(softmax).dim()
    if rank < 2:
        return None
    axis = arguments_of(softmax)[1] % rank - rank
    over_rows = axis == -2
    if axis not in (-1, -2):
        return None
    if not keeps_order(chain, *((_TRANSPOSE,) if over_rows != transposed else ())):
        return None
    dropout = 0.0
    zeroing: fx.Node | None = None
    for each in chain:
        if each.target is ZEROING:
            zeroing = match.absorb(each, ZEROING)
        elif each.target is DROPOUT:
            dropout = _probability(match.absorb(each, DROPOUT, drawn_anew=drops))
        else:
            match.absorb(each, *VIEWS, *COPIES, aten._to_copy.default, operator.getitem, SOFTMAX)
    scores = scores_of(match, softmax.args[0])
    shape = _shape_of_scores(scores, tuple(tensor_of(softmax).shape), over_rows)
    one, other = scores.product
    if shape is None or not all(isinstance(each, fx.Node) for each in (one, other, values)):
        return None
    *lead, rows, columns = shape
    if over_rows:
        rows, columns = columns, rows
    given = tensor_of(weights).shape[-2:]
    if not same_numbers((columns, rows) if transposed else (rows, columns), given):
        return None
    if over_rows:
        one, other = other, one
    width = tensor_of(one).shape[-2 if over_rows else -1]
    value_width = tensor_of(values).shape[-2 if transposed else -1]
    found = _Attention(
        _operand(one, lead, rows, width, over_rows),
        _operand(other, lead, columns, width, not over_rows),
        _operand(values, lead, columns, value_width, transposed),
        tuple(lead),
        tuple(shape),
        scores.scale,
        scores.biases,
        scores.factors,
        tuple(tensor_of(match.root).shape),
        dense,
        over_rows,
        transposed,
        dropout,
        zeroing is not None,
    )
    if zeroing is not None and not _is_mask_of(zeroing, scores):
        return None
    return found if _fits(found, len(shape)) else None


def _is_mask_of(zeroing: fx.Node, scores: Scores) -> bool:
    """Whether weights are zeroed by the mask that fills their scores, and by that alone."""
    chain = walk_views(operand_of(zeroing))
    fills = [each for each in scores.biases if each.fill is not None]
    return (
        len(fills) == 1
        and fills[0].tensor is zeroing.args[1]
        and not fills[0].inverted
        and same_numbers(fills[0].shape, tensor_of(zeroing).shape)
        and not any(each.target in VIEWS for each in chain)
    )


def _probability(drawn: fx.Node) -> float:
    """With which a dropout drops."""
    given = schema_arguments(DROPOUT, drawn.args, drawn.kwargs)
    probability: object = given["p"]
    if given["train"] is False or not isinstance(probability, float) or not 0 < probability < 1:
        raise NoMatch
    return probability


def _shape_of_scores(
    scores: Scores, softmax: tuple[int, ...], over_rows: bool
) -> tuple[int, ...] | None:
    """The shape in which scores have an axis for heads, if they have one.

    Reshapes between keep the order of elements.  Rows of several heads may be rows of one, as
    `einsum` makes them, and windows of an image may have an axis for themselves.
    """
    shapes = [each for each in (scores.shape, softmax) if each is not None]
    produced = scores.produced
    if not all(same_number(math.prod(each), math.prod(produced)) for each in shapes):
        return None  # A bias has more axes than the product.
    if not all(same_number(each[-1], produced[-1]) for each in shapes):
        return None
    for shape in shapes:
        if len(shape) <= 4 and same_number(shape[-2], produced[-2]):
            return shape if same_number(shape[-2], softmax[-2]) or not over_rows else None
    return None if over_rows else produced


def _fits(found: _Attention, rank: int) -> bool:
    query, key, value = (tensor_of(each.node) for each in found.inputs)
    if not (query.dtype == key.dtype == value.dtype and query.is_floating_point()):
        return False
    if not found.is_one_mask():
        return False
    if not all(_has_axes(each, rank) and _fits_dtype(each, query) for each in found.factors):
        return False
    shapes = [*(each.shape for each in found.biases), *(each.shape for each in found.factors)]
    if not all(groups_of(each, found.scores) for each in shapes):
        return False
    return all(
        tensor_of(bias.tensor).dim() <= bias.rank
        and (bias.fill is None or tensor_of(bias.tensor).dtype == torch.bool)
        and tensor_of(bias.tensor).device == query.device
        for bias in found.biases
    )


def _has_axes(factor: Factor, rank: int) -> bool:
    return tensor_of(factor.tensor).dim() <= factor.rank <= rank and factor.rank >= rank - 1


def _fits_dtype(factor: Factor, query: torch.Tensor) -> bool:
    value = tensor_of(factor.tensor)
    return value.device == query.device and (not value.dim() or value.dtype == query.dtype)


def _rule(name: str, dense: bool, differentiated: set[str], drops: bool) -> Rule:
    def fuse(match: Match) -> Replacement | None:
        found = _found(match, dense, drops)
        if found is None:
            return None
        tensors = [each.tensor for each in found.biases]
        masks = reachable(tensors, lambda node: node.all_input_nodes)
        # By name: the engine works on a copy of the graph.
        if not differentiated.isdisjoint(each.name for each in masks):
            return None
        called = operators_of(found, [tensor_of(each) for each in found.operands])
        return Traced(found, found.operands) if FUSED & set(called) else None

    return Rule(name, (call((*RESHAPES, *PRODUCTS), Rest("rest")),), fuse, __doc__ or "")


def fuse_attention(
    graph_module: fx.GraphModule, wrt: Sequence[int] = (), drops: bool = True
) -> fx.GraphModule:
    """Replace attention that is written out by one fused call.

    `wrt`: positions of the inputs that are differentiated with respect to.  `drops`: attention with
    dropout may draw other random numbers than eager does.
    """
    graph = graph_module.graph
    if not graph.find_nodes(op="call_function", target=SOFTMAX):
        return graph_module
    inputs = inputs_of(graph)
    names = {inputs[place].name for place in wrt}
    with assuming(graph_module):
        rules = [
            _rule("as-it-is", False, names, drops),
            _rule("as-a-dense-tensor", True, names, drops),
        ]
        return rewrite(graph_module, rules, "fuse-attention")
