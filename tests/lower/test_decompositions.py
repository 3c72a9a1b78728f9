from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import adjoint
from adjoint.graph.evaluation import evaluate
from adjoint.lower.decompositions import DECOMPOSITIONS, decompose
from tests.lowering import assert_alike, graph_of

aten = torch.ops.aten

Make = Callable[[torch.dtype], list[Any]]


def random(*shape: int, seed: int = 0) -> Callable[[torch.dtype], torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(shape, generator=generator, dtype=torch.float64)
    return lambda dtype: made.to(dtype)


X, Y = random(4, 6), random(4, 6, seed=1)

# An op, a call of it, and the tensors it is called with.
ROWS: list[tuple[Any, Callable[..., Any], list[Any]]] = [
    (aten.addmm.default, aten.addmm, [random(5), random(4, 6), random(6, 5)]),
    *[
        (aten.mm.default, aten.mm, [random(m, k), random(k, n, seed=1)])
        for m, k, n in [(6, 1, 7), (6, 4, 7), (6, 7, 1), (6, 7, 3), (1, 6, 7), (4, 6, 7), (2, 2, 2)]
    ],
    (aten.baddbmm.default, aten.baddbmm, [random(2, 3, 5), random(2, 3, 4), random(2, 4, 5)]),
    *[(aten._softmax.default, lambda x, d=d: aten._softmax(x, d, False), [X]) for d in (0, 1, -1)],
    *[
        (aten._log_softmax.default, lambda x, d=d: aten._log_softmax(x, d, False), [X])
        for d in (0, 1)
    ],
    (
        aten._softmax_backward_data.default,
        lambda g, y: aten._softmax_backward_data(g, y, 1, y.dtype),
        [X, Y],
    ),
    (
        aten._log_softmax_backward_data.default,
        lambda g, y: aten._log_softmax_backward_data(g, y, 0, y.dtype),
        [X, Y],
    ),
    (aten.logsumexp.default, lambda x: aten.logsumexp(x, [1]), [X]),
    (aten.logsumexp.default, lambda x: aten.logsumexp(x, [0, 1], True), [X]),
    (
        aten.native_layer_norm.default,
        lambda x, w, b: aten.native_layer_norm(x, [6], w, b, 1e-5),
        [X, random(6), random(6, seed=3)],
    ),
    (
        aten.native_layer_norm.default,
        lambda x: aten.native_layer_norm(x, [3, 2], None, None, 1e-5),
        [random(4, 3, 2)],
    ),
    (
        aten.native_layer_norm_backward.default,
        lambda g, x, w, b: aten.native_layer_norm_backward(
            g, x, [6], *aten.native_layer_norm(x, [6], w, b, 1e-5)[1:], w, b, [True, True, True]
        ),
        [Y, X, random(6), random(6, seed=3)],
    ),
    (
        aten._fused_rms_norm.default,
        lambda x, w: aten._fused_rms_norm(x, [6], w, None),
        [X, random(6)],
    ),
    (
        aten.native_group_norm.default,
        lambda x, w, b: aten.native_group_norm(x, w, b, 2, 6, 5, 3, 1e-5),
        [random(2, 6, 5), random(6), random(6, seed=3)],
    ),
    (
        aten.native_group_norm_backward.default,
        lambda g, x, w: aten.native_group_norm_backward(
            g, x, *aten.native_group_norm(x, w, w, 2, 6, 5, 3, 1e-5)[1:], w, 2, 6, 5, 3, [True] * 3
        ),
        [random(2, 6, 5, seed=4), random(2, 6, 5), random(6)],
    ),
    *[
        (op, lambda x, op=op, dim=dim, c=c: op(x, dim, correction=c, keepdim=c == 0), [X])
        for op in (aten.var.correction, aten.std.correction, aten.var_mean.correction)
        for dim in ([1], [0, 1], None)
        for c in (None, 0, 1)
    ],
    *[
        (aten.linalg_vector_norm.default, lambda x, o=o: aten.linalg_vector_norm(x, o, [1]), [X])
        for o in (1, 2, math.inf)
    ],
    *[(aten.nll_loss_forward.default, lambda x, r=r: nll(x, r), [X]) for r in (0, 1, 2)],
    *[
        (
            aten.nll_loss_backward.default,
            lambda x, r=r: nll_backward(x, r),
            [X],
        )
        for r in (0, 1, 2)
    ],
    *[(aten.mse_loss.default, lambda x, y, r=r: aten.mse_loss(x, y, r), [X, Y]) for r in (0, 1, 2)],
    *[
        (aten.smooth_l1_loss.default, lambda x, y, b=b: aten.smooth_l1_loss(x, y, 1, b), [X, Y])
        for b in (0.0, 1.0, 0.3)
    ],
    (aten.huber_loss.default, lambda x, y: aten.huber_loss(x, y, 2, 0.7), [X, Y]),
    (
        aten.binary_cross_entropy_with_logits.default,
        lambda x, y: aten.binary_cross_entropy_with_logits(x, y.sigmoid()),
        [X, Y],
    ),
    (aten.stack.default, lambda x, y: aten.stack([x, y], -1), [X, Y]),
    (aten._unsafe_index.Tensor, lambda x: aten._unsafe_index(x, [rows_of(x)]), [X]),
    (aten.glu.default, lambda x: aten.glu(x, 1), [X]),
    (aten.log_sigmoid_forward.default, aten.log_sigmoid_forward, [X]),
]


def classes_of(x: torch.Tensor) -> torch.Tensor:
    made = torch.arange(4) + 1
    return torch.where(made == 3, -100, made)


def rows_of(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(3) + 1


def nll_backward(x: torch.Tensor, reduction: int) -> torch.Tensor:
    loss, total = nll(x, reduction)
    result: torch.Tensor = aten.nll_loss_backward(
        loss, x, classes_of(x), None, reduction, -100, total
    )
    return result


def nll(x: torch.Tensor, reduction: int) -> Any:
    return aten.nll_loss_forward(x, classes_of(x), None, reduction, -100)


def tensors(tree: Any) -> list[torch.Tensor]:
    return [tree] if isinstance(tree, torch.Tensor) else [t for t in tree if t is not None]


def test_each_decomposition_has_a_sample() -> None:
    assert {op for op, _, _ in ROWS} == set(DECOMPOSITIONS)


CLOSE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("place", range(len(ROWS)), ids=lambda place: str(ROWS[place][0]))
def test_what_it_computes(place: int, dtype: torch.dtype) -> None:
    op, call, makes = ROWS[place]
    inputs = [make(dtype) for make in makes]
    try:
        eager = tensors(call(*inputs))
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"eager: {error}")
    made = decompose(graph_of(lambda *given: tensors(call(*given)), inputs))
    if dtype == torch.float64:
        assert not any(node.target is op for node in made.graph.nodes)
    for ours, other in zip(evaluate(made, inputs), eager, strict=True):
        assert (ours.dtype, ours.shape) == (other.dtype, other.shape)
        torch.testing.assert_close(ours, other, rtol=CLOSE[dtype], atol=CLOSE[dtype])


@pytest.mark.parametrize(
    ("op", "call", "makes"),
    [
        (aten.addmm, lambda *a: aten.addmm(*a, beta=2, alpha=3), [random(5), X, random(6, 5)]),
        (aten.linalg_vector_norm, lambda x: aten.linalg_vector_norm(x, 3, [1]), [X]),
    ],
)
def test_declined(op: Any, call: Callable[..., Any], makes: list[Any]) -> None:
    inputs = [make(torch.float64) for make in makes]
    made = decompose(graph_of(call, inputs))
    assert any(node.target is op.default for node in made.graph.nodes)
    torch.testing.assert_close(evaluate(made, inputs), call(*inputs))


@pytest.mark.parametrize("values", [[math.inf, 1.0], [-math.inf, -math.inf], [math.nan, 0.0]])
def test_special_numbers(values: list[float]) -> None:
    x = torch.tensor([values, [0.0, 1.0]], dtype=torch.float64)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            aten._softmax(x, 1, False),
            aten._log_softmax(x, 1, False),
            aten.logsumexp(x, [1]),
            aten.linalg_vector_norm(x, 2, [1]),
            aten.linalg_vector_norm(x, math.inf, [1]),
            aten.var.correction(x, [1]),
        ]

    made = decompose(graph_of(function, [x]))
    for ours, eager in zip(evaluate(made, [x]), function(x), strict=True):
        assert_alike(ours, eager, signed_zeros=False)


def test_the_graph_given_is_not_changed() -> None:
    graph_module = graph_of(lambda x: x.softmax(1), [torch.ones(3, 3)])
    before = str(graph_module.graph)
    decompose(graph_module)
    assert str(graph_module.graph) == before


def test_symbolic_sizes_are_arguments_of_simpler_operators() -> None:
    norm = torch.nn.GroupNorm(2, 4).double()
    compiled = adjoint.compile(norm, dynamic=True)
    for batch in (4, 7):
        x = torch.randn(batch, 4, 3, dtype=torch.float64, requires_grad=True)
        torch.testing.assert_close(
            torch.autograd.grad(compiled(x).sin().sum(), x),
            torch.autograd.grad(norm(x).sin().sum(), x),
        )
