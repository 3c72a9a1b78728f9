from __future__ import annotations

import torch

import adjoint
from adjoint.graph.captured import Signature
from adjoint.graph.descriptors import Argument, Result
from adjoint.torch_private import trees


def test_what_a_capture_says_of_itself() -> None:
    captured = adjoint.capture(lambda x, scale: x.sin() * scale, torch.ones(3), 2.0)
    assert captured.inputs == (Argument(0, "args[0]"),)
    assert captured.outputs == (Result(0, "result"),)
    assert "aten.sin.default(args_0)" in captured.show()
    assert captured.signature is not None
    assert captured.signature.constants == (("args[1]", 2.0),)


def test_inputs_are_counted_in_one_order() -> None:
    captured = adjoint.capture(lambda x: x * 2, torch.ones(3))
    _, spec = trees.flatten(((), {}))
    bound, given, outside = torch.ones(1), torch.ones(2), torch.ones(3)
    all_three = captured.called_with([bound], Signature(spec, spec)).closing_over([outside])
    found = all_three.leaves([given])
    assert [id(leaf) for leaf in found] == [id(bound), id(given), id(outside)]
    assert captured.bound == captured.closed_over == ()
