from __future__ import annotations

import torch

from adjoint.loops.expressions import Counter, Extent, Load, constant, integer
from adjoint.loops.statements import (
    Accumulator,
    Assign,
    Loop,
    Merge,
    Store,
    TeamMemory,
    Update,
    body_of,
    expressions,
    walk,
)

F32 = torch.float32
HERE = Counter("i")
X = Load("x", HERE, F32)


def test_walk_goes_into_loops() -> None:
    update = Update("sum", "add", X)
    loop = Loop("i", integer(0), Extent("n"), (update,))
    start, store = Accumulator("sum", constant(0, F32)), Store("out", integer(0), X)
    assert list(walk((start, loop, store))) == [start, loop, update, store]
    assert body_of(loop) == (update,)
    assert body_of(store) == ()


def test_the_expressions_of_a_statement_itself() -> None:
    start, stop = integer(0), Extent("n")
    assert expressions(Loop("i", start, stop, (Assign("a", X),))) == (start, stop)
    assert expressions(Assign("a", X)) == (X,)
    assert expressions(Store("out", HERE, X)) == (HERE, X)
    assert expressions(Merge("out", HERE, "add", X)) == (HERE, X)
    assert expressions(TeamMemory("tile", F32, 4)) == ()
