"""Attention written out, as one call of `scaled_dot_product_attention`.

    softmax(q k^T * scale + mask) v  =  scaled_dot_product_attention(q, k, v, mask, scale)

However it is written: products by `matmul`, `einsum` or `bmm` over merged heads; the scale a factor
or a divisor, before or after the product; a mask that is added, or that fills with -inf or with the
lowest number; one head of keys for several of queries; casts around the softmax, as autocast makes
them.  What all have in common is two products with a softmax over the last axis between them, and
between these only reshapes that keep the order of elements, copies, casts and the scale and mask.

It runs before differentiation, so the fused backward is used, and at higher orders the composition
of `rules/attention.py`.

* Weights that something else reads, such as a dropout or the caller, are left alone.
* A mask with a gradient is left alone: the fused kernels have none for it.
* Where a mask leaves nothing of a row, the fused kernels return zeros.  Eager returns NaN, or the
  mean of the values if the mask fills with a finite number, and so do we: gradients included, which
  do not reach the scores where a mask fills them.
* A finite number that a mask fills with must be so low that its weights are zero: -1e9 or less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import fx

from adjoint.graph.metadata import (
    arguments_of,
    callee_of,
    computes_tensor,
    inputs_of,
    operand_of,
    tensor_of,
    value_of,
)
from adjoint.graph.reachability import reachable
from adjoint.graph.sizes import assuming
from adjoint.open_types import OpArgument, OpArguments
from adjoint.optimize.casts import is_cast
from adjoint.optimize.uniform import uniform_value
from adjoint.rewrite.engine import rewrite
from adjoint.rewrite.patterns import Match, NoMatch, Rest, arguments, call
from adjoint.rewrite.rules import Replacement, Rule, Traced
from adjoint.rewrite.tracing import operators_of
from adjoint.torch_private.symbols import same_number, same_numbers

aten = torch.ops.aten

PRODUCTS = (aten.bmm.default, aten.mm.default)
RESHAPES = (aten.view.default, aten._unsafe_view.default)
VIEWS = frozenset(
    {
        *RESHAPES,
        aten.expand.default,
        aten.permute.default,
        aten.transpose.int,
        aten.t.default,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
    }
)
COPIES = frozenset({aten.clone.default, aten.alias.default})
SOFTMAX = aten._softmax.default

FUSED = frozenset(
    {
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
    }
)

# A number that a mask fills with has no weight if it is at most this.
LOWEST_SCORE = -1e9


@dataclass(frozen=True)
class _Bias:
    """What is added to the scores, or what replaces them where a mask holds."""

    tensor: fx.Node
    fill: float | None = None
    """None: the tensor is added.  Else it is a mask, and scores are this number where it holds."""
    inverted: bool = False
    """The number is where the mask does not hold."""
    rank: int = 0
    """The number of axes of the scores where it is added."""


@dataclass(frozen=True)
class _Scores:
    """softmax(scale * product + biases)"""

    product: tuple[OpArgument, OpArgument]
    """The two operands of the product."""
    scale: float = 1.0
    biases: tuple[_Bias, ...] = ()
    shape: tuple[int, ...] | None = None
    """The shape of the scores where a bias is added, with most axes."""

    def with_bias(self, node: fx.Node, bias: _Bias) -> _Scores:
        shape = tuple(tensor_of(node).shape)
        bias = replace(bias, rank=len(shape))
        # Reshapes between keep the order of elements: with most axes, heads have one.
        kept = self.shape if self.shape and len(self.shape) >= len(shape) else shape
        return replace(self, biases=(*self.biases, bias), shape=kept)


def _walk_views(node: fx.Node) -> list[fx.Node]:
    """The values that `node` is a view, copy or cast of, itself first."""
    chain = [node]
    while True:
        last = chain[-1]
        is_step = last.target in VIEWS or last.target in COPIES or is_cast(last)
        if last.op != "call_function" or not is_step:
            return chain
        chain.append(operand_of(last))


def _keeps_order(chain: Sequence[fx.Node], *then: OpArguments) -> bool:
    """Whether the views from the last of `chain` to the first, and `then`, keep the order of
    elements.

    They do if they make a dense tensor of a dense one; a copy changes no element's place.
    """
    value = tensor_of(chain[-1])
    view = value.new_empty(value.shape)
    try:
        for node in reversed(chain[:-1]):
            if node.target in VIEWS:
                target = callee_of(node)
                args = fx.map_arg(tuple(node.args[1:]), value_of)
                view = (aten.view.default if target in RESHAPES else target)(view, *args)
        for op, *more in then:
            view = op(view, *more)
    except (RuntimeError, ValueError, IndexError):
        return False
    if view.numel() is not value.numel() and not same_number(view.numel(), value.numel()):
        return False
    expected: int | torch.SymInt = 1
    axes: list[tuple[int | torch.SymInt, int | torch.SymInt]]
    axes = list(zip(view.shape, view.stride(), strict=True))
    for size, stride in reversed(axes):
        if not (isinstance(size, int) and size == 1) and not same_number(stride, expected):
            return False
        expected = expected * size
    return True


def _before_reshape(match: Match, node: fx.Node, ops: Sequence[object]) -> fx.Node:
    """The call of one of `ops` that `node` is a reshape of; everything between is absorbed."""
    chain = _walk_views(node)
    if chain[-1].target not in ops or not _keeps_order(chain):
        raise NoMatch
    for each in chain:
        match.absorb(each, *VIEWS, *COPIES, aten._to_copy.default, *ops)
    return chain[-1]


def _operand(node: fx.Node, shape: Sequence[object], *then: tuple[object, ...]) -> fx.Node | None:
    """The earliest value of this shape of which `node`, after `then`, is a reshape."""
    chain = _walk_views(node)
    dtype = tensor_of(node).dtype
    for length in range(len(chain), 0, -1):
        value = tensor_of(chain[length - 1])
        fits = value.dtype == dtype and same_numbers(value.shape, shape)
        if fits and _keeps_order(chain[:length], *then):
            return chain[length - 1]
    return None


def _scores(match: Match, node: object) -> _Scores:
    """What the argument of the softmax is made of."""
    if not isinstance(node, fx.Node) or not computes_tensor(node):
        raise NoMatch
    chain = _walk_views(node)
    if len(chain) > 1:
        if not _keeps_order(chain) or any(map(_narrows, chain)):
            raise NoMatch
        for each in chain[:-1]:
            match.absorb(each, *VIEWS, *COPIES, aten._to_copy.default)
        return _scores(match, chain[-1])
    if node.target in PRODUCTS:
        match.absorb(node, *PRODUCTS)
        return _Scores((node.args[0], node.args[1]))
    match.absorb(node, *_STEPS)
    return _STEPS[node.target](match, node)


def _narrows(node: fx.Node) -> bool:
    """Whether this is a cast that loses digits."""
    return is_cast(node) and tensor_of(node).itemsize < tensor_of(operand_of(node)).itemsize


def _number(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise NoMatch
    return float(value)


def _scaled(match: Match, node: fx.Node) -> _Scores:
    x, factor = node.args[:2]
    factor = _number(factor)
    inner = _scores(match, x)
    if inner.biases or not math.isfinite(factor):
        raise NoMatch
    is_quotient = node.target in (aten.div.Tensor, aten.div.Scalar)
    if is_quotient and not factor:
        raise NoMatch
    return replace(inner, scale=inner.scale / factor if is_quotient else inner.scale * factor)


def _biased(match: Match, node: fx.Node) -> _Scores:
    if node.kwargs.get("alpha", 1) != 1:
        raise NoMatch
    for scores, bias in (node.args[:2], node.args[1::-1]):
        is_tensor = isinstance(bias, fx.Node) and computes_tensor(bias)
        if not is_tensor or not _leads_to_product(scores):
            continue
        inner = _scores(match, scores)
        return inner.with_bias(node, _Bias(bias))  # type: ignore[arg-type]
    raise NoMatch


def _added_product(match: Match, node: fx.Node) -> _Scores:
    """beta * bias + alpha * product"""
    given = arguments(node.target, node.args, node.kwargs)
    inner = _Scores((given["batch1"], given["batch2"]), _number(given["alpha"]))
    beta = _number(given["beta"])
    if not beta:
        return inner
    if beta != 1:
        raise NoMatch
    return inner.with_bias(node, _Bias(given["self"]))


def _leads_to_product(node: object) -> bool:
    """Whether scores may come from here, so that the other operand is the bias."""
    while isinstance(node, fx.Node) and computes_tensor(node):
        node = _walk_views(node)[-1]
        if node.target in PRODUCTS or node.target is aten.baddbmm.default:
            return True
        if node.target not in _STEPS:
            return False
        node = node.args[1] if node.target is aten.where.self else node.args[0]
    return False


def _filled(match: Match, node: fx.Node) -> _Scores:
    x, mask, number = node.args[:3]
    fill = _lowest(number)
    inner = _scores(match, x)
    return inner.with_bias(node, _Bias(mask, fill))  # type: ignore[arg-type]


def _selected(match: Match, node: fx.Node) -> _Scores:
    mask, one, other = node.args
    if _leads_to_product(one):
        inner, fill, inverted = _scores(match, one), _lowest(other), True
    else:
        inner, fill, inverted = _scores(match, other), _lowest(one), False
    return inner.with_bias(node, _Bias(mask, fill, inverted))  # type: ignore[arg-type]


def _lowest(number: object) -> float:
    """A number that leaves no weight; a tensor of one element holds it in most programs."""
    value = uniform_value(number)
    if value is None or not value <= LOWEST_SCORE:
        raise NoMatch
    return float(value)


_STEPS: dict[object, Callable[[Match, fx.Node], _Scores]] = {
    aten.mul.Tensor: _scaled,
    aten.mul.Scalar: _scaled,
    aten.div.Tensor: _scaled,
    aten.div.Scalar: _scaled,
    aten.add.Tensor: _biased,
    aten.baddbmm.default: _added_product,
    aten.masked_fill.Scalar: _filled,
    aten.masked_fill.Tensor: _filled,
    aten.where.self: _selected,
    aten.where.ScalarOther: _selected,
    aten.where.ScalarSelf: _selected,
}


@dataclass(frozen=True)
class _Attention:
    """One attention, found in a graph."""

    query: fx.Node
    key: fx.Node
    value: fx.Node
    lead: tuple[int, ...]
    """Of the scores, the axes before rows and columns: batch and heads, batch, or none."""
    scale: float
    biases: tuple[_Bias, ...]
    shape: tuple[int, ...]
    """Of the result."""
    dense: bool
    """Whether the result is dense, as that of a product is."""
    turned: bool
    """Whether the key is given as its transpose."""

    @property
    def operands(self) -> list[fx.Node]:
        return [self.query, self.key, self.value, *(each.tensor for each in self.biases)]

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *biases: torch.Tensor
    ) -> torch.Tensor:
        """The fused call, in torch."""
        key = key.transpose(-2, -1) if self.turned else key
        query, key, value = (self._with_heads(each) for each in (query, key, value))
        added, filled = self._masks(biases, query.dtype)
        mask = added if filled is None else ~filled
        if added is not None and filled is not None:
            mask = added.masked_fill(filled, -math.inf)
        out: torch.Tensor = F.scaled_dot_product_attention(
            query, key, value, mask, scale=self.scale
        )
        hidden = None if filled is None else filled.all(-1, keepdim=True)
        if added is not None:
            assert mask is not None
            nothing = (mask == -math.inf).all(-1, keepdim=True)
            nothing = nothing if hidden is None else nothing & ~hidden
            out = out * torch.where(nothing, math.nan, 1.0).to(out.dtype)
        if hidden is not None:
            out = torch.where(hidden, self._of_equal_weights(value, hidden), out)
        if self.dense:
            out = out.contiguous()
        if not same_numbers(out.shape, self.shape):
            out = out.reshape(self.shape)
        return out

    def _of_equal_weights(self, value: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The result of a row in which every score is filled; it depends on the values alone."""
        mean: torch.Tensor = value.mean(-2, keepdim=True)
        if not any(map(math.isinf, self._fills())):
            return mean
        # The softmax of such a row is NaN, and so is the gradient of the values then.
        factor = torch.where(hidden.any(-2, keepdim=True), math.nan, 0.0)
        return mean * factor.to(mean.dtype)

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
            part = self._broadcast(given, bias.rank)
            if bias.fill is None:
                part = part.to(dtype)
                added = part if added is None else added + part
            else:
                part = ~part if bias.inverted else part
                filled = part if filled is None else filled | part
        return added, filled

    def _broadcast(self, mask: torch.Tensor, rank: int) -> torch.Tensor:
        """With the axes batch, heads, rows and columns, any of them of one element."""
        if rank == 3 and mask.dim() == 3:
            first: object = mask.shape[0]
            is_one = isinstance(first, int) and first == 1
            parted = len(self.lead) == 2 and not is_one
            mask = mask.unflatten(0, self.lead) if parted else mask.unsqueeze(1)
        while mask.dim() < 4:
            mask = mask.unsqueeze(0)
        return mask

    def _fills(self) -> list[float]:
        return [each.fill for each in self.biases if each.fill is not None]

    def is_one_mask(self) -> bool:
        """Whether the biases act as one: all fill with -inf, or with low numbers that nothing is
        added to."""
        fills = self._fills()
        if not fills or all(map(math.isinf, fills)):
            return True
        first = [bias.fill is not None for bias in self.biases].index(True)
        after = self.biases[first:]
        return all(bias.fill is not None and math.isfinite(bias.fill) for bias in after)


