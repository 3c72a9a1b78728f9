"""Attention with dropout, which the fused kernels of a GPU know and those of a CPU do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import adjoint
from adjoint.graph.verify import verify
from adjoint.optimize.attention import fuse_attention
from adjoint.options import Options
from adjoint.pipeline import primal
from tests.differentiation import bridged
from tests.dropping_attention import FLASH, attend, chosen_for, registered_kernels
from tests.optimize.test_attention import (
    ALLOWED,
    BATCH,
    HEADS,
    KEY,
    KEYS,
    LOW,
    QUERY,
    ROWS,
    VALUE,
    WIDTH,
    Style,
    fused_calls,
    named,
)
from tests.rewriting import graph_of, targets

aten = torch.ops.aten
DROPOUT = aten.native_dropout.default


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A fused kernel with dropout exists, and torch chooses it."""
    monkeypatch.setattr(F, "scaled_dot_product_attention", chosen_for)
    with registered_kernels():
        yield


def drop(weights: Tensor, p: float = 0.4) -> Tensor:
    """As `F.dropout` on a GPU."""
    return torch.native_dropout(weights, p, True)[0]


def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return drop(torch.softmax(q @ k.mT * 0.3, -1)) @ v


def dropped_in_merged_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    weights = torch.softmax(torch.bmm(q, k.mT).mul(0.3), -1)
    weights = drop(weights.view(BATCH, HEADS, ROWS, KEYS)).view(-1, ROWS, KEYS)
    return torch.bmm(weights, v).view(BATCH, HEADS, ROWS, WIDTH)


def dropped_and_cast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.softmax(q @ k.mT * 0.3, -1, dtype=torch.float64)
    return drop(weights.to(q.dtype)).to(q.dtype) @ v


def dropped_by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = drop(torch.einsum("bhqd,bhkd->bhqk", q, k).mul(0.3).softmax(-1))
    return torch.einsum("bhqk,bhkd->bhqd", weights, v)


def two_orders(run: Style, inputs: Sequence[Tensor]) -> list[Tensor]:
    torch.manual_seed(3)
    out = run(*inputs)
    first = torch.autograd.grad(out.sin().sum(), inputs, create_graph=True)
    total = sum(each.square().sum() for each in first)
    assert isinstance(total, Tensor)
    return [out, *first, *torch.autograd.grad(total, inputs)]


