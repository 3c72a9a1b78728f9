"""The few operations that functional graphs need and ATen lacks.

Each runs in eager torch under autograd, so that the interpreter can run any graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import fx
from torch.autograd.function import once_differentiable

from adjoint.graph.evaluation import evaluate
from adjoint.graph.leaves import copy_with_strides
from adjoint.open_types import AutogradContext, OpArgument, TorchValue
from adjoint.philox import halves
from adjoint.torch_private.autograd import applied
from adjoint.torch_private.operators import OpOverload, fresh_results, recorded_loop


@torch.library.custom_op("adjoint::with_data", mutates_args=())
def _with_data(history: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """The value of `data` with the derivative of `history`.

    A tensor becomes that when it is written to without autograd noticing: under `no_grad`, through
    `.data`, or through a detached alias.
    """
    return data.clone()


@_with_data.register_fake
def _(history: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(data)


_with_data.register_autograd(lambda ctx, cotangent: (cotangent, None))

with_data: OpOverload = torch.ops.adjoint.with_data.default


@torch.library.custom_op("adjoint::provided", mutates_args=())
def _provided(value: torch.Tensor, condition: torch.Tensor, message: str) -> torch.Tensor:
    """`value`, after a runtime check: raises with `message` unless `condition` holds."""
    if not condition:
        raise RuntimeError(message)
    return value.clone()


@_provided.register_fake
def _(value: torch.Tensor, condition: torch.Tensor, message: str) -> torch.Tensor:
    return torch.empty_like(value)


@_provided.register_vmap
def _(
    info: object,
    in_dims: tuple[int | None, ...],
    value: torch.Tensor,
    condition: torch.Tensor,
    message: str,
) -> tuple[torch.Tensor, int | None]:
    return provided(value, condition.all(), message), in_dims[0]


_provided.register_autograd(lambda ctx, cotangent: (cotangent, None, None))

provided: OpOverload = torch.ops.adjoint.provided.default


@torch.library.custom_op("adjoint::exponential_scan", mutates_args=())
def _exponential_scan(
    v: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dim: int, reverse: bool
) -> torch.Tensor:
    """sum_j v_j exp(a_j + b_i) over j <= i along `dim`; with `reverse`, over j >= i.

    Computed with logarithms, because the exponentials may overflow or underflow where the sums do
    not.
    """
    if reverse:
        v, a, b = v.flip(dim), a.flip(dim), b.flip(dim)

    def summed(v: torch.Tensor) -> torch.Tensor:
        return ((v.log() + a).logcumsumexp(dim) + b).exp()

    total = summed(v) if v.is_complex() else summed(v.clamp(min=0)) - summed((-v).clamp(min=0))
    return total.flip(dim) if reverse else total


@_exponential_scan.register_fake
def _(v: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dim: int, reverse: bool) -> torch.Tensor:
    return torch.empty_like(v)


class _BatchInfo(Protocol):
    batch_size: int


@_exponential_scan.register_vmap
def _(
    info: _BatchInfo,
    in_dims: tuple[int | None, ...],
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    dim: int,
    reverse: bool,
) -> tuple[torch.Tensor, int]:
    given = [
        each.expand(info.batch_size, *each.shape) if place is None else each.movedim(place, 0)
        for each, place in zip((v, a, b), in_dims, strict=False)
    ]
    return exponential_scan(*given, dim + 1 if dim >= 0 else dim, reverse), 0


exponential_scan: OpOverload = torch.ops.adjoint.exponential_scan.default


@torch.library.custom_op("adjoint::random_bits", mutates_args=())
def _random_bits(
    seeds: torch.Tensor, stream: int, size: Sequence[int], stride: Sequence[int], bits: int
) -> torch.Tensor:
    """Random integers below 2**bits; each is a function of seeds, stream and its linear index
    alone.

    `seeds` holds the Philox key and the counter at which streams start.  One Philox block of 128
    bits yields four elements of up to 32 bits, or two of more.
    """
    made = torch.empty_strided(size, stride, dtype=_integer_dtype(bits), device=seeds.device)
    place = torch.arange(made.numel(), device=seeds.device)
    key, low = seeds[0], seeds[1] + stream
    width = 32 if bits <= 32 else 64
    first, second = halves(key, place >> (2 if width == 32 else 1), low)
    if width == 32:
        drawn = torch.where((place & 2) == 0, first, second) >> 32 * (place & 1)
    else:
        drawn = torch.where((place & 1) == 0, first, second)
    kept = (drawn >> (width - bits)) & ((1 << bits) - 1)
    return made.copy_(kept.view(made.shape))


def _integer_dtype(bits: int) -> torch.dtype:
    """The dtype of integers below 2**bits."""
    return torch.int32 if bits <= 31 else torch.int64


@_random_bits.register_fake
def _(
    seeds: torch.Tensor, stream: int, size: Sequence[int], stride: Sequence[int], bits: int
) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=_integer_dtype(bits), device=seeds.device)


random_bits: OpOverload = torch.ops.adjoint.random_bits.default


@dataclass(frozen=True)
class LoopArguments:
    """The positions of the arguments of a loop operator."""

    body: int
    init: int | None
    """The first carried values."""
    xs: int | None
    """The tensors whose slices the steps take."""
    others: int
    """What every step takes unchanged."""

    def carries(self, args: Sequence[object]) -> int:
        """The number of carried values."""
        return len(self.part(args, self.init))

    def operands(self, args: Sequence[object]) -> list[OpArgument]:
        """The first carried values, the sliced tensors, and what every step takes, in this
        order."""
        return [
            each for place in (self.init, self.xs, self.others) for each in self.part(args, place)
        ]

    def part(self, args: Sequence[OpArgument], place: int | None) -> Sequence[OpArgument]:
        """The argument at `place`."""
        return () if place is None else args[place]


LOOPS: dict[object, LoopArguments] = {
    torch.ops.higher_order.scan: LoopArguments(body=0, init=1, xs=2, others=3),
    torch.ops.higher_order.map_impl: LoopArguments(body=0, init=None, xs=1, others=2),
    torch.ops.higher_order.while_loop: LoopArguments(body=1, init=2, xs=None, others=3),
    recorded_loop: LoopArguments(body=1, init=2, xs=None, others=3),
}


def has_bodies(node: fx.Node) -> bool:
    """Whether the node is a branch or a loop."""
    return node.target is torch.ops.higher_order.cond or node.target in LOOPS


def require_within(
    index: torch.Tensor, low: int, high: int, dim: int, op: str, error: type[Exception]
) -> None:
    """Raise an error unless all indices are in range(low, high)."""
    if index.numel():
        least, most = torch.aminmax(index)
        if int(least) < low or int(most) >= high:
            wrong = int(least) if int(least) < low else int(most)
            where = f"dimension {dim} with size {high} ({op})"
            raise error(f"index {wrong} is out of bounds for {where}")


def as_leaf(value: torch.Tensor) -> torch.Tensor:
    """A new leaf with this value, as `requires_grad_` makes one of a tensor without history."""
    return value.detach().clone().requires_grad_()


def on_copies(
    op: OpOverload, mutated: tuple[str, ...], args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[object, ...]:
    """Run the mutating `op` on copies of the arguments it would change.

    Returns the op's own results, except those that alias a mutated argument, and then the mutated
    copies in the order of `mutated`.
    """
    named = dict(kwargs)
    for parameter, value in zip(op._schema.arguments, args, strict=False):
        named[parameter.name] = value
    for name in mutated:
        named[name] = _copy(named.get(name))
    positional = [
        named.pop(p.name) for p in op._schema.arguments if not p.kwarg_only and p.name in named
    ]
    result = op(*positional, **named)
    bound = dict(named)
    bound.update(
        zip((p.name for p in op._schema.arguments if not p.kwarg_only), positional, strict=False)
    )
    return (*fresh_results(op, result), *(bound[name] for name in mutated))


def _copy(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return copy_with_strides(value)
    return [_copy(each) for each in value] if isinstance(value, (list, tuple)) else value


def in_order(
    token: torch.Tensor, op: Callable[..., object], *args: object, **kwargs: object
) -> tuple[TorchValue, ...]:
    """Run an op with side effects; returns a new token, then the results of the op.

    Each such op takes the token of the one before it, so that passes which reorder nodes keep their
    order.
    """
    result = op(*args, **kwargs)
    return (token, *(result if isinstance(result, tuple) else (result,)))


def build_subclass(
    cls: type,
    attributes: tuple[str, ...],
    context: object,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    *inner: object,
) -> object:
    """The tensor subclass `cls` that holds `inner` as `attributes`."""
    held = dict(zip(attributes, inner, strict=True))
    return cls.__tensor_unflatten__(held, context, size, stride)  # type: ignore[attr-defined]


def take_attribute(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """The inner tensor `name` of a tensor subclass."""
    inner: torch.Tensor = getattr(tensor, name)
    return inner


Backwards: TypeAlias = tuple[tuple[tuple[int, ...] | None, fx.GraphModule], ...]
"""Backward graphs of a custom function, each with the positions of the results that have a
cotangent; None: all of them, with missing cotangents materialized as zeros."""


def apply_function(
    forward: fx.GraphModule,
    backwards: Backwards,
    non_differentiable: tuple[int, ...],
    once: bool,
    *operands: object,
) -> tuple[TorchValue, ...]:
    """Apply a custom `autograd.Function` whose two halves have been captured.

    `forward(*operands)` returns (results, saved); `backward(*cotangents, *saved)` returns one
    cotangent, or None, for each operand.  `once`: the backward may not be differentiated.
    """

    def run(*args: object) -> TorchValue:
        return evaluate(forward, args)

    return _applied(run, backwards, non_differentiable, once, operands)


def has_backward_per_pattern(node: fx.Node) -> bool:
    """Whether an `apply_function` has a backward for each pattern of missing cotangents."""
    return all(given is not None for given, _ in node.args[1])  # type: ignore[union-attr, misc]


def with_backward(
    backward: fx.GraphModule,
    non_differentiable: tuple[int, ...],
    results: tuple[object, ...],
    saved: tuple[object, ...],
    *operands: object,
) -> tuple[object, ...]:
    """`results`, as if returned by a custom `autograd.Function` of `operands` that saved `saved`.

    What remains of `apply_function` once its forward half is inlined into the graph.
    """
    backwards = ((None, backward),)
    return _applied(lambda *_: (results, saved), backwards, non_differentiable, False, operands)


def _applied(
    run: Callable[..., tuple[Sequence[object], Sequence[object]]],
    backwards: Backwards,
    non_differentiable: tuple[int, ...],
    once: bool,
    operands: tuple[object, ...],
) -> tuple[object, ...]:
    by_given = dict(backwards)

    def pull_back(ctx: AutogradContext, *cotangents: object) -> tuple[object, ...]:
        tensors = iter(ctx.saved_tensors)
        saved = [next(tensors) if other is None else other for other in ctx.others]
        given = tuple(i for i, each in enumerate(cotangents) if each is not None)
        backward = by_given.get(None) or by_given.get(given)
        if not by_given:
            raise RuntimeError(
                "a custom autograd function whose backward applies the function itself was "
                "captured for fewer derivatives; call it outside of the compiled function"
            )
        if backward is None:
            raise RuntimeError(
                f"a custom autograd function was captured for cotangents of its results "
                f"{[*by_given]}, and only {given} have one; let it materialize the others: "
                "ctx.set_materialize_grads(True)"
            )
        present = [each for each in cotangents if each is not None]
        return tuple(evaluate(backward, [*present, *saved]))

    class Applied(torch.autograd.Function):
        @staticmethod
        def forward(ctx: AutogradContext, *args: object) -> tuple[object, ...]:
            results, saved = run(*args)
            tensors = [value for value in saved if isinstance(value, torch.Tensor)]
            ctx.set_materialize_grads(None in by_given)
            ctx.save_for_backward(*tensors)
            ctx.others = [None if isinstance(value, torch.Tensor) else value for value in saved]
            ctx.mark_non_differentiable(*(results[index] for index in non_differentiable))
            return tuple(results)

        @staticmethod
        def backward(ctx: object, *cotangents: object) -> tuple[object, ...]:
            return reverse(ctx, *cotangents)

    reverse = once_differentiable(pull_back) if once else pull_back
    return tuple(applied(Applied, *operands))
