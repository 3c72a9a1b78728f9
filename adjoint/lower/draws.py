"""Random operators as torch programs over random bits that kernels generate.

A tensor `seeds` is one more input of the program: the key, and the offset at which its random
streams begin.  Each draw has streams of its own, so that no number is drawn twice.  Numbers have
eager's distributions, but not eager's values.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import fx

from adjoint.graph.descriptors import Seeds
from adjoint.graph.metadata import (
    computes_tensor,
    inputs_of,
    set_descriptor,
    set_value,
    value_of,
    value_or_none,
)
from adjoint.graph.operations import random_bits
from adjoint.loops.pointwise import computed_in
from adjoint.lower.compositions import Composition, NoComposition, registering
from adjoint.lower.decompositions import rewrite
from adjoint.torch_private import trees
from adjoint.torch_private.fake import fake_mode_of

aten = torch.ops.aten

DRAWS: dict[object, Composition] = {}

# Random bits of a number in [0, 1): as many as the type represents exactly.
DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}


# Registers an operator that draws, as a program over random bits.
draw = partial(registering, DRAWS)


def draw_in_kernels(graph_module: fx.GraphModule, device: torch.device) -> fx.GraphModule:
    """A copy of the graph that draws from random streams, whose seeds are one more input.

    A graph that draws nothing is returned as it is.  Draws on another device, or from a generator
    of the user's, stay as they are.
    """
    if not any(_is_draw(node, device) for node in graph_module.graph.nodes):
        return graph_module
    copy = rewrite(graph_module, lambda node: None)
    seeds = _with_seeds(copy, device)
    streams = itertools.count()

    def program_of(node: fx.Node) -> Composition | None:
        if not _is_draw(node, device):
            return None
        # Of several results, the last has the random numbers.
        numbers = Numbers(value_of(seeds), streams, _tensors(node)[-1])
        return functools.partial(DRAWS[node.target], numbers)

    made = rewrite(copy, program_of, [seeds])
    if not next(streams):
        made.graph.erase_node(inputs_of(made.graph)[-1])
    return made


def streams_of(graph: fx.Graph) -> int:
    """How many random streams a graph draws from."""
    draws = graph.find_nodes(op="call_function", target=random_bits)
    return max((int(node.args[1]) + 1 for node in draws), default=0)


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    leaves = trees.leaves(value_or_none(node))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _is_draw(node: fx.Node, device: torch.device) -> bool:
    if node.target not in DRAWS or any(value.device != device for value in _tensors(node)):
        return False
    constants = [each for each in node.all_input_nodes if each.op == "get_attr"]
    return all(computes_tensor(each) for each in constants)


def _with_seeds(graph_module: fx.GraphModule, device: torch.device) -> fx.Node:
    """One more input, after all others."""
    graph = graph_module.graph
    inputs = inputs_of(graph)
    with graph.inserting_after(inputs[-1] if inputs else None):
        seeds = graph.placeholder("seeds")
    set_descriptor(seeds, Seeds())
    with fake_mode_of(graph_module):
        set_value(seeds, torch.empty(2, dtype=torch.int64, device=device))
    return seeds


class Numbers:
    """Random tensors with the shape and strides of `like`."""

    def __init__(self, seeds: torch.Tensor, streams: Iterator[int], like: torch.Tensor) -> None:
        self.seeds = seeds
        self.streams = streams
        self.like = like

    def bits(self, count: int) -> torch.Tensor:
        """Integers below 2**count."""
        stream, like = next(self.streams), self.like
        return random_bits(self.seeds, stream, like.shape, like.stride(), count)  # type: ignore[no-any-return]

    def below_one(self, dtype: torch.dtype) -> torch.Tensor:
        """In [0, 1)."""
        return self.bits(DIGITS[dtype]).to(dtype) * 0.5 ** DIGITS[dtype]

    def truth(self, probability: float) -> torch.Tensor:
        """True with this probability; 0 and 1 are exact."""
        return self.bits(31) <= round(probability * 2**31) - 1

    def between(self, low: float, high: float) -> torch.Tensor:
        """In [low, high)."""
        dtype = self.floating()
        most = torch.finfo(dtype).max
        _require(-most <= low <= high <= most and high - low <= most)
        if (low, high) == (0, 1):
            return self.below_one(dtype)
        drawn = (self.below_one(computed_in(dtype)) * (high - low) + low).to(dtype)
        # Rounding may have given `high` itself.
        return torch.where(drawn == high, low, drawn)

    def above_zero(self) -> torch.Tensor:
        """In (0, 1], in the dtype that is computed in: finely spaced near 0."""
        bits, dtype = self.fine()
        return _above_zero(self.bits(bits), bits, dtype)

    def normal(self) -> torch.Tensor:
        """Standard normal, by Box and Muller, in the dtype that is computed in."""
        bits, dtype = self.fine()
        if dtype == torch.float64:
            one, other = self.bits(bits), self.bits(bits)
        else:
            both = self.bits(2 * bits)
            one = torch.bitwise_right_shift(both, bits).to(torch.int32)
            other = torch.bitwise_and(both, (1 << bits) - 1).to(torch.int32)
        size = (_above_zero(one, bits, dtype).log() * -2).sqrt()
        return size * (other.to(dtype) * (2 * math.pi * 0.5**bits)).cos()

    def exponential(self) -> torch.Tensor:
        """Exponential of mean 1, and never 0: users take its logarithm."""
        drawn = -self.above_zero().log()
        return drawn.clamp_min(torch.finfo(drawn.dtype).eps / 2)

    def whole(self, low: object, high: object) -> torch.Tensor:
        """Integers in range(low, high)."""
        dtype = self.like.dtype
        if not isinstance(low, int) or not isinstance(high, int):
            raise NoComposition
        _require(dtype in WHOLE)
        _require(-WHOLE[dtype] <= low < high <= WHOLE[dtype])
        drawn: torch.Tensor = self.bits(63) % (high - low) + low
        return drawn.to(dtype)

    def floating(self) -> torch.dtype:
        """The dtype, which must be a floating-point one."""
        _require(self.like.dtype in DIGITS)
        return self.like.dtype

    def fine(self) -> tuple[int, torch.dtype]:
        """How many bits to draw, and the dtype that is computed in."""
        dtype = computed_in(self.floating())
        return (53 if dtype == torch.float64 else 31), dtype


# Bounds of random integers: all up to them are exact in the dtype, and the bias of taking them
# modulo the range is at most 2**-22.
WHOLE = {
    torch.int64: 1 << 40,
    torch.int32: 1 << 31,
    torch.float64: 1 << 40,
    torch.float32: 1 << 24,
}


def _require(condition: bool) -> None:
    if not condition:
        raise NoComposition


def _above_zero(drawn: torch.Tensor, bits: int, dtype: torch.dtype) -> torch.Tensor:
    return (drawn.to(dtype) + 0.5) * 0.5**bits


@draw(aten.native_dropout.default)
def _native_dropout(
    numbers: Numbers, x: torch.Tensor, p: float, train: bool | None = True
) -> object:
    _require(0 <= p <= 1 and x.dtype.is_floating_point)
    if train is False:
        return x.clone(), torch.ones(x.shape, dtype=torch.bool, device=x.device)
    mask = numbers.truth(1 - p)
    return x * mask * (0.0 if p == 1 else 1 / (1 - p)), mask


@draw(aten.bernoulli.p)
def _bernoulli(numbers: Numbers, x: torch.Tensor, p: float = 0.5) -> torch.Tensor:
    _require(0 <= p <= 1)
    return numbers.truth(p).to(x.dtype)


@draw(aten.bernoulli.default)
def _bernoulli_of_each(numbers: Numbers, p: torch.Tensor) -> torch.Tensor:
    return _with_probabilities(numbers, p)


@draw(aten.bernoulli.Tensor)
def _bernoulli_like(numbers: Numbers, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return _with_probabilities(numbers, p)


def _with_probabilities(numbers: Numbers, p: torch.Tensor) -> torch.Tensor:
    _require(p.dtype in DIGITS and p.device == numbers.like.device)
    are = ((p >= 0) & (p <= 1)).all()
    aten._assert_async.msg(are, "a probability is not between 0 and 1")
    return (numbers.below_one(torch.float32) < p).to(numbers.like.dtype)


@draw(aten.rand.default, aten.rand_like.default)
def _rand(numbers: Numbers, *args: object, **options: object) -> torch.Tensor:
    return numbers.between(0, 1)


@draw(aten.uniform.default)
def _uniform(
    numbers: Numbers, x: torch.Tensor, low: float = 0.0, high: float = 1.0
) -> torch.Tensor:
    return numbers.between(low, high)


@draw(aten.randn.default, aten.randn_like.default)
def _randn(numbers: Numbers, *args: object, **options: object) -> torch.Tensor:
    return numbers.normal().to(numbers.like.dtype)


@draw(aten.normal.float_float)
def _normal_of_size(
    numbers: Numbers,
    mean: float,
    std: float,
    size: object,
    generator: None = None,
    **options: object,
) -> torch.Tensor:
    return _around(numbers, mean, std)


@draw(aten.normal_functional.default)
def _normal_like(
    numbers: Numbers, x: torch.Tensor, mean: float = 0.0, std: float = 1.0
) -> torch.Tensor:
    return _around(numbers, mean, std)


@draw(aten.normal.Tensor_float)
def _normal_around(numbers: Numbers, mean: torch.Tensor, std: float = 1.0) -> torch.Tensor:
    return _around(numbers, mean, std)


def _around(numbers: Numbers, mean: float | torch.Tensor, std: float) -> torch.Tensor:
    _require(std >= 0)
    drawn: torch.Tensor = numbers.normal() * std + mean
    return drawn.to(numbers.like.dtype)


@draw(aten.exponential.default)
def _exponential(numbers: Numbers, x: torch.Tensor, rate: float = 1.0) -> torch.Tensor:
    _require(rate > 0)
    return (numbers.exponential() / rate).to(x.dtype)


@draw(aten.rrelu_with_noise_functional.default)
def _rrelu(
    numbers: Numbers,
    x: torch.Tensor,
    noise: torch.Tensor,
    low: float = 1 / 8,
    high: float = 1 / 3,
    training: bool = False,
    generator: None = None,
) -> object:
    if not training:
        return torch.nn.functional.leaky_relu(x, (low + high) / 2), noise.clone()
    slope = numbers.between(low, high)
    is_low = x <= 0
    return torch.where(is_low, x * slope, x), torch.where(is_low, slope, 1.0)


@draw(aten.randint.default, aten.randint_like.default)
def _randint(numbers: Numbers, *args: object, **options: object) -> torch.Tensor:
    """The upper bound is the first argument, or the second of `randint_like`."""
    return numbers.whole(0, args[1] if isinstance(args[0], torch.Tensor) else args[0])


@draw(aten.randint.low)
def _randint_from(
    numbers: Numbers, low: int, high: int, size: object, **options: object
) -> torch.Tensor:
    return numbers.whole(low, high)


@draw(aten.randint_like.low_dtype)
def _randint_like(
    numbers: Numbers, x: object, low: int, high: int, **options: object
) -> torch.Tensor:
    return numbers.whole(low, high)


@draw(aten.random.to)
def _random(numbers: Numbers, x: torch.Tensor, high: int) -> torch.Tensor:
    return numbers.whole(0, high)
