from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, fx

from adjoint.capture.direct import capture
from adjoint.compiler import Compiler
from adjoint.errors import DifferentiationError
from adjoint.graph.derivative import Derivative, Joint
from adjoint.graph.evaluation import evaluate
from adjoint.loops.chain_footprint import ChainFootprint
from adjoint.options import Options
from adjoint.splitting import Splitting


class Splits:
    """The splitting of a function of one tensor, which notes what it asks for."""

    def __init__(self, function: Callable[[Tensor], Tensor], budget: str | None = None) -> None:
        self.compiler = Compiler(Options(target="native", memory_budget=budget))
        x = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
        self.graph_module = capture(function, x).graph_module
        self.sweeps = 0
        self.footprints = 0

    def joint(self, graph_module: fx.GraphModule, of: Sequence[int], wrt: Sequence[int]) -> Joint:
        self.sweeps += 1
        return self.compiler._joint(graph_module, of, wrt)

    def footprint(self, derivative: Derivative) -> ChainFootprint | None:
        self.footprints += 1
        return self.compiler.footprint(derivative)

    def derivative(self) -> Derivative:
        first = self.compiler._joint(self.graph_module, [0], [0])
        return self.of(first).derivative(first)

    def of(self, joint: Joint) -> Splitting:
        wrt = [0]
        return Splitting(self.compiler, self.joint, self.footprint, wrt, 1, frozenset({0}))


def test_both_halves_compute_the_derivative() -> None:
    derivative = Splits(lambda x: (x.sin() * x).sum()).derivative()
    x = torch.rand(3, 4, dtype=torch.float64)
    outputs = evaluate(derivative.graph_module, [x])
    saved = derivative.saved_from([x], outputs)
    backward = derivative.first_backward
    given = [saved[place] for place in derivative.saved_for(backward)]
    (gradient,) = evaluate(backward.graph_module, [*given, torch.tensor(2.0, dtype=x.dtype)])
    torch.testing.assert_close(outputs[0], (x.sin() * x).sum())
    torch.testing.assert_close(gradient, 2 * (x.cos() * x + x.sin()))


def test_one_sweep_finds_what_is_saved() -> None:
    splits = Splits(lambda x: (x.sin() * x.exp()).sum())
    splits.derivative()
    assert splits.sweeps == 0


def test_a_saved_value_without_a_cotangent_is_differentiated_once_more() -> None:
    """The exponential is saved; only the second derivative has a cotangent of it."""
    splits = Splits(lambda x: (x.exp().detach() * x).sum())
    splits.derivative()
    assert splits.sweeps == 1


def test_memory_is_predicted_only_for_a_budget() -> None:
    splits = Splits(lambda x: x.sin().exp().sum())
    splits.derivative()
    assert splits.footprints == 0
    splits = Splits(lambda x: x.sin().exp().sum(), budget="1GiB")
    splits.derivative()
    assert splits.footprints > 0


def test_a_budget_that_cannot_be_met_is_refused() -> None:
    splits = Splits(lambda x: x.sin().exp().sum(), budget="1B")
    with pytest.raises(DifferentiationError, match="memory_budget"):
        splits.derivative()


def test_a_derivative_of_a_backward_graph_saves_what_it_takes() -> None:
    splits = Splits(lambda x: x.sin().exp().sum(), budget="1GiB")
    backward = splits.derivative().first_backward.graph_module
    splits.footprints = 0
    joint = splits.compiler._joint(backward, [0], [0])
    assert joint.order == 2
    second = splits.of(joint).derivative(joint)
    assert splits.footprints == 0
    assert second.saved
