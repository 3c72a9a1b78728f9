"""Derivatives where formulas have to choose: at zeros, kinks, ties and infinities.

There a formula selects from what it computes, and what it leaves out may be infinite: whatever is
finite in eager, in forward and in reverse mode, is the same here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import adjoint
from tests.differentiation import TOLERANCE

Function = Callable[..., Any]
Row = tuple[str, Function, tuple[Tensor, ...]]

INF, NAN = math.inf, math.nan
# One of so many rows runs by default.
SHARD = 12


def at(*numbers: complex) -> Tensor:
    is_complex = any(isinstance(number, complex) for number in numbers)
    return torch.tensor(numbers, dtype=torch.complex128 if is_complex else torch.float64)


ROWS = torch.tensor([[0, 0, 0], [1, 1, 1], [0, 2, -1], [3, 0, 0], [-2, -2, 1]], dtype=torch.float64)
MASKED = torch.tensor(
    [[-INF, -INF, -INF], [0, -INF, 1], [-INF, 2, -INF], [1, 1, 2]], dtype=torch.float64
)
KINKS = at(-6, -3, -2, -1, -0.5, 0, 0.5, 1, 2, 3, 6)
NOT_NEGATIVE = at(0, 0, 1.5, 2)
UNIT = at(0, 1, 0.25, 0.5, 1e-3)


def powers() -> Iterator[Row]:
    for p in (0, 0.5, 1, 1.5, 2, 3, -1):
        yield f"pow {p}", lambda x, p=p: x**p, (NOT_NEGATIVE,)
        yield f"float_power {p}", lambda x, p=p: torch.float_power(x, p), (NOT_NEGATIVE,)
    bases, exponents = zip(*itertools.product((0, 1.5), (0, 0.5, 1, 2)), strict=True)
    for op in (torch.pow, torch.float_power):
        yield op.__name__, op, (at(*bases), at(*exponents))
        yield f"{op.__name__} of 0", lambda p, op=op: op(0.0, p), (at(0, 1, 2),)
    yield "complex pow", torch.pow, (at(0j, 0j, 1j), at(1 + 0j, 2 + 0j, 0j))


def norms() -> Iterator[Row]:
    complex_rows = torch.complex(ROWS, ROWS.flip(0) * (ROWS != 0))
    for p in (0, 0.5, 1, 1.5, 2, 3, INF, -INF):
        yield f"norm {p}", lambda x, p=p: torch.norm(x, p), (at(0, 0),)
        yield f"vector_norm {p}", lambda x, p=p: torch.linalg.vector_norm(x, p, -1), (ROWS,)
        yield (
            f"complex vector_norm {p}",
            lambda x, p=p: torch.linalg.vector_norm(x, p, -1),
            (complex_rows,),
        )
        if p > 0:
            yield f"renorm {p}", lambda x, p=p: torch.renorm(x, p, 0, 1.0), (ROWS,)
            yield f"dist {p}", lambda x, y, p=p: torch.dist(x, y, p), (ROWS, ROWS)
            yield f"normalize {p}", lambda x, p=p: functional.normalize(x, p), (ROWS,)
        if p >= 0:
            yield f"cdist {p}", lambda x, y, p=p: torch.cdist(x, y, p), (ROWS, ROWS.flip(0))
            yield f"pdist {p}", lambda x, p=p: functional.pdist(x, p), (ROWS[[0, 0, 1, 1, 2]],)
    norm = torch.linalg.matrix_norm
    for order in ("fro", 1, -1, INF, -INF):
        yield f"matrix_norm {order}", lambda x, p=order: norm(x, p), (torch.zeros_like(ROWS),)
    for name in ("std", "var"):
        yield name, lambda x, name=name: getattr(x, name)(-1), (ROWS,)
        yield f"complex {name}", lambda x, name=name: getattr(x, name)(-1), (complex_rows,)
        yield f"{name} of all", lambda x, name=name: getattr(x, name)(), (ROWS[1],)
        both = getattr(torch, f"{name}_mean")
        yield f"{name}_mean", lambda x, both=both: both(x, -1, correction=0), (ROWS,)
    yield "cosine_similarity", functional.cosine_similarity, (ROWS, ROWS.flip(0))


def reductions() -> Iterator[Row]:
    yield "prod", torch.prod, (at(0, 2, 3),)
    yield "prod of two zeros", torch.prod, (at(0, 0, 3),)
    yield "prod of rows", lambda x: x.prod(-1), (ROWS,)
    yield "cumprod", lambda x: x.cumprod(-1), (ROWS,)
    yield "logsumexp", lambda x: x.logsumexp(-1), (MASKED,)
    yield "logcumsumexp", lambda x: x.logcumsumexp(-1), (MASKED[[1, 3]],)
    yield "softmax", lambda x: x.softmax(-1), (MASKED,)
    yield "log_softmax", lambda x: x.log_softmax(-1), (MASKED,)
    for name in ("amax", "amin"):
        yield name, lambda x, name=name: getattr(x, name)(-1), (ROWS,)
    for name in ("max", "min", "median", "mode"):
        yield name, lambda x, name=name: getattr(x, name)(-1)[0], (ROWS,)
    yield "max of all", torch.max, (ROWS,)
    yield "nansum", torch.nansum, (at(NAN, 1, 0),)
    yield "nanmean", torch.nanmean, (at(NAN, 1, 0),)


def pointwise() -> Iterator[Row]:
    yield "sinc", torch.sinc, (at(0, 0, 1.5, -2),)
    yield "complex sinc", torch.sinc, (at(0, 1j, 1),)
    yield "xlogy", torch.xlogy, (at(0, 0, 1, 2, 1, 0), at(0, 2, 1, 3, 0, -1))
    yield "xlog1py", torch.special.xlog1py, (at(0, 0, 1, 2, 1), at(-1, 2, 1, 3, -1))
    yield "entr", torch.special.entr, (at(0, 1, 2),)
    yield "logit", torch.logit, (UNIT,)
    yield "logit eps", lambda x: torch.logit(x, 1e-3), (UNIT,)
    for op in (torch.logaddexp, torch.logaddexp2):
        yield op.__name__, op, (at(-INF, -INF, 0, 1), at(-INF, 0, -INF, 1))
    yield "hypot", torch.hypot, (at(0, 0, 3), at(0, 1, 4))
    yield "atan2", torch.atan2, (at(0, 0, 3), at(0, 1, 4))
    for name in ("abs", "sgn", "angle", "sqrt", "rsqrt", "log", "reciprocal", "square"):
        yield name, getattr(torch, name), (at(0, 1, 2),)
        yield f"complex {name}", getattr(torch, name), (at(0, 1, 1j, 1 + 1j),)
    for op in (torch.maximum, torch.minimum, torch.fmin):
        yield op.__name__, op, (at(0, 1, 2), at(0, 2, 1))
    yield "clamp", lambda x: x.clamp(0, 1), (KINKS,)
    yield "clamp by tensors", torch.clamp, (KINKS, KINKS * 0, KINKS * 0 + 1)
    yield "nan_to_num", lambda x: x.log().nan_to_num(0, 1, 2), (at(NAN, INF, -1, 0, 1),)
    yield "where", lambda x: torch.where(x > 0, x.log(), x * 2), (KINKS,)
    yield "masked_fill", lambda x: x.sqrt().masked_fill(x <= 0, 0), (KINKS,)


def activations() -> Iterator[Row]:
    names = (
        "hardtanh relu6 relu hardswish hardshrink softshrink leaky_relu elu celu selu softsign "
        "gelu silu mish logsigmoid softplus"
    )
    for name in names.split():
        yield name, getattr(functional, name), (KINKS,)
    yield "threshold", lambda x: functional.threshold(x, 1, 5), (KINKS,)
    yield "prelu", functional.prelu, (KINKS, at(0.25))
    for name in ("huber_loss", "smooth_l1_loss", "l1_loss"):
        loss = getattr(functional, name)
        yield name, lambda x, y, f=loss: f(x, y, reduction="none"), (KINKS, KINKS * 0)


def cases() -> list[Any]:
    rows = [*powers(), *norms(), *reductions(), *pointwise(), *activations()]
    return [
        pytest.param(
            function,
            points,
            id=name,
            marks=[] if index % SHARD == 0 else [pytest.mark.slow],
        )
        for index, (name, function, points) in enumerate(rows)
    ]


@pytest.mark.parametrize(("function", "points"), cases())
def test_what_is_finite_in_eager_is_the_same(
    function: Function, points: tuple[Tensor, ...]
) -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(like: Any) -> tuple[Tensor, ...]:
        return tuple(
            torch.randn(each.shape, dtype=each.dtype, generator=generator) for each in like
        )

    tangents, weights = drawn(points), drawn(points)
    cotangents = drawn(several(function(*points)))
    places = tuple(range(len(points)))

    def derivatives(library: Any) -> Iterator[Function]:
        def loss(*given: Tensor) -> Tensor:
            return inner(several(function(*given)), cotangents)

        def gradient(*given: Tensor) -> Any:
            return library.grad(loss, argnums=places)(*given)

        yield lambda *given: several(library.jvp(function, given, tangents)[1])
        yield gradient
        yield lambda *given: library.jvp(gradient, given, tangents)[1]
        yield library.grad(lambda *given: inner(gradient(*given), weights), argnums=places)

    for mine, theirs in zip(derivatives(adjoint), derivatives(torch.func), strict=True):
        try:
            expected = theirs(*points)
        except (NotImplementedError, RuntimeError):
            continue  # Torch lacks some, above all in forward mode.
        found = adjoint.run(adjoint.capture(mine, *points), *points)
        for one, other in zip(found, expected, strict=True):
            is_finite = other.isfinite()
            tolerance = TOLERANCE[other.dtype]
            torch.testing.assert_close(
                one[is_finite], other[is_finite], rtol=tolerance, atol=tolerance
            )


def several(value: Any) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else tuple(value)


def inner(some: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> Tensor:
    products = [one * other.conj() for one, other in zip(some, others, strict=True)]
    return torch.stack([(p.real if p.is_complex() else p).sum() for p in products]).sum()
