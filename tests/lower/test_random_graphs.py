"""Random programs, lowered: their kernels against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adjoint.runtime.checking import UnexpectedResult
from tests.lowering import check, graph_of, native_program

Op = Callable[..., torch.Tensor]

# Ops of one tensor of any sizes, and of two.
UNARY: dict[str, Op] = {
    "add": lambda x: x + 1,
    "half": lambda x: x * 0.5,
    "abs": torch.abs,
    "positive": lambda x: torch.where(x > 0, x, -x * 2),
    "sigmoid": torch.sigmoid,
    "sum": lambda x: x.sum(-1, keepdim=True),
    "mean": lambda x: x.mean(0),
    "total": torch.sum,
    "amax": lambda x: x.amax(-1) if x.numel() and x.dim() else x,
    "softmax": lambda x: x.softmax(-1),
    "transpose": lambda x: x.transpose(0, -1) if x.dim() > 1 else x * 3,
    "flat": lambda x: x.reshape(-1),
    "slice": lambda x: x[1:] if x.dim() and x.shape[0] > 1 else x,
    "step": lambda x: x[..., ::2] if x.dim() else x,
    "flip": lambda x: x.flip([0]) if x.dim() else x,
    "unsqueeze": lambda x: x.unsqueeze(0),
    "expand": lambda x: x.unsqueeze(-1).expand(*x.shape, 2),
    "cat": lambda x: torch.cat([x, x * 2], -1) if x.dim() else x,
    "pad": lambda x: torch.nn.functional.pad(x, [1, 0]) if x.dim() else x,
    "gather": lambda x: x[torch.arange(2) % x.shape[0]] if x.dim() and x.shape[0] else x,
    "scatter": lambda x: (
        x.new_zeros(2, *x.shape[1:]).index_add(0, torch.arange(x.shape[0]) % 2, x) if x.dim() else x
    ),
    "tril": lambda x: x.tril() if x.dim() > 1 else x,
    "sort": lambda x: x.sort(-1).values,
    "float": lambda x: x.to(torch.float32),
    "double": lambda x: x.to(torch.float64),
    "clone": lambda x: x.clone(),
}

BINARY: dict[str, Op] = {
    "plus": torch.add,
    "times": torch.mul,
    "less": lambda x, y: torch.where(x < y, x, y),
    "maximum": torch.maximum,
    "product": lambda x, y: x @ y.transpose(-1, -2) if x.dim() == y.dim() == 2 else x,
}

Step = tuple[str, int, int]

STEPS = st.lists(
    st.tuples(st.sampled_from([*UNARY, *BINARY]), st.integers(0, 20), st.integers(0, 20)),
    min_size=1,
    max_size=9,
)

LAYOUTS: list[Callable[[tuple[int, ...]], torch.Tensor]] = [
    lambda shape: numbers(shape),
    lambda shape: numbers(tuple(reversed(shape))).permute(list(reversed(range(len(shape))))),
    lambda shape: numbers((*shape, 2))[..., 1],
    lambda shape: numbers((1, *shape[1:])).expand(shape) if shape else numbers(shape),
]


def numbers(shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randint(-4, 5, shape, generator=generator).double() / 4


def run(steps: list[Step], *inputs: torch.Tensor) -> list[torch.Tensor]:
    """Each step takes earlier values; those that do not fit together are left out."""
    values = list(inputs)
    for name, one, other in steps:
        x, y = values[one % len(values)], values[other % len(values)]
        if name in UNARY:
            values.append(UNARY[name](x))
        elif x.dtype == y.dtype and _broadcasts(x, y, name):
            values.append(BINARY[name](x, y))
    return values[len(inputs) :] or [values[0] + 1]


def _broadcasts(x: torch.Tensor, y: torch.Tensor, name: str) -> bool:
    if name == "product":
        return x.dim() != 2 or y.dim() != 2 or x.shape[1] == y.shape[1]
    sizes = zip(reversed(x.shape), reversed(y.shape), strict=False)
    return all(a == b or a == 1 or b == 1 for a, b in sizes)


def agree(program: Any, steps: list[Step], inputs: list[torch.Tensor]) -> None:
    before = [tensor.clone() for tensor in inputs]
    ours = program(list(inputs))
    for one, eager in zip(ours, run(steps, *inputs), strict=True):
        assert (one.dtype, one.shape) == (eager.dtype, eager.shape)
        rtol = 1e-10 if one.dtype == torch.float64 else 1e-5
        torch.testing.assert_close(one, eager, rtol=rtol, atol=rtol, equal_nan=True)
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 5]), max_size=3).map(tuple)


def check_static(steps: list[Step], shape: tuple[int, ...], layouts: tuple[int, int]) -> None:
    inputs = [LAYOUTS[layout](shape) for layout in layouts]
    program = native_program(graph_of(lambda *given: run(steps, *given), inputs))
    if program is None:
        return
    agree(program, steps, inputs)
    # Once more, with memory that was used, and inputs laid out otherwise and sharing memory.
    others = [LAYOUTS[0](shape)] * 2
    try:
        agree(program, steps, others)
    except UnexpectedResult:
        # An op that is given an input itself returns what has the input's strides: its caller
        # would compile the graph again for that.
        anew = native_program(graph_of(lambda *given: run(steps, *given), others))
        assert anew is not None
        agree(anew, steps, others)


QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=40, **QUIET)  # type: ignore[arg-type]
@given(STEPS, SHAPES, st.tuples(st.integers(0, 3), st.integers(0, 3)))
def test_random_graphs(steps: list[Step], shape: tuple[int, ...], layouts: tuple[int, int]) -> None:
    check_static(steps, shape, layouts)


@pytest.mark.slow
@settings(max_examples=600, **QUIET)  # type: ignore[arg-type]
@given(STEPS, SHAPES, st.tuples(st.integers(0, 3), st.integers(0, 3)))
def test_many_random_graphs(
    steps: list[Step], shape: tuple[int, ...], layouts: tuple[int, int]
) -> None:
    check_static(steps, shape, layouts)


# Sums of tensors that lie in memory in any order of their dims.

BRANCH = st.tuples(
    st.permutations(range(4)),
    st.sampled_from(["half", "add", "abs", "positive"]),
    st.sampled_from(["sum", "amax", "mean", "softmax", "none"]),
    st.sampled_from(["plus", "times", "maximum"]),
)
Branch = tuple[list[int], str, str, str]


def combine(
    branches: list[Branch], dims: list[int], keep: bool, *inputs: torch.Tensor
) -> list[torch.Tensor]:
    """Each input, its dims in their order, is worked on, reduced, and combined with the rest."""
    whole, reduced = [], []
    for x, (order, worked, how, _) in zip(inputs, branches, strict=True):
        value = UNARY[worked](x.permute([order.index(dim) for dim in range(4)]))
        whole.append(value)
        if how in ("sum", "amax", "mean"):
            value = getattr(value, how)(dims, keepdim=keep)
        elif how == "softmax":
            value = value.softmax(dims[0]).sum(dims, keepdim=keep)
        else:
            value = (value * 2).sum(dims, keepdim=keep)
        reduced.append(value)
    total = reduced[0]
    for value, (*_, operator) in zip(reduced[1:], branches[1:], strict=True):
        total = BINARY[operator](total, value)
    results = [total, total.sum(-1)]
    if keep:
        results += [whole[-1] - total, (whole[0] * total).sum(dims[0])]
    return results


def check_combined(shape: list[int], branches: list[Branch], dims: list[int], keep: bool) -> None:
    inputs = [numbers(tuple(shape[dim] for dim in order)) for order, *_ in branches]
    # Which of two zeros is the greater one, eager decides by where they lie in memory.
    signed = not any("maximum" in branch or "amax" in branch for branch in branches)
    check(lambda *given: combine(branches, dims, keep, *given), *inputs, signed_zeros=signed)


COMBINED = (
    st.lists(st.integers(1, 4), min_size=4, max_size=4),
    st.lists(BRANCH, min_size=2, max_size=3),
    st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True),
    st.booleans(),
)


@settings(max_examples=25, **QUIET)  # type: ignore[arg-type]
@given(*COMBINED)
def test_reductions_of_what_lies_in_any_order(
    shape: list[int], branches: list[Branch], dims: list[int], keep: bool
) -> None:
    check_combined(shape, branches, dims, keep)


@pytest.mark.slow
@settings(max_examples=300, **QUIET)  # type: ignore[arg-type]
@given(*COMBINED)
def test_many_reductions_of_what_lies_in_any_order(
    shape: list[int], branches: list[Branch], dims: list[int], keep: bool
) -> None:
    check_combined(shape, branches, dims, keep)
