"""A training step of a package's model, in eager and compiled: what is compared, and how.

Packages are imported when their tests run, not when tests are collected: a run without them, or
without the slow tests, neither needs nor pays for them.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor, nn

from adjoint.backend import compile_graph
from adjoint.runtime.bridge import DifferentiableGraph

# Packages warn of much, and their warnings are not ours.  That something of ours runs in eager is.
MARKS = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::adjoint.errors.FallbackWarning"),
]

# How far from eager: sums are taken in other orders, and each derivative adds to that.
TOLERANCE = 1e-9

Predictions: TypeAlias = Mapping[str, Tensor]
Predict: TypeAlias = Callable[[Any, Any], Predictions]


def package(name: str) -> Any:
    """The module of this name, or a skipped test where its package is not installed."""
    top = name.partition(".")[0]
    if importlib.util.find_spec(top) is None:
        pytest.skip(f"{top} is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


class Compilations(list[Any]):
    """The programs that the backend made."""

    def compile(self, *args: Any) -> Any:
        self.append(compile_graph(*args))
        return self[-1]

    def assert_differentiated(self) -> None:
        """Graphs ran, all derivatives were ours, and there were some."""
        graphs = [graph for program in self for graph in program.runnables()]
        assert graphs, "nothing was compiled"
        assert all(isinstance(graph, DifferentiableGraph) and not graph._eager for graph in graphs)
        assert any(graph.grad_programs() for graph in graphs), "nothing was differentiated"


def target(like: Tensor) -> Tensor:
    """What a model is trained to predict: anything that it does not."""
    return torch.linspace(-1, 1, like.numel(), dtype=like.dtype).reshape(like.shape)


def step(model: nn.Module, predict: Callable[[], Predictions]) -> dict[str, Any]:
    """Predictions, and the gradients of a loss on all of them."""
    model.zero_grad()
    predictions = predict()
    losses = [(each - target(each)).abs().square().mean() for each in predictions.values()]
    torch.stack(losses).sum().backward()
    return {
        "predictions": {name: each.detach() for name, each in predictions.items()},
        "differentiable": {name: each.requires_grad for name, each in predictions.items()},
        "gradients": {name: each.grad for name, each in model.named_parameters()},
    }


def assert_trained_alike(
    model: nn.Module,
    predict: Predict,
    inputs: Iterable[Any],
    compiled: Compilations,
    dynamic: bool | None = True,
) -> None:
    """For each of the inputs, a step of the compiled model is one of the model.

    `predict(program, given)` is how the package would call the model, or the program in its place.
    """
    program = torch.compile(model, backend="adjoint", dynamic=dynamic)
    for given in inputs:
        expected = step(model, lambda given=given: predict(model, given))  # type: ignore[misc]
        for name, each in expected["predictions"].items():
            assert each.any(), f"{name} is zero, whatever the compiler does"
            assert each.isfinite().all(), name
        gradients = [each for each in expected["gradients"].values() if each is not None]
        assert any(each.any() for each in gradients)
        assert all(each.isfinite().all() for each in gradients)
        actual = step(model, lambda given=given: predict(program, given))  # type: ignore[misc]
        torch.testing.assert_close(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)
    compiled.assert_differentiated()
