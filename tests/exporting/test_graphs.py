from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from adjoint.capture.direct import capture
from adjoint.compiler import Compiler
from adjoint.errors import ExportError, FallbackWarning
from adjoint.exported.records import GraphRecord
from adjoint.exporting.code import Code, machine
from adjoint.exporting.graphs import Constants, Exporting
from adjoint.forms.form import Unwritable
from adjoint.loops.plan import Plan
from adjoint.runtime.cpu.engine import LLVMError
from adjoint.target import Target, cpu_target


def exporting() -> Exporting:
    return Exporting(Compiler(), cpu_target(machine("x86-64")), Code(["x86-64"]))


def depth(graph: GraphRecord) -> int:
    if graph.node is None:
        return 0
    return 1 + max(depth(each.graph) for each in graph.node.backwards)


@pytest.mark.parametrize("orders", [0, 1, 2, 3])
def test_there_are_as_many_orders_as_were_asked_for(orders: int) -> None:
    graph_module = capture(lambda x: x.sin().exp(), torch.rand(3)).graph_module
    made = exporting()
    record = made.graph(graph_module, [0], orders)
    assert depth(record) == orders
    assert len(made.plans) >= 2 * orders + 1


def test_equal_kernels_are_compiled_once() -> None:
    graph_module = capture(lambda x: x.sin(), torch.rand(3)).graph_module
    made = exporting()
    made.graph(graph_module, [], 0)
    made.graph(graph_module, [], 0)
    assert made.plans[0].functions == made.plans[1].functions


def test_constants_have_names() -> None:
    constants = Constants()
    x, y = torch.rand(2), torch.rand(2)
    assert constants.named(x).name == constants.named(x).name != constants.named(y).name
    assert constants.held(constants.named(y).name) is y
    with pytest.raises(Unwritable, match="a constant of type str"):
        constants.named("text")


def test_a_kernel_that_llvm_rejects(monkeypatch: pytest.MonkeyPatch) -> None:
    graph_module = capture(lambda x: x.sin().exp(), torch.rand(3)).graph_module
    add = Code.add
    rejected: list[Any] = []

    def rejects_once(code: Code, plan: Plan, target: Target) -> Any:
        if rejected:
            return add(code, plan, target)
        rejected.extend(plan.launches)
        return (), dict.fromkeys(plan.launches, LLVMError("no such type"))

    monkeypatch.setattr(Code, "add", rejects_once)
    why = "run op by op in the exported program, because LLVM rejects their kernel: no such type"
    with pytest.warns(FallbackWarning, match=why) as warned:
        exporting().graph(graph_module, [], 0)
    assert rejected
    assert warned[0].filename == __file__

    launch = replace(rejected[0], nodes=())
    monkeypatch.setattr(Code, "add", lambda *_: ((), {launch: LLVMError("no such type")}))
    with pytest.raises(
        ExportError, match="needs a kernel that LLVM rejects: no such type"
    ) as error:
        exporting().graph(graph_module, [], 0)
    assert __file__ in str(error.value)
