from __future__ import annotations

import torch
from torch import Tensor

import adjoint
from adjoint.compiler import Compiler
from adjoint.graph.descriptors import SavedInput
from adjoint.loops.chain_footprint import Held
from adjoint.options import Options
from adjoint.predicting import footprint_of_pair, freed

ROWS = 1000


def program(x: Tensor, w: Tensor) -> Tensor:
    return (x.sin() @ w).sin().sum()


def test_the_backward_frees_what_the_forward_saved_for_it() -> None:
    x, w = torch.rand(ROWS, 8, requires_grad=True), torch.rand(8, 8, requires_grad=True)
    compiler = Compiler(Options(target="native"))
    derivative = compiler.derivative(adjoint.capture(program, x, w).graph_module, [0, 1])
    assert derivative is not None
    backward = derivative.first_backward
    forward = compiler.footprint_of(derivative.runs)
    after = compiler.footprint_of(backward.graph_module)
    assert forward is not None
    assert after is not None
    taken = freed(derivative, forward, backward, program=2, until=3)
    assert len(taken) == len(backward.inputs)
    # Arguments of the user's and tangents are not the program's to free.
    saved = [isinstance(each, SavedInput) for each in backward.inputs]
    assert [each is not None for each in taken] == saved
    assert any(saved)
    outputs = [slot for slot in forward.outputs if slot is not None]
    assert {each for each in taken if each} <= {Held(2, slot, 3) for slot in outputs}
    # What is saved is there until the backward has read it.
    pair = footprint_of_pair(derivative, forward, after)
    assert pair.programs == (forward, after)
    assert pair.between >= ROWS * 8 * x.element_size()
    assert pair.peak >= pair.between


def test_a_program_that_runs_op_by_op_has_no_footprint() -> None:
    graph_module = adjoint.capture(torch.sin, torch.rand(3)).graph_module
    assert Compiler(Options(target="reference")).footprint_of(graph_module) is None
