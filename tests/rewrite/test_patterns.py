from __future__ import annotations

import torch

from adjoint.rewrite.patterns import Rest, Size, Wildcard, call, depth, one_of, wildcards

aten = torch.ops.aten


x, y, z = map(Wildcard, "xyz")


ADD, MUL, SIN, SUM = aten.add.Tensor, aten.mul.Tensor, aten.sin.default, aten.sum.dim_IntList


def test_what_a_pattern_binds_and_how_deep_it_is() -> None:
    pattern = call(MUL, one_of(call(ADD, x, y), call(SIN, x)), [z, Rest("others")], Size("n"))
    assert wildcards(pattern) == ["x", "z", "others", "n"]
    assert depth(pattern) == 2
