from __future__ import annotations

import torch

from adjoint.emit.arithmetic import Callees
from adjoint.emit.body import Body
from adjoint.loops.expressions import Load, apply, integer

X = Load("x", integer(0), torch.float32)


def test_a_value_used_twice_is_computed_once() -> None:
    body = Body(Callees())
    y = apply("exp", X)
    twice = y + y
    assert body.value(twice) == body.value(twice)
    assert sum("call float" in line for line in body.lines) == 1


def test_what_is_called_is_defined() -> None:
    callees = Callees()
    Body(callees).value(apply("sqrt", apply("exp", X)))
    text = "\n".join(callees.defined())
    assert "define" in text
    assert "@llvm.sqrt.f32" in text


def test_memory_and_registers_differ() -> None:
    body = Body(Callees())
    body.to_memory(body.from_memory("%raw", torch.bfloat16), torch.bfloat16)
    assert [line.split(" = ")[1].split()[0] for line in body.lines] == [
        "zext",
        "shl",
        "bitcast",
        "bitcast",
        "lshr",
        "trunc",
    ]
    assert body.from_memory("%same", torch.float64) == "%same"