def _found(match: Match, dense: bool) -> _Attention | None:
    root = match.root
    product = root
    if root.target in RESHAPES:
        product = match.absorb(root.args[0], *PRODUCTS)
    elif [each.target for each in root.users if each.target in RESHAPES] and len(root.users) == 1:
        return None  # Matched at the reshape, which needs no copy of the result.
    weights, values = arguments_of(product)
    softmax = _before_reshape(match, weights, (SOFTMAX,))
    rank = tensor_of(softmax).dim()
    axis = arguments_of(softmax)[1]
    if not rank or axis % rank != rank - 1:
        return None
    scores = _scores(match, softmax.args[0])
    # Reshapes between keep the order of elements; where biases are added, heads have an axis.
    shape = scores.shape or tuple(tensor_of(softmax).shape)
    *lead, rows, columns = shape
    if len(lead) > 2 or not same_numbers(shape[-2:], tensor_of(weights).shape[-2:]):
        return None
    one, other = scores.product
    if not all(isinstance(each, fx.Node) for each in (one, other, values)):
        return None
    width, value_width = tensor_of(one).shape[-1], tensor_of(values).shape[-1]
    query = _operand(one, (*lead, rows, width)) or one
    turned = (aten.transpose.int, -2, -1)
    key = _operand(other, (*lead, columns, width), turned)
    if key is None:
        merged = (*tensor_of(other).shape[:-2], columns, width)
        key = _operand(other, merged, turned)
    value = _operand(values, (*lead, columns, value_width)) or values
    found = _Attention(
        query,
        key or other,
        value,
        tuple(lead),
        scores.scale,
        scores.biases,
        tuple(tensor_of(root).shape),
        dense,
        key is None,
    )
    return found if _fits(found, len(shape)) else None


