"""Operators that draw random numbers, as torch programs of numbers that kernels draw themselves.

A tensor `seeds` is one more input of the program: a key, and where its streams of numbers begin.
Each draw has streams of its own, so that no number is drawn twice.  What is drawn is as eager's is,
number by number another.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from adjoint.graph.operations import random_bits
from adjoint.lower.decompositions import Declined, Program, rewrite
from adjoint.torch_private import trees
from adjoint.torch_private.fake import fake_mode_of

aten = torch.ops.aten

DRAWS: dict[Any, Program] = {}

# How many bits make a number in [0, 1): all that the type can tell apart, and none that is rounded.
DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}


def draw(*ops: Any) -> Callable[[Program], Program]:
    def register(program: Program) -> Program:
        DRAWS.update(dict.fromkeys(ops, program))
        return program

    return register


def draw_in_kernels(
    graph_module: fx.GraphModule, device: torch.device
) -> tuple[fx.GraphModule, int]:
    """A copy of the graph that draws from streams given by its last input, and how many.

    If there is nothing that it could draw, it is the graph itself.  What draws on another device,
    or from a generator of the user's, is as it was.
    """
    if not any(_is_draw(node, device) for node in graph_module.graph.nodes):
        return graph_module, 0
    copy = rewrite(graph_module, lambda node: None)
    seeds = _with_seeds(copy, device)
    streams = itertools.count()

    def program_of(node: fx.Node) -> Program | None:
        if not _is_draw(node, device):
            return None
        # Of several results what was drawn is the last.
        numbers = Numbers(seeds.meta["val"], streams, _tensors(node)[-1])
        return functools.partial(DRAWS[node.target], numbers)

    made = rewrite(copy, program_of, [seeds])
    count = next(streams)
    if not count:
        made.graph.erase_node(made.graph.find_nodes(op="placeholder")[-1])
    return made, count


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    leaves = trees.leaves(node.meta.get("val"))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _is_draw(node: fx.Node, device: torch.device) -> bool:
    if node.target not in DRAWS or any(value.device != device for value in _tensors(node)):
        return False
    constants = [each for each in node.all_input_nodes if each.op == "get_attr"]
    return all(isinstance(each.meta.get("val"), torch.Tensor) for each in constants)


def _with_seeds(graph_module: fx.GraphModule, device: torch.device) -> fx.Node:
    """One more input, after all others."""
    graph = graph_module.graph
    inputs = graph.find_nodes(op="placeholder")
    with graph.inserting_before(next(node for node in graph.nodes if node not in set(inputs))):
        seeds = graph.placeholder("seeds")
    with fake_mode_of(graph_module):
        seeds.meta["val"] = torch.empty(2, dtype=torch.int64, device=device)
    return seeds


class Numbers:
    """Random tensors like `like`: of its size, laid out as it is."""

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
        if dtype not in DIGITS:
            raise Declined
        return self.bits(DIGITS[dtype]).to(dtype) * 0.5 ** DIGITS[dtype]

    def truth(self, probability: float | torch.Tensor) -> torch.Tensor:
        return self.below_one(torch.float32) < probability


@draw(aten.native_dropout.default)
def _native_dropout(numbers: Numbers, x: torch.Tensor, p: float, train: bool | None = True) -> Any:
    if not 0 <= p <= 1 or not x.dtype.is_floating_point:
        raise Declined
    if train is False:
        return x.clone(), torch.ones(x.shape, dtype=torch.bool, device=x.device)
    mask = numbers.truth(1 - p)
    return x * mask * (0.0 if p == 1 else 1 / (1 - p)), mask


@draw(aten.bernoulli.p)
def _bernoulli(numbers: Numbers, x: torch.Tensor, p: float = 0.5) -> Any:
    if not 0 <= p <= 1:
        raise Declined
    return numbers.truth(p).to(x.dtype)
