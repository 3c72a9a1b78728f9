"""The derivative of any subset of results, of any order, follows from what the forward saved.

Graphs run op by op: what is saved does not depend on what runs them.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.differentiate.test_random_derivatives import BINARY, QUIETLY, UNARY, run
from tests.differentiation import OP_BY_OP, bridged, leaves_like

# Ops of any size, among them some with several results, and some that autocast treats in its way.
OPS: dict[str, Any] = {
    **{
        name: op
        for name, op in UNARY.items()
        if name
        not in {
            "layer_norm",
            "logsumexp",
            "transpose",
            "select",
            "gather",
            "index_add",
            "scatter_add",
            "pad",
            "conv",
            "unbind",
        }
    },
    **{name: BINARY[name] for name in BINARY if name not in {"cat", "column", "attention"}},
    "norm_of_rows": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "columns": lambda x: torch.cat([x[:, 1:], x[:, :1].sin()], -1),
    "sorted": lambda x: x.sort(1).values * x.sort(1).indices,
    "highest": lambda x: x - x.max(1, keepdim=True).values,
    "moments": lambda x: (
        x * torch.var_mean(x, 1, keepdim=True)[0] + torch.var_mean(x, 1, keepdim=True)[1]
    ),
    "masked": lambda x: x.masked_fill(x.detach() > 0.3, 0.5).index_put(
        (torch.arange(x.shape[0]) > 0,), x[1:].sin()
    ),
    "linear": lambda x, y: torch.nn.functional.linear(x, y, y[:, 0]) @ y,
    "probabilities": lambda x, y: torch.nn.functional.linear(x, y).log_softmax(-1) @ y,
    "loss": lambda x, y: (
        x
        * torch.nn.functional.cross_entropy(
            torch.nn.functional.linear(x, y), torch.zeros(x.shape[0], dtype=torch.long)
        ).tanh()
    ),
    "batch_norm": lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
}
TWO = [*BINARY, "linear", "probabilities", "loss"]
place = st.integers(0, 6)
step = st.sampled_from(sorted(OPS)).flatmap(
    lambda name: st.tuples(st.just(name), *[place] * (2 if name in TWO else 1))
)
PROGRAMS = st.lists(step, min_size=3, max_size=12)
RESULTS = 3


def check_subsets(program: Sequence[Any], dtype: str, dynamic: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(4, 5), (6, 3)] if dynamic else [(4, 5)]
    # Halves are rounded in other places.
    tolerance = 0.1 if dtype == "autocast" else 1e-7
    kind = torch.float32 if dtype == "autocast" else torch.float64
    function = partial(run, OPS, program, RESULTS)
    compiled = None
    for shape in shapes:
        inputs = [
            torch.randn(shape, dtype=kind, generator=generator).requires_grad_() for _ in "xyz"
        ]
        mine = leaves_like(inputs)
        mode: Any = (
            torch.autocast("cpu", torch.bfloat16)
            if dtype == "autocast"
            else contextlib.nullcontext()
        )
        with mode:
            expected, compiled = (
                function(*inputs),
                compiled or bridged(function, *mine, dynamic=dynamic, options=OP_BY_OP),
            )
            actual = compiled(*mine)
        for count in range(1, RESULTS + 1):
            for chosen in itertools.combinations(range(RESULTS), count):
                pairs = [(expected, inputs), (actual, mine)]
                theirs, ours = (
                    subset_derivatives([outs[i] for i in chosen], leaves, seed)
                    for outs, leaves in pairs
                )
                for order, (a, b) in enumerate(zip(ours, theirs, strict=True), 1):
                    assert_near(a, b, tolerance * order, f"{chosen}, order {order}")


def assert_near(ours: list[Tensor], theirs: list[Tensor], tolerance: float, what: str) -> None:
    for mine, wanted in zip(ours, theirs, strict=True):
        off = float((mine - wanted).abs().max()) / (1 + float(wanted.abs().max()))
        assert off <= tolerance, f"{what}: off by {off}"


def subset_derivatives(
    heads: Sequence[Tensor], leaves: list[Tensor], seed: int
) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    found: list[list[Tensor]] = []
    for _ in range(2):
        # One that does not require grad has a direction all the same: on one side it may.
        directions = [
            torch.randn(head.shape, dtype=torch.float64, generator=generator).to(head.dtype)
            for head in heads
        ]
        pairs = zip(heads, directions, strict=True)
        chosen = [(h, d) for h, d in pairs if h.requires_grad]
        gradients: list[Tensor | None] = [None] * len(leaves)
        if chosen:
            outputs, cotangents = zip(*chosen, strict=True)
            gradients = list(
                torch.autograd.grad(
                    outputs, leaves, cotangents, create_graph=True, allow_unused=True
                )
            )
        heads = [
            torch.zeros_like(leaf) if gradient is None else gradient
            for leaf, gradient in zip(leaves, gradients, strict=True)
        ]
        found.append([head.detach() for head in heads])
    return found


# Shrinking takes many times as long as finding.
FOUND = settings(QUIETLY, phases=[Phase.generate])


@settings(FOUND, max_examples=4)
@given(PROGRAMS, st.sampled_from(["float64", "autocast"]), st.booleans(), st.integers(0, 1000))
def test_random_subsets(program: list[Any], dtype: str, dynamic: bool, seed: int) -> None:
    check_subsets(program, dtype, dynamic, seed)


@pytest.mark.slow
@settings(FOUND, max_examples=600)
@given(PROGRAMS, st.sampled_from(["float64", "autocast"]), st.booleans(), st.integers(0, 10**6))
def test_many_random_subsets(program: list[Any], dtype: str, dynamic: bool, seed: int) -> None:
    check_subsets(program, dtype, dynamic, seed)


def test_a_loss_and_logits_under_autocast() -> None:
    """The loss alone is differentiated, of whose softmax no part is saved."""
    torch.manual_seed(0)
    inputs = [torch.randn(4, 8), torch.randn(3, 8), torch.randn(3)]
    labels = torch.tensor([0, 1, 2, 0])

    def function(x: Tensor, w: Tensor, b: Tensor) -> Any:
        z = torch.nn.functional.linear(x, w, b)
        return torch.nn.functional.cross_entropy(z, labels), z

    mine, theirs = ([each.clone().requires_grad_() for each in inputs] for _ in range(2))
    with torch.autocast("cpu", torch.bfloat16):
        loss, logits = bridged(function, *mine)(*mine)
        wanted = function(*theirs)
    for head, other in zip((loss, logits.sum()), (wanted[0], wanted[1].sum()), strict=True):
        ours = torch.autograd.grad(head, mine, retain_graph=True)
        torch.testing.assert_close(ours, torch.autograd.grad(other, theirs, retain_graph=True))
