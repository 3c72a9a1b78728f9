from __future__ import annotations

import torch
from torch import Tensor, nn

import adjoint
from adjoint.partition.recomputing import is_cheap, is_free
from tests.parity import leaf

aten = torch.ops.aten


def test_views_constants_and_sizes_are_free() -> None:
    module = adjoint.capture(lambda x: (x.t() + torch.ones(3)).exp(), leaf(3, 3)).graph_module
    free = {node.target for node in module.graph.nodes if is_free(node)}
    assert aten.t.default in free
    assert aten.ones.default in free
    assert aten.exp.default not in free
    assert aten.add.Tensor not in free


def test_which_operators_are_cheap() -> None:
    def function(x: Tensor, i: Tensor) -> list[Tensor]:
        return [x + 1, x.exp(), x.sum(0), x[i], nn.functional.dropout(x), x @ x.t()]

    module = adjoint.capture(function, leaf(3, 8), torch.arange(2)).graph_module
    cheap = {node.target for node in module.graph.nodes if is_cheap(node)}
    assert {aten.add.Tensor, aten.index.Tensor} <= cheap
    dear = {aten.exp.default, aten.sum.dim_IntList, aten.mm.default, aten.native_dropout.default}
    assert not cheap & dear
