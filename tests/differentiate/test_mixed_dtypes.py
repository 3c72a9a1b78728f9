"""Operators given several dtypes at once, as autocast does, and batches of nothing, as in eager."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import adjoint
from adjoint.options import Options
from tests.differentiation import bridged
from tests.versions import TORCH

# What eager says of variances of nothing, of the mean of `kl_div`, and of other kernels.
pytestmark = [
    pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss"),
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight"),
    pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0"),
]

HALVES = (torch.bfloat16, torch.float16)
WIDE = torch.float32

# How far results may be apart, relative to 1 + |eager's|: halves are rounded at other places.
ROUNDED = {torch.bfloat16: 4e-2, torch.float16: 4e-3, torch.float32: 2e-5, torch.float64: 1e-9}

Case = tuple[Callable[..., Any], list[tuple[int, ...]]]

NORMALIZATIONS: dict[str, Case] = {
    "layer": (lambda x, w, b: F.layer_norm(x, (8,), w, b), [(6, 8), (8,), (8,)]),
    "layer without bias": (lambda x, w: F.layer_norm(x, (8,), w), [(6, 8), (8,)]),
    "group": (lambda x, w, b: F.group_norm(x, 2, w, b), [(3, 4, 8), (4,), (4,)]),
    "group without bias": (lambda x, w: F.group_norm(x, 2, w), [(3, 4, 8), (4,)]),
    "batch": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), [(6, 4), (4,), (4,)]),
    "instance": (lambda x, w, b: F.instance_norm(x, None, None, w, b), [(2, 4, 8), (4,), (4,)]),
    "rms": (lambda x, w: F.rms_norm(x, (8,), w), [(6, 8), (8,)]),
}
LOSSES: dict[str, Case] = {
    "mse": (F.mse_loss, [(4, 3), (4, 3)]),
    "mse of each": (lambda x, y: F.mse_loss(x, y, reduction="none"), [(4, 3), (4, 3)]),
    "smooth l1": (F.smooth_l1_loss, [(4, 3), (4, 3)]),
    "l1": (F.l1_loss, [(4, 3), (4, 3)]),
    "logits": (F.binary_cross_entropy_with_logits, [(4, 3), (4, 3)]),
    "margin": (lambda x, y: F.soft_margin_loss(x, y.detach().sign()), [(4, 3), (4, 3)]),
    "kl": (lambda x, y: F.kl_div(x, y.softmax(-1)), [(4, 3), (4, 3)]),
    "poisson": (F.poisson_nll_loss, [(4, 3), (4, 3)]),
    "cosine": (F.cosine_similarity, [(4, 3), (4, 3)]),
    "distance": (F.pairwise_distance, [(4, 3), (4, 3)]),
}


def compare(function: Callable[..., Any], inputs: list[Tensor], options: Options) -> None:
    """The value and the gradients, for a cotangent that is random."""
    mine = [each.detach().requires_grad_(each.is_floating_point()) for each in inputs]
    theirs = [each.detach().requires_grad_(each.is_floating_point()) for each in inputs]
    expected = function(*theirs)
    cotangent = torch.rand(expected.shape, generator=torch.Generator().manual_seed(0))
    actual = bridged(function, *mine, options=options)(*mine)
    pairs = [(actual, expected)]
    gradients = [
        torch.autograd.grad(out, given, cotangent.to(out.dtype), allow_unused=True)
        for out, given in ((actual, mine), (expected, theirs))
    ]
    pairs += list(zip(*gradients, strict=True))
    for one, other in pairs:
        if other is None:
            assert one is None
            continue
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        worst = max(ROUNDED[each.dtype] for each in (*inputs, other) if each.dtype in ROUNDED)
        gap = (one.double() - other.double()).abs() / (1 + other.double().abs())
        assert bool(((gap <= worst) | (one.isnan() & other.isnan())).all()), (one, other)


TARGETS = pytest.mark.parametrize("target", ["native", "reference"])


@TARGETS
@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_parameters_in_single_precision(name: str, half: torch.dtype, target: Any) -> None:
    function, shapes = NORMALIZATIONS[name]
    torch.manual_seed(0)
    inputs = [torch.randn(shape).to(WIDE if i else half) for i, shape in enumerate(shapes)]
    compare(function, inputs, Options(target=target))


@TARGETS
@pytest.mark.parametrize("dtypes", [*itertools.permutations((torch.bfloat16, WIDE))], ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_predictions_and_targets(name: str, dtypes: tuple[Any, Any], target: Any) -> None:
    function, shapes = LOSSES[name]
    torch.manual_seed(0)
    inputs = [torch.randn(s).to(dtype) for s, dtype in zip(shapes, dtypes, strict=True)]
    if TORCH < (2, 13) and name in ("mse", "mse of each", "logits"):
        pytest.skip("torch 2.11 returns another dtype, or refuses it")
    compare(function, inputs, Options(target=target))


EMPTY: dict[str, Callable[..., Any]] = {
    "mean": lambda x: x.mean(),
    "mean of rows": lambda x: x.mean(0),
    "sum": lambda x: x.sum(),
    "variance": lambda x: x.var(),
    "deviation of rows": lambda x: x.std(0),
    "norm": lambda x: x.norm(),
    "norm of rows": lambda x: torch.linalg.vector_norm(x, dim=1),
    "softmax": lambda x: x.softmax(-1),
    "softmax of rows": lambda x: x.softmax(0),
    "logsumexp": lambda x: x.logsumexp(0),
    "prod": lambda x: x.prod(),
    "cumsum": lambda x: x.cumsum(0),
    "layer norm": lambda x: F.layer_norm(x, (3,)),
    "rms norm": lambda x: F.rms_norm(x, (3,)),
    "group norm": lambda x: F.group_norm(x, 3),
    "mse": lambda x: F.mse_loss(x, torch.ones_like(x)),
    "mse of each": lambda x: F.mse_loss(x, torch.ones_like(x), reduction="none"),
    "l1": lambda x: F.l1_loss(x, torch.ones_like(x)),
    "smooth l1": lambda x: F.smooth_l1_loss(x, torch.ones_like(x)),
    "huber": lambda x: F.huber_loss(x, torch.ones_like(x)),
    "logits": lambda x: F.binary_cross_entropy_with_logits(x, torch.ones_like(x)),
    "probabilities": lambda x: F.binary_cross_entropy(x.sigmoid(), torch.ones_like(x)),
    "soft margin": lambda x: F.soft_margin_loss(x, torch.ones_like(x)),
    "kl": lambda x: F.kl_div(x, torch.ones_like(x)),
    "kl of a batch": lambda x: F.kl_div(x, torch.ones_like(x), reduction="sum"),
    "poisson": lambda x: F.poisson_nll_loss(x, torch.ones_like(x)),
    "cross entropy": lambda x: F.cross_entropy(x, x.detach().sum(1).long()),
    "smoothed": lambda x: F.cross_entropy(x, x.detach().sum(1).long(), label_smoothing=0.1),
    "probabilities of classes": lambda x: F.cross_entropy(x, torch.ones_like(x)),
    "nll": lambda x: F.nll_loss(x, x.detach().sum(1).long()),
    "hinge": lambda x: F.hinge_embedding_loss(x, torch.ones_like(x)),
    "margin": lambda x: F.margin_ranking_loss(x, x * 2, torch.ones_like(x)),
    "cosine": lambda x: F.cosine_embedding_loss(x, x * 2, x.detach().sum(1)),
    "triplet": lambda x: F.triplet_margin_loss(x, x * 2, x * 3),
    # Eager's mean and sum of no losses are memory that was never written.
    "many margins": lambda x: F.multi_margin_loss(x, x.detach().sum(1).long(), reduction="none"),
    "many labels": lambda x: F.multilabel_margin_loss(x, x.detach().long(), reduction="none"),
    "soft labels": lambda x: F.multilabel_soft_margin_loss(x, torch.ones_like(x)),
    "distance": lambda x: F.pairwise_distance(x, x * 2),
    "similarity": lambda x: F.cosine_similarity(x, x * 2),
    "normalize": lambda x: F.normalize(x),
    "product": lambda x: x @ x.t(),
    "linear": lambda x: F.linear(x, torch.ones(2, 3, dtype=x.dtype)),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "median": lambda x: x.median(),
    "convolution": lambda x: F.conv1d(x[:, None], torch.ones(2, 1, 2, dtype=x.dtype)),
    "pool": lambda x: F.avg_pool1d(x[:, None], 2),
    "embedding": lambda x: F.embedding(x.detach().long(), torch.ones(4, 2, dtype=x.dtype)) * 1,
    "gelu": lambda x: F.gelu(x) / x.shape[1],
    "glu": lambda x: F.glu(torch.cat([x, x], 1)),
    "cdist": lambda x: torch.cdist(x, x),
    "interpolate": lambda x: F.interpolate(x[:, None], size=5),
    "interpolate linearly": lambda x: F.interpolate(x[:, None], size=5, mode="linear"),
    "interpolate images": lambda x: F.interpolate(x[:, None, None], size=(5, 4), mode="bilinear"),
    "interpolate smoothly": lambda x: F.interpolate(x[:, None, None], size=(5, 4), mode="bicubic"),
}


def outcome(function: Callable[..., Any], x: Tensor) -> Any:
    """Value and gradient; None if the function refuses."""
    x = x.detach().requires_grad_()
    try:
        out = function(x)
    except (RuntimeError, ValueError, IndexError):
        return None
    if not out.requires_grad:
        return (out,)
    return out, *torch.autograd.grad(out, x, torch.ones_like(out))


@TARGETS
@pytest.mark.parametrize("name", EMPTY)
def test_batches_of_nothing(name: str, target: Any) -> None:
    function, x = EMPTY[name], torch.ones(0, 3, dtype=torch.float64)
    expected = outcome(function, x)
    if expected is None:
        with pytest.raises((RuntimeError, ValueError, IndexError, adjoint.CaptureError)):
            bridged(function, x, options=Options(target=target))(x)
        return
    options = Options(target=target)
    actual = outcome(bridged(function, x.clone().requires_grad_(), options=options), x)
    torch.testing.assert_close(actual, expected, equal_nan=True)
