from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

import adjoint
from adjoint.compiler import Compiler
from adjoint.graph.evaluation import evaluate
from adjoint.graph.verify import verify
from adjoint.observing import watching
from adjoint.optimize.attention import FUSED, fuse_attention
from adjoint.options import Options
from adjoint.pipeline import primal
from tests import attention_styles
from tests.differentiation import bridged, check
from tests.rewriting import graph_of, targets

aten = torch.ops.aten
FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
BATCH, HEADS, ROWS, KEYS, WIDTH = 2, 4, 5, 6, 3
LOW = torch.finfo(torch.float64).min
Style = Callable[..., Tensor]


def heads(count: int = HEADS, length: int = KEYS, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + length)
    x = torch.randn(BATCH, count, length, WIDTH, dtype=torch.float64, generator=generator)
    return x.requires_grad_()


QUERY, KEY, VALUE = heads(length=ROWS), heads(seed=1), heads(seed=2)
FEW_KEYS, FEW_VALUES = heads(2, seed=3), heads(2, seed=4)
# Of the keys each query may see some, but not all.
ALLOWED = torch.ones(ROWS, KEYS, dtype=torch.bool).tril(1)
BIAS = torch.randn(BATCH, 1, ROWS, KEYS, dtype=torch.float64)
MERGED = [each.detach().flatten(0, 1).requires_grad_() for each in (QUERY, KEY, VALUE)]


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1), -1) @ v


def scaled_after(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(WIDTH), -1) @ v


def scaled_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((q * WIDTH**-0.5) @ k.transpose(-2, -1), -1) @ v


def scaled_twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((q * 0.5) @ (k * 0.7).mT * 0.9 / 1.1, -1) @ v


def added_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * 0.4 + mask, -1) @ v


def boolean_mask(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1) * 0.4).masked_fill(~allowed, -math.inf)
    return torch.softmax(scores, -1) @ v


