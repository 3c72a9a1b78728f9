"""The scores of attention: what the argument of its softmax is made of.

    softmax(scale * factors * (q k^T) + biases)

The scale is a number.  A factor is a tensor with one element for each head, or one in all.  A bias
is added, or is a mask that replaces scores by a low number.  Between them may be reshapes that keep
the order of elements, copies, and casts that lose no digits of the product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from adjoint.graph.metadata import callee_of, computes_tensor, operand_of, tensor_of, value_of
from adjoint.open_types import OpArgument, OpArguments
from adjoint.optimize import uniform
from adjoint.optimize.casts import is_cast
from adjoint.optimize.uniform import FILLS, uniform_value
from adjoint.rewrite.matching import arguments
from adjoint.rewrite.patterns import Match, NoMatch
from adjoint.rewrite.refreshing import RESHAPES
from adjoint.torch_private.symbols import same_number, same_numbers

aten = torch.ops.aten

PRODUCTS = (aten.bmm.default, aten.mm.default)
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
_TIMES = (aten.mul.Tensor, aten.mul.Scalar)
_FILLING = frozenset({*_TIMES, *FILLS, *uniform.VIEWS})
QUOTIENTS = (aten.div.Tensor, aten.div.Scalar)

# A number that a mask fills with has no weight if it is at most this.
LOWEST_SCORE = -1e9


@dataclass(frozen=True)
class Bias:
    """What is added to the scores, or what replaces them where a mask holds."""

    tensor: fx.Node
    fill: float | None = None
    """None: the tensor is added.  Else it is a mask, and scores are this number where it holds."""
    inverted: bool = False
    """Whether the number stands where the mask does not hold, and not where it holds."""
    shape: tuple[int, ...] = ()
    """The shape of the scores where it is added."""
    scale: float = 1.0
    """What it is multiplied by when it is added."""

    @property
    def rank(self) -> int:
        return len(self.shape)

    def scaled(self, number: float, dtype: torch.dtype) -> Bias:
        """After scores with this bias were multiplied by a number."""
        if self.fill is None:
            return replace(self, scale=self.scale * number)
        fill = self.fill * number
        overflows = math.isfinite(self.fill) and -fill > torch.finfo(dtype).max
        if overflows or not fill <= LOWEST_SCORE:
            raise NoMatch
        return replace(self, fill=fill)


@dataclass(frozen=True)
class Factor:
    """What the product is multiplied or divided by: one number for each head, or one in all."""

    tensor: fx.Node
    divides: bool
    shape: tuple[int, ...]
    """The shape of the scores where it is multiplied."""

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(frozen=True)
class Scores:
    """scale * factors * product + biases"""

    product: tuple[OpArgument, OpArgument]
    """The two operands of the product."""
    produced: tuple[int, ...]
    """The shape of the product."""
    scale: float = 1.0
    biases: tuple[Bias, ...] = ()
    factors: tuple[Factor, ...] = ()
    shape: tuple[int, ...] | None = None
    """The shape of the scores where a bias is added, with most axes."""

    def with_bias(self, node: fx.Node, bias: Bias) -> Scores:
        bias = replace(bias, shape=tuple(tensor_of(node).shape))
        return replace(self, biases=(*self.biases, bias), shape=self._with_most_axes(node))

    def with_factor(self, node: fx.Node, tensor: fx.Node, divides: bool) -> Scores:
        if self.biases:
            raise NoMatch
        factor = Factor(tensor, divides, tuple(tensor_of(node).shape))
        return replace(self, factors=(*self.factors, factor), shape=self._with_most_axes(node))

    def _with_most_axes(self, node: fx.Node) -> tuple[int, ...]:
        # Reshapes between keep the order of elements: with most axes, heads have one.
        shape = tuple(tensor_of(node).shape)
        return self.shape if self.shape and len(self.shape) >= len(shape) else shape

    def scaled(self, number: float, dtype: torch.dtype) -> Scores:
        if not math.isfinite(number):
            raise NoMatch
        biases = tuple(each.scaled(number, dtype) for each in self.biases)
        return replace(self, scale=self.scale * number, biases=biases)


def walk_views(node: fx.Node) -> list[fx.Node]:
    """The values that `node` is a view, copy or cast of, itself first."""
    chain = [node]
    while True:
        last = chain[-1]
        is_step = last.target in VIEWS or last.target in COPIES or is_cast(last)
        if last.op != "call_function" or not is_step:
            return chain
        chain.append(operand_of(last))


def keeps_order(chain: Sequence[fx.Node], *then: OpArguments) -> bool:
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


def scores_of(match: Match, node: object) -> Scores:
    """What the argument of the softmax is made of; all of it is absorbed."""
    if not isinstance(node, fx.Node) or not computes_tensor(node):
        raise NoMatch
    chain = walk_views(node)
    if len(chain) > 1:
        if not keeps_order(chain):
            raise NoMatch
        for each in chain[:-1]:
            match.absorb(each, *VIEWS, *COPIES, aten._to_copy.default)
        inner = scores_of(match, chain[-1])
        if not all(_may_narrow(each, inner) for each in filter(_narrows, chain)):
            raise NoMatch
        return inner
    if node.target in PRODUCTS:
        match.absorb(node, *PRODUCTS)
        return Scores((node.args[0], node.args[1]), tuple(tensor_of(node).shape))
    match.absorb(node, *_STEPS)
    return _STEPS[node.target](match, node)


def _narrows(node: fx.Node) -> bool:
    """Whether this is a cast that loses digits."""
    return is_cast(node) and tensor_of(node).itemsize < tensor_of(operand_of(node)).itemsize


def _may_narrow(cast: fx.Node, scores: Scores) -> bool:
    """Whether digits that a cast drops are more than those of the product, which had none of them.

    A bias of a wider dtype is added, as to scores of autocast.  A number that fills may overflow.
    """
    fills = [each.fill for each in scores.biases if each.fill is not None]
    product = scores.product[0]
    return (
        isinstance(product, fx.Node)
        and tensor_of(cast).dtype == tensor_of(product).dtype
        and all(map(math.isinf, fills))
    )


def _number(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise NoMatch
    return float(value)


def _scaled(match: Match, node: fx.Node) -> Scores:
    x, factor = node.args[:2]
    divides = node.target in QUOTIENTS
    if not divides and not _has_shape_of(x, node):
        x, factor = factor, x
    if not _has_shape_of(x, node):
        raise NoMatch
    inner = scores_of(match, x)
    number = uniform_value(factor)
    if number is not None:
        if not number:
            raise NoMatch
        return inner.scaled(1 / number if divides else number, tensor_of(node).dtype)
    if not isinstance(factor, fx.Node) or not _is_one_for_each_head(factor):
        raise NoMatch
    return inner.with_factor(node, factor, divides)


def _has_shape_of(x: object, node: fx.Node) -> bool:
    """Whether a product of `x` with something has its shape and dtype."""
    if not isinstance(x, fx.Node) or not computes_tensor(x):
        return False
    mine, whole = tensor_of(x), tensor_of(node)
    return mine.dtype == whole.dtype and same_numbers(mine.shape, whole.shape)


def _is_one_for_each_head(factor: fx.Node) -> bool:
    if not computes_tensor(factor) or not tensor_of(factor).is_floating_point():
        return False
    sizes: list[object] = list(tensor_of(factor).shape[-2:])
    return all(isinstance(size, int) and size == 1 for size in sizes)


def _biased(match: Match, node: fx.Node) -> Scores:
    """scores + bias, bias + scores, scores - bias or bias - scores"""
    one, other = node.args[:2]
    second = _number(node.kwargs.get("alpha", 1)) * (-1 if node.target is aten.sub.Tensor else 1)
    for scores, bias, of_scores, of_bias in ((one, other, 1, second), (other, one, second, 1)):
        is_tensor = isinstance(bias, fx.Node) and computes_tensor(bias)
        if not is_tensor or not _leads_to_product(scores):
            continue
        inner = scores_of(match, scores)
        if of_scores != 1:
            inner = inner.scaled(of_scores, tensor_of(node).dtype)
        return inner.with_bias(node, Bias(bias, scale=of_bias))  # type: ignore[arg-type]
    raise NoMatch


def _added_product(match: Match, node: fx.Node) -> Scores:
    """beta * bias + alpha * product"""
    given = arguments(node.target, node.args, node.kwargs)
    operands = (given["batch1"], given["batch2"])
    inner = Scores(operands, tuple(tensor_of(node).shape), _number(given["alpha"]))
    beta = _number(given["beta"])
    if not beta:
        return inner
    return inner.with_bias(node, Bias(given["self"], scale=beta))


def _leads_to_product(node: object) -> bool:
    """Whether scores may come from here, so that the other operand is the bias."""
    seen: set[fx.Node] = set()
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, fx.Node) or not computes_tensor(each):
            continue
        last = walk_views(each)[-1]
        if last.target in PRODUCTS or last.target is aten.baddbmm.default:
            return True
        if last.target in _STEPS and last not in seen:
            seen.add(last)
            waiting += last.args[1:3] if last.target in _SELECTIONS else last.args[:2]
    return False


def _filled(match: Match, node: fx.Node) -> Scores:
    x, mask, number = node.args[:3]
    fill = _lowest(number)
    inner = scores_of(match, x)
    return inner.with_bias(node, Bias(mask, fill))  # type: ignore[arg-type]


def _selected(match: Match, node: fx.Node) -> Scores:
    mask, one, other = node.args
    inverted = _leads_to_product(one)
    scores, number = (one, other) if inverted else (other, one)
    fill = _lowest(number)
    _absorb_filling(match, number)
    inner = scores_of(match, scores)
    return inner.with_bias(node, Bias(mask, fill, inverted))  # type: ignore[arg-type]


def _written(match: Match, node: fx.Node) -> Scores:
    """scores[..., mask] = number"""
    scores, indices, number = node.args[:3]
    mask = indices[-1] if isinstance(indices, (list, tuple)) else None
    if not isinstance(mask, fx.Node) or not isinstance(indices, (list, tuple)):
        raise NoMatch
    axes = len(indices) - 1 + tensor_of(mask).dim()
    is_last = not any(indices[:-1]) and axes == tensor_of(node).dim()
    if not is_last or any(node.args[3:]) or node.kwargs:
        raise NoMatch
    fill = _lowest(number)
    return scores_of(match, scores).with_bias(node, Bias(mask, fill))


def _absorb_filling(match: Match, node: object) -> None:
    """A tensor that holds one number everywhere may have its shape from the scores, and is then a
    part of the match, unless something else reads it."""
    while isinstance(node, fx.Node) and node.target in _FILLING:
        try:
            match.absorb(node, node.target)
        except NoMatch:
            return
        node = node.args[0]


def _lowest(number: object) -> float:
    """A number that leaves no weight; a tensor of one element holds it in most programs."""
    factor = 1.0
    while isinstance(number, fx.Node) and number.target in _TIMES:
        # As in `-9e15 * torch.ones_like(scores)`.
        factor *= _number(uniform_value(number.args[1]))
        number = number.args[0]
    value = uniform_value(number)
    if value is None or not value * factor <= LOWEST_SCORE:
        raise NoMatch
    return float(value * factor)


_SELECTIONS = (aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf)
_STEPS: dict[object, Callable[[Match, fx.Node], Scores]] = {
    aten.mul.Tensor: _scaled,
    aten.mul.Scalar: _scaled,
    aten.div.Tensor: _scaled,
    aten.div.Scalar: _scaled,
    aten.add.Tensor: _biased,
    aten.sub.Tensor: _biased,
    aten.baddbmm.default: _added_product,
    aten.masked_fill.Scalar: _filled,
    aten.masked_fill.Tensor: _filled,
    aten.index_put.default: _written,
    **dict.fromkeys(_SELECTIONS, _selected),
}
