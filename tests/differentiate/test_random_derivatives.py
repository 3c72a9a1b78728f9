"""Random programs of differentiable ops, to order 3, against eager."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.differentiation import NATIVELY, OP_BY_OP, check, compare, derivatives

Op = Callable[..., Tensor]
ROWS, COLUMNS = 3, 4

# Ops from values of shape (3, 4) to such values.  Each is bounded, or kept in its domain, so that
# forty of them in a row neither overflow nor come near a kink.
UNARY: dict[str, Op] = {
    "sin": torch.sin,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "exp": lambda x: torch.exp(x.tanh()),
    "log": lambda x: torch.log(x * x + 1.5),
    "sqrt": lambda x: torch.sqrt(x * x + 0.5),
    "rsqrt": lambda x: torch.rsqrt(x * x + 0.5),
    "reciprocal": lambda x: 1 / (x * x + 1),
    "power": lambda x: x.sin() ** 3,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "softplus": torch.nn.functional.softplus,
    "erf": torch.erf,
    "atan": torch.atan,
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(0),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (COLUMNS,)),
    "cumsum": lambda x: x.cumsum(1).tanh(),
    "logsumexp": lambda x: x.logsumexp(1, keepdim=True).expand(ROWS, COLUMNS),
    "mean": lambda x: x - x.mean(0),
    "sum": lambda x: x.sum(1, keepdim=True).sin() * x,
    "variance": lambda x: x * x.var(0, keepdim=True).tanh(),
    "norm": lambda x: x / (x.square().sum(-1, keepdim=True) + 1).sqrt(),
    "transpose": lambda x: x.t().reshape(ROWS, COLUMNS),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 1),
    "select": lambda x: x[[2, 0, 0]],
    "slice": lambda x: torch.cat([x[1:], x[:1]]),
    "gather": lambda x: x.gather(1, torch.tensor([[0, 3, 3, 1]] * ROWS)),
    "index_add": lambda x: torch.zeros_like(x).index_add(0, torch.tensor([1, 1, 2]), x),
    "scatter_add": lambda x: x.scatter_add(0, torch.zeros(ROWS, COLUMNS, dtype=torch.long), x),
    "diagonal": lambda x: x + x.diagonal().sum().tanh(),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 0))[:, :COLUMNS],
    "detach": lambda x: x * x.detach().sin(),
    "where": lambda x: torch.where(x.detach() > 0.1234, x.sin(), x.cos()),
    "in_place": lambda x: x.clone().mul_(0.5).add_(x),
    "write_row": lambda x: _with_row(x),
    "unbind": lambda x: torch.stack([row * (k + 1) for k, row in enumerate(x.unbind(0))]).tanh(),
    "conv": lambda x: torch.nn.functional.conv1d(
        x[None], torch.ones(ROWS, ROWS, 3, dtype=x.dtype) / 9, padding=1
    )[0],
}

BINARY: dict[str, Op] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": lambda x, y: x.tanh() * y.tanh(),
    "div": lambda x, y: x / (y * y + 1),
    "matmul": lambda x, y: (x @ y.t()).tanh() @ y.sin(),
    "bmm": lambda x, y: torch.einsum("ij,kj->ik", x.sin(), y.sin()) @ x.cos(),
    "row": lambda x, y: x * y[0].tanh(),
    "column": lambda x, y: x + y[:, 1:2].sin(),
    "scalar": lambda x, y: x * y.mean().sin(),
    "cat": lambda x, y: torch.cat([x, y], 1)[:, 2:6],
    "stack": lambda x, y: torch.stack([x, y]).mean(0),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "addcmul": lambda x, y: torch.addcmul(x, y.sin(), x.cos()),
    "atan2": lambda x, y: torch.atan2(x, y * y + 1),
    "hypot": lambda x, y: torch.hypot(x, y.sin() + 2),
    "logaddexp": torch.logaddexp,
    "attention": lambda x, y: torch.nn.functional.scaled_dot_product_attention(
        x[None, None], y[None, None], x[None, None]
    )[0, 0],
    "smooth_l1": lambda x, y: x * torch.nn.functional.mse_loss(x, y).tanh(),
}


def _with_row(x: Tensor) -> Tensor:
    y = x.clone()
    y[1] = x[0].sin()
    return y


def _attention(x: Tensor, y: Tensor) -> Tensor:
    return torch.softmax(x @ y.t() / math.sqrt(COLUMNS), -1) @ x


def _layer_norm(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


# What eager runs instead: it has no second derivative of the one, and in that of the other it takes
# the statistics for constants, so that the third is wrong.
SPELT_OUT: dict[str, Op] = {"attention": _attention, "layer_norm": _layer_norm}
AS_USERS_DO = {**UNARY, **BINARY}
AS_EAGER_CAN = {**AS_USERS_DO, **SPELT_OUT}


def run(ops: dict[str, Op], program: Sequence[Any], results: int, *inputs: Tensor) -> list[Tensor]:
    """Each step takes earlier values, counted from the last; the last few values are returned."""
    values = list(inputs)
    for name, *places in program:
        chosen = [values[-1 - place % len(values)] for place in places]
        values.append(ops[name](*chosen))
    return values[-results:]


place = st.integers(0, 6)
step = st.one_of(
    st.tuples(st.sampled_from(sorted(UNARY)), place),
    st.tuples(st.sampled_from(sorted(BINARY)), place, place),
)


def check_program(program: Sequence[Any], results: int, order: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs = [
        torch.randn(ROWS, COLUMNS, dtype=torch.float64, generator=generator).requires_grad_(needed)
        for needed in (True, True, seed % 2 == 0)
    ]
    check(
        partial(run, AS_USERS_DO, program, results),
        inputs,
        order,
        oracle=partial(run, AS_EAGER_CAN, program, results),
        # Each order multiplies the size of the graph, and kernels take most of the time.
        options=NATIVELY if order < 3 else OP_BY_OP,
    )


LENGTHS = st.integers(5, 40)
PROGRAMS = LENGTHS.flatmap(lambda length: st.lists(step, min_size=length, max_size=length))
QUIETLY = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


@settings(QUIETLY, max_examples=12)
@given(PROGRAMS, st.integers(1, 3), st.sampled_from([1, 2, 2, 3]), st.integers(0, 1000))
def test_random_programs(program: list[Any], results: int, order: int, seed: int) -> None:
    check_program(program[: 40 // order], results, order, seed)


@pytest.mark.slow
@settings(QUIETLY, max_examples=1000)
@given(PROGRAMS, st.integers(1, 3), st.integers(1, 3), st.integers(0, 10**6))
def test_many_random_programs(program: list[Any], results: int, order: int, seed: int) -> None:
    check_program(program, results, order, seed)


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_each_op_alone(name: str) -> None:
    check_program([(name, *([0] if name in UNARY else [0, 1]))], 1, 3, 0)


@pytest.mark.parametrize("name", SPELT_OUT)
def test_what_eager_runs_instead_is_the_same(name: str) -> None:
    places = [0] if name in UNARY else [0, 1]
    inputs = [torch.randn(ROWS, COLUMNS, dtype=torch.float64).requires_grad_() for _ in range(2)]
    compare(
        derivatives(partial(run, AS_EAGER_CAN, [(name, *places)], 1), inputs, 1),
        derivatives(partial(run, AS_USERS_DO, [(name, *places)], 1), inputs, 1),
    )