def _fits(found: _Attention, rank: int) -> bool:
    query, key, value = (tensor_of(each) for each in found.operands[:3])
    if not (query.dtype == key.dtype == value.dtype and query.is_floating_point()):
        return False
    if not found.is_one_mask():
        return False
    return all(
        tensor_of(bias.tensor).dim() <= bias.rank <= rank
        and bias.rank >= rank - 1
        and (bias.fill is None or tensor_of(bias.tensor).dtype == torch.bool)
        and tensor_of(bias.tensor).device == query.device
        for bias in found.biases
    )


def _rule(name: str, dense: bool, differentiated: set[str]) -> Rule:
    def fuse(match: Match) -> Replacement | None:
        found = _found(match, dense)
        if found is None:
            return None
        masks = reachable(found.operands[3:], lambda node: node.all_input_nodes)
        # By name: the engine works on a copy of the graph.
        if not differentiated.isdisjoint(each.name for each in masks):
            return None
        called = operators_of(found, [tensor_of(each) for each in found.operands])
        return Traced(found, found.operands) if FUSED & set(called) else None

    return Rule(name, (call((*RESHAPES, *PRODUCTS), Rest("rest")),), fuse, __doc__ or "")


def fuse_attention(graph_module: fx.GraphModule, wrt: Sequence[int] = ()) -> fx.GraphModule:
    """Replace attention that is written out by one fused call.

    `wrt`: positions of the inputs that are differentiated with respect to.
    """
    graph = graph_module.graph
    if not graph.find_nodes(op="call_function", target=SOFTMAX):
        return graph_module
    inputs = inputs_of(graph)
    names = {inputs[place].name for place in wrt}
    with assuming(graph_module):
        rules = [_rule("as-it-is", False, names), _rule("as-a-dense-tensor", True, names)]
        return rewrite(graph_module, rules, "fuse-attention")
