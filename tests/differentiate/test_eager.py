from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import adjoint
from adjoint.compiler import Compiler
from adjoint.options import Options
from adjoint.runtime.bridge import DifferentiableGraph
from tests.parity import leaf

aten = torch.ops.aten


def captured(function: Any, *args: Any) -> torch.fx.GraphModule:
    return adjoint.capture(function, *args).graph_module


def test_what_has_no_rule_is_left_to_autograd() -> None:
    compiler = Compiler(Options())
    assert isinstance(compiler.differentiable(captured(torch.sin, leaf(3))), DifferentiableGraph)

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, cotangent: Tensor) -> Tensor:
            return cotangent * 2

    x, function = leaf(3), cast("Any", Once)
    program = compiler.differentiable(captured(lambda x: function.apply(x), x))
    assert not isinstance(program, DifferentiableGraph)
    (out,) = program([x])
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], torch.full_like(x, 2))


def test_a_gradient_that_is_to_be_sparse_is() -> None:
    table = torch.nn.Embedding(7, 3, sparse=True)
    bags = torch.nn.EmbeddingBag(7, 3, sparse=True, mode="sum")
    parameters = [table.weight, bags.weight]
    optimizer = torch.optim.SparseAdam(parameters)
    indices = torch.tensor([[1, 2, 1], [6, 2, 0]])

    def loss(indices: Tensor) -> Any:
        return table(indices).sin().sum() + bags(indices).cos().sum()

    def gradients(run: Any) -> list[Tensor]:
        optimizer.zero_grad()
        run(indices).backward()
        assert all(each.grad is not None and each.grad.is_sparse for each in parameters)
        return [each.grad.to_dense() for each in parameters if each.grad is not None]

    torch._dynamo.reset()
    ours = gradients(torch.compile(loss, backend="adjoint", fullgraph=True))
    torch.testing.assert_close(ours, gradients(loss))
    optimizer.step()
