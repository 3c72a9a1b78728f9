from __future__ import annotations

import torch
from torch import Tensor

from adjoint.capture.direct import capture
from adjoint.compiler import Compiler
from adjoint.kernels import compile_kernels
from adjoint.loops.plan import Argument, LibraryCall, Plan, RowTiles
from adjoint.options import Options
from adjoint.runtime.loading import load_program
from adjoint.runtime.plans.program import PlanProgram
from adjoint.runtime.plans.stepping import portions_of
from adjoint.targets import target_of

ROWS = 4096
INPUTS = [torch.randn(ROWS, 16), torch.randn(16, 24), torch.randint(0, 7, (ROWS,))]


def network(x: Tensor, w: Tensor, index: Tensor) -> list[Tensor]:
    y = torch.nn.functional.silu(torch.nn.functional.layer_norm(x @ w, (24,))) @ w.t()
    z = torch.zeros(7, 16).index_add(0, index, y)
    wide = torch.cat([z.sin(), z.cos()], 1)
    return [torch.softmax(wide @ wide.t(), 1).cumsum(0), y.square().sum(0), x * 2]


def test_steps_run_alone_compute_what_the_program_does() -> None:
    graph_module = capture(network, *INPUTS).graph_module
    target = target_of(graph_module, Options(target="native"))
    plan = Compiler().plan(graph_module, target)
    assert plan is not None
    code = compile_kernels(plan, target).code

    def load(part: Plan) -> PlanProgram:
        return load_program(part, code, target)

    whole = load(plan)(list(INPUTS))
    values = dict(zip(plan.inputs, INPUTS, strict=True))
    portions = list(portions_of(plan, load))
    for portion in portions:
        portion(INPUTS, values)
    assert [step for portion in portions for step in portion.steps] == list(plan.steps)
    # The plan has one step of each kind, and partial sums of row tiles, combined after them.
    assert {LibraryCall, RowTiles} <= {type(step) for step in plan.steps}
    assert 3 < len(portions) < len(plan.steps)
    alone = [values[each.slot] for each in plan.outputs if isinstance(each, Argument)]
    assert len(alone) == 3
    for one, other in zip(whole, alone, strict=True):
        assert torch.equal(one, other)
