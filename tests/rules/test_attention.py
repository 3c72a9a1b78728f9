import math
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attention

from adjoint.rules.registry import COMPOSITIONS
from tests.differentiation import bridged
from tests.dropping_attention import BACKWARD, drawn_seed, kept, registered_kernels
from tests.rules.rows import is_right, real, targets

aten = torch.ops.aten


def arguments(heads: int = 2) -> list[torch.Tensor]:
    return [real(1, 2, 3, 4, seed=1), real(1, heads, 4, 4, seed=2), real(1, heads, 4, 4, seed=3)]


ALLOWED = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 0]], dtype=torch.bool)
BIAS = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(1, 1, 3, 4)


@pytest.mark.parametrize(
    "options",
    [{}, {"is_causal": True, "scale": 0.3}, {"attn_mask": ALLOWED}, {"attn_mask": BIAS}],
    ids=["plain", "causal", "mask", "bias"],
)
def test_flash_attention_on_the_cpu_has_a_second_derivative(options: Any) -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attention(q, k, v, **options)

    kernel = aten._scaled_dot_product_flash_attention_for_cpu.default
    assert kernel in targets(bridged(function, *arguments()).captured)
    is_right(function, *arguments())


def expected(
    bias: torch.Tensor | None, causal: torch.Tensor | None, scale: float | None = None
) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """Out, cotangents of q, k, v and the cotangent of the result, by autograd."""
    q, k, v = arguments()
    factor = 1 / math.sqrt(4) if scale is None else scale
    scores = q @ k.transpose(-2, -1) * factor
    if bias is not None:
        scores = scores + bias
    if causal is not None:
        scores = scores.masked_fill(~causal, -math.inf)
    out = scores.softmax(-1) @ v
    g = real(*out.shape, seed=9).detach()
    return out, list(torch.autograd.grad(out, [q, k, v], g)), g


def lower(shift: int = 0) -> torch.Tensor:
    return torch.ones(3, 4, dtype=torch.bool).tril(shift)


NOTHING = torch.zeros(0)


def test_the_backward_of_each_cuda_kernel_is_that_of_attention() -> None:
    out, wanted, g = expected(None, lower(1))
    made = COMPOSITIONS[aten._scaled_dot_product_flash_attention_backward.default](
        g, *arguments(), out, NOTHING, None, None, 3, 4, 0.0, True, NOTHING, NOTHING
    )
    torch.testing.assert_close(list(made), wanted)

    out, wanted, g = expected(BIAS, lower())
    made = COMPOSITIONS[aten._scaled_dot_product_efficient_attention_backward.default](
        g, *arguments(), BIAS, out, NOTHING, NOTHING, NOTHING, 0.0, [True] * 4, True
    )
    torch.testing.assert_close(list(made[:3]), wanted)
    assert made[3].shape == BIAS.shape

    made = COMPOSITIONS[aten._scaled_dot_product_cudnn_attention_backward.default](
        g, *arguments(), out, NOTHING, NOTHING, NOTHING, BIAS, None, None, 3, 4, 0.0, True
    )
    torch.testing.assert_close(list(made), wanted)

    made = COMPOSITIONS[aten._scaled_dot_product_fused_attention_overrideable_backward.default](
        *(g, *arguments(), BIAS, [True] * 4, out, NOTHING, None, None, 3, 4, 0.0, True),
        *(NOTHING, NOTHING),
    )
    torch.testing.assert_close(list(made[:3]), wanted)


def test_sequences_may_lie_one_after_the_other() -> None:
    out, wanted, g = expected(None, lower(1))

    def packed(each: torch.Tensor) -> torch.Tensor:
        """(batch, heads, length, width) twice over, as (2 length, heads, width)."""
        return torch.cat([each[0], each[0]], 1).transpose(0, 1)

    starts = torch.tensor([0, 3, 6]), torch.tensor([0, 4, 8])
    made = COMPOSITIONS[aten._flash_attention_backward.default](
        *(packed(g), *map(packed, arguments()), packed(out), NOTHING, *starts, 3, 4, 0.0, True),
        *(NOTHING, NOTHING),
    )
    torch.testing.assert_close(list(made), [packed(each) for each in wanted])

    top_left = 1
    out, wanted, g = expected(None, lower())
    made = COMPOSITIONS[aten._efficient_attention_backward.default](
        *(packed(g), *map(packed, arguments()), None, packed(out), *starts, 3, 4, NOTHING, 0.0),
        *(NOTHING, NOTHING, top_left, False),
    )
    torch.testing.assert_close(list(made[:3]), [packed(each) for each in wanted])


