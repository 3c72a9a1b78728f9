from __future__ import annotations

import pytest
import torch
from torch import Tensor

from adjoint.capture.direct import capture
from adjoint.checking.locating import KernelSearch, one_op
from adjoint.options import Options
from tests.checking.planting import wrong_kernel

aten = torch.ops.aten
NATIVE = Options(target="native")


def many(x: Tensor) -> Tensor:
    for _ in range(3):
        x = x.sin() * 2
    return x.exp().sigmoid() + x.softmax(0)


def test_of_many_ops_the_first_wrong_one_is_found() -> None:
    x = torch.rand(7, dtype=torch.float64)
    graph_module = capture(many, x).graph_module
    assert KernelSearch(graph_module, [x], NATIVE).culprit() is None
    with wrong_kernel(aten.sigmoid.default):
        culprit = KernelSearch(graph_module, [x], NATIVE).culprit()
    assert culprit is not None
    assert culprit.op == "aten.sigmoid.default"


@pytest.mark.slow
@pytest.mark.parametrize("op", [aten.exp.default, aten.sin.default])
def test_parts_of_an_op_are_blamed_on_it_or_on_themselves(op: object) -> None:
    x = torch.rand(7, dtype=torch.float64)
    graph_module = capture(many, x).graph_module
    with wrong_kernel(op):
        culprit = KernelSearch(graph_module, [x], NATIVE).culprit()
    assert culprit is not None
    assert culprit.op in (str(op), "aten._softmax.default", "aten.softmax.int")
    assert culprit.source is not None


def test_an_op_is_a_function_of_its_tensors() -> None:
    graph_module = capture(lambda x, y: torch.cat([x, y], 1), *torch.rand(2, 3, 4)).graph_module
    (node,) = [each for each in graph_module.graph.nodes if each.op == "call_function"]
    one, other = torch.rand(2, 3, 4)
    function, tensors = one_op(node, [one, other])
    assert torch.equal(function(*tensors), torch.cat([one, other], 1))