def lowest_mask(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    scores = torch.where(allowed, q @ k.transpose(-2, -1) * 0.4, LOW)
    return torch.softmax(scores, -1) @ v


def causal_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    seen = torch.tril(torch.ones(q.shape[-2], k.shape[-2]))
    scores = (q @ k.mT).masked_fill(seen.view(1, 1, ROWS, KEYS) == 0, float("-inf"))
    return F.softmax(scores, dim=-1) @ v


def two_masks(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, allowed: Tensor) -> Tensor:
    scores = (q @ k.mT + bias).masked_fill(~allowed, -math.inf)
    return torch.softmax(scores, -1) @ v


def grouped_queries(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    shape = (BATCH, 2, 2, KEYS, WIDTH)
    k, v = (x[:, :, None].expand(shape).reshape(BATCH, HEADS, KEYS, WIDTH) for x in (k, v))
    weights = F.softmax(torch.matmul(q, k.transpose(2, 3)) * 0.4 + mask, -1, dtype=torch.float64)
    weights = F.dropout(weights.to(q.dtype), p=0.0, training=True)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.einsum("bhqd,bhkd->bhqk", q, k).mul(0.4).softmax(-1)
    return torch.einsum("bhqk,bhkd->bhqd", weights, v)


def by_einsum_over_positions(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = torch.einsum("bqhd,bkhd->bhqk", q, k).mul(0.4).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2)


def merged_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.bmm(F.softmax(torch.bmm(q, k.transpose(1, 2)) / 2, dim=-1), v)


def merged_heads_with_mask(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = torch.bmm(q, k.transpose(1, 2)).view(BATCH, HEADS, ROWS, KEYS) + bias
    weights = F.softmax(scores.view(BATCH * HEADS, ROWS, KEYS), dim=-1)
    out: Tensor = torch.bmm(weights, v).view(BATCH, HEADS, ROWS, WIDTH).transpose(1, 2)
    return out.reshape(BATCH, ROWS, HEADS * WIDTH)


def split_projection(x: Tensor, weight: Tensor) -> Tensor:
    """As small GPTs are written: one product, heads behind a transpose, a causal mask."""
    length, width = x.shape[1:]
    parts = (x @ weight).split(width, 2)
    q, k, v = (part.view(BATCH, length, HEADS, width // HEADS).transpose(1, 2) for part in parts)
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    seen = torch.tril(torch.ones(length, length)).view(1, 1, length, length)
    weights = F.softmax(scores.masked_fill(seen == 0, float("-inf")), dim=-1)
    out: Tensor = (weights @ v).transpose(1, 2).contiguous().view(BATCH, length, width)
    return out


def added_product(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """As with positions that are added to scores by the product itself."""
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), beta=1.0, alpha=0.5)
    weights = F.softmax(scores.view(BATCH, HEADS, ROWS, KEYS), dim=-1)
    return torch.bmm(weights.view(BATCH * HEADS, ROWS, KEYS), v)


def two_ranks(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, mask: Tensor) -> Tensor:
    """One bias is added to merged heads, another to heads with an axis of their own."""
    scores = slopes.baddbmm(q, k.transpose(1, 2), beta=1.0, alpha=0.5)
    scores = scores.view(BATCH, HEADS, ROWS, KEYS) + mask
    weights = F.softmax(scores, dim=-1).view(BATCH * HEADS, ROWS, KEYS)
    return torch.bmm(weights, v)


def turned_key(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(torch.bmm(q, k) / 2, -1).bmm(v)


def one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.t(), -1) @ v


PROJECTED = [
    torch.randn(BATCH, KEYS, 8, dtype=torch.float64).requires_grad_(),
    torch.randn(8, 24, dtype=torch.float64).requires_grad_(),
]
STYLES: list[tuple[Style, list[Any]]] = [
    (plain, [QUERY, KEY, VALUE]),
    (scaled_after, [QUERY, KEY, VALUE]),
    (scaled_before, [QUERY, KEY, VALUE]),
    (scaled_twice, [QUERY, KEY, VALUE]),
    (added_mask, [QUERY, KEY, VALUE, BIAS]),
    (boolean_mask, [QUERY, KEY, VALUE, ALLOWED]),
    (lowest_mask, [QUERY, KEY, VALUE, ALLOWED]),
    (causal_mask, [QUERY, KEY, VALUE]),
    (two_masks, [QUERY, KEY, VALUE, BIAS, ALLOWED]),
    (grouped_queries, [QUERY, FEW_KEYS, FEW_VALUES, BIAS]),
    (by_einsum, [QUERY, KEY, VALUE]),
    (by_einsum_over_positions, [QUERY, KEY, VALUE]),
    (merged_heads, MERGED),
    (merged_heads_with_mask, [*MERGED, BIAS]),
    (split_projection, PROJECTED),
    (added_product, [*MERGED, BIAS.expand(-1, HEADS, -1, -1).reshape(-1, ROWS, KEYS)]),
    (two_ranks, [*MERGED, torch.randn(BATCH * HEADS, 1, KEYS, dtype=torch.float64), BIAS]),
    (turned_key, [MERGED[0], MERGED[1].detach().mT.contiguous().requires_grad_(), MERGED[2]]),
    (one_head, [QUERY[0, 0], KEY[0, 0], VALUE[0, 0]]),
]


def named(style: Any) -> str | None:
    return getattr(style, "__name__", None)


@pytest.mark.parametrize(("style", "inputs"), STYLES, ids=named)
def test_it_becomes_one_call(style: Style, inputs: list[Any]) -> None:
    module = graph_of(style, *inputs)
    wrt = [place for place, each in enumerate(inputs) if each.requires_grad]
    fused = fuse_attention(module, wrt)
    verify(fused)
    assert targets(fused).count(FLASH) == 1
    assert aten._softmax.default not in targets(fused)
    assert aten.bmm.default not in targets(fused)
    (expected, *_), (actual, *_) = evaluate(module, inputs), evaluate(fused, inputs)
    torch.testing.assert_close(actual, expected)


def fused_with(module: fx.GraphModule, given: attention_styles.Style) -> fx.GraphModule:
    """The graph of a style after all passes before differentiation."""
    for each in primal([n for n, x in enumerate(given.inputs) if x.requires_grad]):
        module = each(module)
    verify(module)
    return module


@pytest.mark.parametrize("given", attention_styles.STYLES, ids=lambda given: given.name)
def test_as_people_write_it(given: attention_styles.Style) -> None:
    module = graph_of(given.function, *given.inputs)
    made = fused_with(module, given)
    is_fused = not {aten._softmax.default, aten.bmm.default} & set(targets(made))
    assert is_fused == bool(FUSED & set(targets(made)))
    assert is_fused == (given.name not in attention_styles.WRITTEN_OUT)
    (expected, *_), (actual, *_) = (evaluate(each, given.inputs) for each in (module, made))
    torch.testing.assert_close(actual, expected)


@pytest.mark.slow
@pytest.mark.parametrize("given", attention_styles.STYLES, ids=lambda given: given.name)
def test_as_people_write_it_its_derivatives_are_those_of_eager(
    given: attention_styles.Style,
) -> None:
    check(given.function, given.inputs, 2)


def with_more_heads(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT + bias, -1) @ v


def test_a_bias_with_more_axes_than_the_product_is_left_alone() -> None:
    inputs = [QUERY[0], KEY[0], VALUE[0], BIAS]
    module = graph_of(with_more_heads, *inputs)
    assert fuse_attention(module, [0, 1, 2]) is module


# The derivatives of the others are checked by `make test-all`.
OFTEN = (scaled_after, added_mask, boolean_mask, grouped_queries, by_einsum, merged_heads_with_mask)
DERIVATIVES = [
    pytest.param(style, inputs, marks=[] if style in OFTEN else [pytest.mark.slow])
    for style, inputs in STYLES
]


@pytest.mark.parametrize(("style", "inputs"), DERIVATIVES, ids=named)
def test_its_derivatives_are_those_of_eager(style: Style, inputs: list[Any]) -> None:
    check(style, inputs, 2)


@pytest.mark.parametrize("style", [plain, scaled_after])
def test_forward_and_backward_are_fused(style: Style) -> None:
    seen: list[str] = []

    class Watching(Compiler):
        def plan(self, graph_module: Any, *args: Any) -> Any:
            seen.extend(map(str, targets(graph_module)))
            return super().plan(graph_module, *args)

    run = bridged(style, QUERY, KEY, VALUE)
    object.__setattr__(run.graph, "compiler", Watching(Options()))
    out = run(QUERY, KEY, VALUE)
    torch.autograd.grad(out.sum(), [QUERY, KEY, VALUE])
    assert str(FLASH) in seen
    assert f"{str(FLASH).removesuffix('.default')}_backward.default" in seen
    assert "aten.bmm.default" not in seen


def test_casts_as_autocast_makes_them() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            q, k, v = (x @ w).view(2, 8, 3, 4, 8).permute(2, 0, 3, 1, 4)
            out: Tensor = torch.softmax(q @ k.transpose(-2, -1) * 0.3, -1) @ v
            return out

    inputs = [torch.randn(2, 8, 16).requires_grad_(), torch.randn(16, 96).mul(0.2).requires_grad_()]
    module = graph_of(function, *inputs)
    assert aten._to_copy.default in targets(module)
    fused = fuse_attention(module, [0, 1])
    assert targets(fused).count(FLASH) == 1
    expected, actual = evaluate(module, inputs)[0], evaluate(fused, inputs)[0]
    assert actual.dtype == expected.dtype == torch.bfloat16
    # Written out, scores and weights are rounded to the 8 bits of bfloat16 on the way.
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)


def with_a_wider_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = q @ k.mT
    scores += bias
    return torch.softmax(scores.float(), -1).type_as(v) @ v


def with_a_wider_number(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = (q @ k.mT).float().masked_fill(mask > 0, torch.finfo(torch.float32).min)
    return torch.softmax(scores.to(q.dtype), -1) @ v


def test_scores_that_are_as_narrow_as_the_product_after_a_wider_bias() -> None:
    """As under autocast, whose products are narrow, and biases are not."""
    inputs = [each.detach().bfloat16() for each in (QUERY, KEY, VALUE)]
    inputs.append(BIAS.float())
    module = graph_of(with_a_wider_bias, *inputs)
    fused = fuse_attention(module)
    assert targets(fused).count(FLASH) == 1
    expected, actual = evaluate(module, inputs)[0], evaluate(fused, inputs)[0]
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
    # The number that fills would be infinite in the narrow dtype.
    module = graph_of(with_a_wider_number, *inputs)
    assert fuse_attention(module) is module


def test_masks_in_other_shapes_and_lengths_that_are_symbols() -> None:
    names = ("groups_with_masks", "one_head_for_rows_of_all", "mask_that_is_subtracted")
    for given in attention_styles.STYLES:
        if given.name in names:
            wrt = [n for n, each in enumerate(given.inputs) if each.requires_grad]
            module = graph_of(given.function, *given.inputs, dynamic=True)
            assert targets(fuse_attention(module, wrt)).count(FLASH) == 1, given.name
            check(given.function, given.inputs, 1)


def test_lengths_that_are_symbols() -> None:
    module = graph_of(scaled_after, QUERY, KEY, VALUE, dynamic=True)
    fused = fuse_attention(module, [0, 1, 2])
    assert targets(fused).count(FLASH) == 1
    check(scaled_after, [QUERY, KEY, VALUE], 1)


def test_a_row_of_which_a_mask_leaves_nothing_is_nan_as_in_eager() -> None:
    nothing = ALLOWED.clone()
    nothing[2] = False
    bias = torch.where(nothing, 0.5, -math.inf).double()
    for style, mask in ((boolean_mask, nothing), (added_mask, bias)):
        inputs = [QUERY, KEY, VALUE, mask]
        assert FLASH in targets(fuse_attention(graph_of(style, *inputs), [0, 1, 2]))
        results = []
        for run in (style, bridged(style, *inputs)):
            out = run(*inputs)
            results.append([out, *torch.autograd.grad(out[0, 0, :2].sum(), inputs[:3])])
        for eager, ours in zip(*results, strict=True):
            torch.testing.assert_close(ours, eager, equal_nan=True)
        assert results[0][0].isnan().any()


def test_a_row_that_is_filled_with_a_low_number_is_the_mean_of_the_values() -> None:
    nothing = ALLOWED.clone()
    nothing[2] = False
    check(lowest_mask, [QUERY, KEY, VALUE, nothing], 2)
    check(boolean_mask, [QUERY, KEY, VALUE, ALLOWED], 2)


def added_and_filled(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, allowed: Tensor) -> Tensor:
    scores = (q @ k.mT + bias).masked_fill(~allowed, -1e9)
    return torch.softmax(scores, -1) @ v


def test_a_row_of_which_a_bias_and_a_mask_leave_nothing() -> None:
    """As with padding on the left: what the mask fills has equal weights, and nothing is NaN."""
    bias = torch.zeros(ROWS, KEYS, dtype=torch.float64)
    bias.masked_fill_(torch.ones(ROWS, KEYS).triu(1).bool(), -math.inf)
    padded = torch.ones(KEYS, dtype=torch.bool)
    padded[:2] = False
    inputs = [QUERY, KEY, VALUE, bias, padded]
    assert FLASH in targets(fuse_attention(graph_of(added_and_filled, *inputs), [0, 1, 2]))
    assert added_and_filled(*inputs).isfinite().all()
    check(added_and_filled, inputs, 2)


def filled_twice(q: Tensor, k: Tensor, v: Tensor, one: Tensor, other: Tensor) -> Tensor:
    scores = (q @ k.mT).masked_fill(one, -1e9).masked_fill(other, LOW)
    return torch.softmax(scores, -1) @ v


def test_two_numbers_that_fill_are_two_masks() -> None:
    """In a row that they fill together, only what the higher one fills has weights."""
    inputs = [QUERY, KEY, VALUE, ~ALLOWED, ALLOWED]
    module = graph_of(filled_twice, *inputs)
    assert fuse_attention(module, [0, 1, 2]) is module


def returned_weights(q: Tensor, k: Tensor, v: Tensor) -> Any:
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v, weights


def returned_scores(q: Tensor, k: Tensor, v: Tensor) -> Any:
    scores = q @ k.mT
    return torch.softmax(scores, -1) @ v, scores


def filled_before_added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.mT).masked_fill(~ALLOWED, -1e12)
    return torch.softmax(scores + BIAS, -1) @ v


def filled_by_index(scores: Tensor, rows: Tensor) -> Tensor:
    scores[:, :, rows] = -math.inf
    return scores


LEFT_ALONE: list[tuple[str, Style]] = [
    ("weights are returned", returned_weights),
    ("scores are returned", returned_scores),
    ("dropout", lambda q, k, v: F.dropout(torch.softmax(q @ k.mT, -1), 0.5) @ v),
    ("over queries", lambda q, k, v: torch.softmax(q @ k.mT, -2) @ v),
    ("not over keys", lambda q, k, v: torch.softmax(q @ k.mT, -1).mT @ q),
    ("a square of scores", lambda q, k, v: torch.softmax((q @ k.mT) ** 2, -1) @ v),
    ("a scale of each key", lambda q, k, v: torch.softmax(q @ k.mT * BIAS[:, :, :1], -1) @ v),
    (
        "a mask that a scale makes overflow",
        lambda q, k, v: torch.softmax((q @ k.mT).masked_fill(~ALLOWED, LOW) * 2, -1) @ v,
    ),
    (
        "a mask that a negative scale makes high",
        lambda q, k, v: torch.softmax((q @ k.mT).masked_fill(~ALLOWED, LOW) * -2, -1) @ v,
    ),
    (
        "a mask that a scale makes weigh",
        lambda q, k, v: torch.softmax((q @ k.mT).masked_fill(~ALLOWED, -1e9) * 1e-8, -1) @ v,
    ),
    (
        "a mask that is scaled by a tensor",
        lambda q, k, v: torch.softmax((q @ k.mT + BIAS) * q.sum(), -1) @ v,
    ),
    ("rows of two softmaxes", lambda q, k, v: torch.softmax(q @ k.mT, -3) @ v),
    (
        "a fill that has weight",
        lambda q, k, v: (q @ k.mT).masked_fill(~ALLOWED, -9).softmax(-1) @ v,
    ),
    (
        "heads are permuted",
        lambda q, k, v: torch.softmax(q @ k.mT, -1).transpose(0, 1)[:2, :2] @ v[:, :2],
    ),
    ("weights are scaled", lambda q, k, v: (torch.softmax(q @ k.mT, -1) * 2) @ v),
    ("a low number that is added to", filled_before_added),
    (
        "a mask that a subtraction makes high",
        lambda q, k, v: torch.softmax(BIAS - (q @ k.mT).masked_fill(~ALLOWED, -1e9), -1) @ v,
    ),
    (
        "weights that another mask fills",
        lambda q, k, v: (
            (q @ k.mT).masked_fill(~ALLOWED, -1e9).softmax(-1).masked_fill(BIAS > 0, 0) @ v
        ),
    ),
    (
        "weights that alone are filled",
        lambda q, k, v: (q @ k.mT).softmax(-1).masked_fill(~ALLOWED, 0) @ v,
    ),
    (
        "a mask of rows that an index fills",
        lambda q, k, v: filled_by_index(q @ k.mT, ALLOWED[:, 0]).softmax(-1) @ v,
    ),
    ("sigmoid", lambda q, k, v: torch.sigmoid(q @ k.mT) @ v),
]


@pytest.mark.parametrize(("why", "style"), LEFT_ALONE, ids=[why for why, _ in LEFT_ALONE])
def test_what_is_left_alone(why: str, style: Style) -> None:
    module = graph_of(style, QUERY, KEY, VALUE)
    assert fuse_attention(module, [0, 1, 2]) is module, why


def attended(x: Tensor) -> Tensor:
    q = x.view(2, 2, 3, 2)
    return plain(q, q.sin(), q.cos())


def squares(x: Tensor) -> Tensor:
    return attended(x).square().sum()


def fused_calls(call: Callable[[], Any]) -> tuple[Any, int]:
    """The result of a call, and how many fused forward calls a program of it has."""
    found = 0

    def watch(event: Any) -> None:
        nonlocal found
        if getattr(event, "stage", None) == "narrow-masks":
            found = max(found, sum(each in FUSED for each in targets(event.value)))

    with watching(watch):
        return call(), found


TRANSFORMS: list[tuple[str, int, Callable[[Any, Tensor], Any]]] = [
    ("grad", 1, lambda of, x: of.grad(squares)(x)),
    ("vjp", 1, lambda of, x: of.vjp(attended, x)[1](torch.ones(2, 2, 3, 2, dtype=x.dtype))),
    ("jvp", 1, lambda of, x: of.jvp(attended, (x,), (x.cos(),))),
    # Rows of a Jacobian are a batch, for which the fused backward is written out again.
    ("jacrev", 0, lambda of, x: of.jacrev(attended)(x)),
    # At higher orders what is written out shares its weights, and fused operators cannot.
    ("grad of grad", 0, lambda of, x: of.grad(lambda x: of.grad(squares)(x).cos().sum())(x)),
    ("hessian", 0, lambda of, x: of.hessian(squares)(x)),
    ("jacrev of grad", 0, lambda of, x: of.jacrev(of.grad(squares))(x)),
    ("vmap of grad", 0, lambda of, x: of.vmap(of.grad(squares))(torch.stack([x, x.sin()]))),
]


@pytest.mark.parametrize(("name", "fused", "call"), TRANSFORMS, ids=[t[0] for t in TRANSFORMS])
def test_under_a_transform(name: str, fused: int, call: Callable[[Any, Tensor], Any]) -> None:
    """What is differentiated once is fused; a warning that `torch.func` takes over is an error."""
    x = torch.randn(24, dtype=torch.float64)
    result, found = fused_calls(lambda: call(adjoint, x))
    torch.testing.assert_close(result, call(torch.func, x))
    assert found == fused, name


def test_a_derivative_with_a_fused_operator_under_vmap() -> None:
    x = torch.randn(24, dtype=torch.float64)
    rows = torch.randn(3, 2, 2, 3, 2, dtype=torch.float64)
    ours, theirs = (of.vjp(attended, x)[1] for of in (adjoint, torch.func))
    torch.testing.assert_close(torch.func.vmap(ours)(rows), torch.func.vmap(theirs)(rows))


def test_a_mask_with_a_gradient_is_left_alone() -> None:
    inputs = [QUERY, KEY, VALUE, BIAS.clone().requires_grad_()]
    module = graph_of(added_mask, *inputs)
    assert fuse_attention(module, [0, 1, 2, 3]) is module
    check(added_mask, inputs, 2)
    # Without one it is fused.
    assert FUSED & set(targets(fuse_attention(module, [0, 1, 2])))