def test_heads_of_keys_may_serve_groups_of_queries() -> None:
    q, k, v = arguments(heads=1)
    out = attention(q, k.expand(-1, 2, -1, -1), v.expand(-1, 2, -1, -1))
    wanted = torch.autograd.grad(out.sum(), [q, k, v])
    made = COMPOSITIONS[aten._scaled_dot_product_flash_attention_for_cpu_backward.default](
        torch.ones_like(out), q, k, v, out, NOTHING, 0.0, False
    )
    torch.testing.assert_close(made, wanted)


def test_dropped_weights_are_refused() -> None:
    backward = COMPOSITIONS[aten._scaled_dot_product_flash_attention_for_cpu_backward.default]
    out = torch.zeros(1, 2, 3, 4)
    with pytest.raises(NotImplementedError, match="dropped"):
        backward(out, *arguments(), out, NOTHING, 0.5, False)


@pytest.mark.parametrize(
    ("op", "named", "why"),
    [
        (aten._flash_attention_backward.default, {"window_size_left": 3}, "a window of flash"),
        (aten._efficient_attention_backward.default, {"window_size": 3}, "a window of efficient"),
        (
            aten._scaled_dot_product_cudnn_attention_backward.default,
            {"cum_seq_q": torch.tensor([0, 1, 3])},
            "sequences of several lengths in one cuDNN attention call",
        ),
    ],
)
def test_kernels_of_other_scores_are_refused(op: Any, named: dict[str, Any], why: str) -> None:
    """Their derivatives are other ones than those of dense attention without a window."""
    given = [
        named.get(each.name, 0.0 if each.name == "dropout_p" else None)
        for each in op._schema.arguments
    ]
    out = torch.zeros(1, 2, 3, 4)
    given[:4] = [out, *arguments()]
    with pytest.raises(NotImplementedError, match=why):
        COMPOSITIONS[op](*given)


@pytest.mark.parametrize("bias", [None, BIAS], ids=["plain", "bias"])
@pytest.mark.parametrize("kernel", BACKWARD)
def test_dropped_weights_are_those_that_the_kernel_drops(
    kernel: str, bias: torch.Tensor | None
) -> None:
    """The composition gives what the kernel gives; values have fewer elements than queries are."""
    op = BACKWARD[kernel]
    names = [each.name for each in op._schema.arguments]
    if "attn_bias" not in names and bias is not None:
        return
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, 3, length, 3, generator=generator, dtype=torch.float64)
        for length in (8, 5, 5)
    )
    mask = None if bias is None else torch.linspace(-1, 1, 40, dtype=torch.float64).view(8, 5)
    scores = q @ k.mT * 0.3 if mask is None else q @ k.mT * 0.3 + mask
    seed = drawn_seed()
    weights = scores.softmax(-1) * kept(seed, scores.shape, 0.4) / 0.6
    given = {
        "query": q,
        "key": k,
        "value": v,
        "out": weights @ v,
        "attn_bias": mask,
        "logsumexp": scores.logsumexp(-1),
        "philox_seed": seed,
        "philox_offset": seed[0],
        "dropout_p": 0.4,
        "scale": 0.3,
        "is_causal": False,
        "grad_input_mask": [True] * 4,
        "cum_seq_q": None,
        "cum_seq_k": None,
        "max_q": 8,
        "max_k": 5,
    }
    g = torch.randn(2, 3, 8, 3, generator=generator, dtype=torch.float64)
    with registered_kernels():
        args = [g, *(given[name] for name in names[1:] if name != "scale")]
        wanted = op(*args, scale=0.3)
        made = COMPOSITIONS[op](*args, scale=0.3)
    torch.testing.assert_close(list(made[:3]), list(wanted[:3]))
    if mask is not None and "grad_input_mask" in names:
        torch.testing.assert_close(made[3], wanted[3].sum((0, 1)) / 0.3)
