"""Samples of operators, and their comparison with what their composition computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch

from adjoint.graph.evaluation import evaluate
from adjoint.lower.decompositions import decompose
from adjoint.torch_private.operators import OpOverload
from tests.lowering import graph_of

# An op, a call of it, and the tensors it is called with.
Row = tuple[Any, Callable[..., Any], list[Any]]

Test = TypeVar("Test", bound=Callable[..., None])

CLOSE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def random(*shape: int, seed: int = 0) -> Callable[[torch.dtype], torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(shape, generator=generator, dtype=torch.float64)
    return lambda dtype: made.to(dtype)


X, Y = random(4, 6), random(4, 6, seed=1)


def cases(rows: list[Row]) -> Callable[[Test], Test]:
    """Each row in each dtype."""

    def marked(test: Test) -> Test:
        test = pytest.mark.parametrize("dtype", CLOSE, ids=str)(test)
        ids = [str(op) for op, _, _ in rows]
        by_row: Test = pytest.mark.parametrize("row", rows, ids=ids)(test)
        return by_row

    return marked


def tensors(tree: Any) -> list[torch.Tensor]:
    return [tree] if isinstance(tree, torch.Tensor) else [t for t in tree if t is not None]


def check(row: Row, dtype: torch.dtype) -> None:
    """The composition computes what eager does."""
    op, call, makes = row
    inputs = [make(dtype) for make in makes]
    try:
        eager = tensors(call(*inputs))
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"eager: {error}")
    decomposed = decompose(graph_of(lambda *given: tensors(call(*given)), inputs))
    if dtype == torch.float64:
        targets = [node.target for node in decomposed.graph.nodes]
        names = [t._schema.name for t in targets if isinstance(t, OpOverload)]
        assert op not in (names if isinstance(op, str) else targets)
    for ours, other in zip(evaluate(decomposed, inputs), eager, strict=True):
        assert (ours.dtype, ours.shape) == (other.dtype, other.shape)
        torch.testing.assert_close(ours, other, rtol=CLOSE[dtype], atol=CLOSE[dtype])


def check_declined(op: Any, call: Callable[..., Any], makes: list[Any]) -> None:
    """The operator stays, and computes what it did."""
    inputs = [make(torch.float64) for make in makes]
    decomposed = decompose(graph_of(call, inputs))
    assert any(node.target is op for node in decomposed.graph.nodes)
    torch.testing.assert_close(evaluate(decomposed, inputs), call(*inputs))