DROPPED = [dropped, dropped_in_merged_heads, dropped_and_cast, dropped_by_einsum]


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("style", DROPPED, ids=named)
def test_dropout_is_part_of_the_call(style: Style) -> None:
    module = graph_of(style, QUERY, KEY, VALUE)
    assert DROPOUT in targets(module)
    fused = fuse_attention(module, [0, 1, 2])
    verify(fused)
    assert not {DROPOUT, aten._softmax.default, aten.bmm.default} & set(targets(fused))
    (call,) = fused.graph.find_nodes(op="call_function", target=FLASH)
    assert call.args[3] == 0.4


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("style", DROPPED, ids=named)
def test_with_dropout_its_derivatives_are_those_of_the_same_draw(style: Style) -> None:
    """Two orders: forward, backward and the backward of that drop the same weights."""
    inputs = [QUERY, KEY, VALUE]
    ours = bridged(style, *inputs, options=Options())
    eager = two_orders(partial(attend, p=0.4, scale=0.3), inputs)
    for one, other in zip(two_orders(ours, inputs), eager, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_with_dropout_and_lengths_that_are_symbols() -> None:
    """Once; the second derivative needs the number of queries."""
    inputs = [QUERY, KEY, VALUE]
    ours = bridged(dropped, *inputs, options=Options(), dynamic=True)
    torch.manual_seed(3)
    first = torch.autograd.grad(ours(*inputs).sin().sum(), inputs, create_graph=True)
    eager = two_orders(partial(attend, p=0.4, scale=0.3), inputs)
    for one, other in zip(first, eager[1:4], strict=True):
        torch.testing.assert_close(one, other)
    with pytest.raises(adjoint.DifferentiationError, match="the number of queries is not constant"):
        torch.autograd.grad(first[0].sum(), inputs)


def dropped_between(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = drop(torch.softmax(q @ k.mT, -1))
    return weights @ drop(v)


def mask_that_is_read(q: Tensor, k: Tensor, v: Tensor) -> Any:
    weights, kept = torch.native_dropout(torch.softmax(q @ k.mT, -1), 0.4, True)
    return weights @ v, kept


NOT_DROPPED: list[tuple[str, Style]] = [
    ("another draw comes before the product", dropped_between),
    ("the mask is read", mask_that_is_read),
    ("twice", lambda q, k, v: drop(drop(torch.softmax(q @ k.mT, -1))) @ v),
    ("everything is dropped", lambda q, k, v: drop(torch.softmax(q @ k.mT, -1), 1.0) @ v),
    ("before the softmax", lambda q, k, v: torch.softmax(drop(q @ k.mT), -1) @ v),
    (
        "weights that something else reads",
        lambda q, k, v: (w := drop(torch.softmax(q @ k.mT, -1))) @ v + w.sum(),
    ),
]


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(("why", "style"), NOT_DROPPED, ids=[why for why, _ in NOT_DROPPED])
def test_dropout_that_is_left_written_out(why: str, style: Style) -> None:
    module = graph_of(style, QUERY, KEY, VALUE)
    assert fuse_attention(module, [0, 1, 2]) is module, why


@pytest.mark.usefixtures("as_on_a_gpu")
def test_draws_of_eager_are_not_replaced() -> None:
    for eager_rng, expected in ((True, 0), (None, 1), (False, 1)):
        module = graph_of(dropped, QUERY, KEY, VALUE)
        for each in primal([0, 1, 2], eager_rng):
            module = each(module)
        assert targets(module).count(FLASH) == expected


def test_a_cpu_has_no_fused_kernel_with_dropout() -> None:
    module = graph_of(dropped, QUERY, KEY, VALUE)
    assert fuse_attention(module, [0, 1, 2]) is module


def dropped_after_low_numbers(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    return drop(torch.softmax(torch.where(allowed, q @ k.mT * 0.3, LOW), -1)) @ v


@pytest.mark.usefixtures("as_on_a_gpu")
def test_equal_weights_of_a_row_that_is_filled_are_dropped_too() -> None:
    allowed = ALLOWED.clone()
    allowed[2] = False
    inputs = [QUERY, KEY, VALUE]
    module = graph_of(dropped_after_low_numbers, *inputs, allowed)
    assert aten._softmax.default not in targets(fuse_attention(module, [0, 1, 2]))
    ours = bridged(dropped_after_low_numbers, *inputs, allowed, options=Options())
    results: list[list[Tensor]] = []
    runs: list[Style] = [partial(attend, p=0.4, scale=0.3), ours]
    for run in runs:
        torch.manual_seed(5)
        out = run(*inputs, allowed)
        results.append([out, *torch.autograd.grad(out.sin().sum(), inputs)])
    for eager, compiled in zip(*results, strict=True):
        # The backward computes weights from a logsumexp in single precision, as on a GPU.
        torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-6)


def weights_of(run: Style, q: Tensor, k: Tensor, like: Tensor) -> Tensor:
    """The weights that `run` uses, by calls with columns of the unit matrix as values."""
    count, width = like.shape[-2:]
    unit = torch.eye(count, dtype=q.dtype, device=q.device)
    found = []
    for start in range(0, count, width):
        torch.manual_seed(3)
        found.append(run(q, k, unit[:, start : start + width].expand(like.shape).contiguous()))
    return torch.cat(found, -1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_two_orders_with_dropout_on_a_gpu(dtype: torch.dtype) -> None:
    """As attention written out with the weights that the kernel drops, in float64, up to what eager
    loses in `dtype`."""
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(2, 4, length, 64, generator=generator).to("cuda", dtype).requires_grad_()
        for length in (128, 192, 192)
    ]

    def style(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.dropout(torch.softmax(q @ k.mT * 0.2, -1), 0.3) @ v

    ours = bridged(style, *inputs, options=Options())
    made, count = fused_calls(lambda: two_orders(ours, inputs))
    assert count == 1
    q, k, v = (each.detach() for each in inputs)
    kept = weights_of(ours, q, k, v) > 0
    assert kept.double().mean().item() == pytest.approx(0.7, abs=0.02)

    def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT * 0.2, -1) * kept / 0.7 @ v

    wanted = two_orders(written_out, [each.detach().double().requires_grad_() for each in inputs])
    eager = two_orders(written_out, inputs)
    for one, other, right in zip(made, eager, wanted, strict=True):
        lost, expected = ((each.double() - right).norm() / right.norm() for each in (one, other))
        assert lost < 4 * expected + 1e-6
