from __future__ import annotations

import torch

from adjoint.loops.expressions import Counter, Extent, Load, Name, constant, integer
from adjoint.loops.statements import (
    Accumulator,
    Assign,
    Loop,
    Merge,
    Store,
    TeamMemory,
    Update,
    blocks,
    expressions,
    named,
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
    assert blocks(loop) == (update,)
    assert blocks(store) == ()


def test_what_a_statement_itself_holds() -> None:
    start, stop = integer(0), Extent("n")
    assert expressions(Loop("i", start, stop, (Assign("a", X),))) == (start, stop)
    assert expressions(Assign("a", X)) == (X,)
    assert expressions(Store("out", HERE, X)) == (HERE, X)
    assert expressions(Merge("out", HERE, "add", X)) == (HERE, X)
    assert expressions(TeamMemory("tile", F32, 4)) == ()


def test_the_name_of_an_assignment_has_its_type() -> None:
    made = named(Accumulator("sum", constant(0, F32)))
    assert isinstance(made, Name)
    assert (made.name, made.dtype) == ("sum", F32)
