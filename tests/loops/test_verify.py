from __future__ import annotations

import re

import pytest
import torch

from adjoint.loops.expressions import (
    Apply,
    Constant,
    Counter,
    Expression,
    Extent,
    Guarded,
    Load,
    Name,
    constant,
    integer,
)
from adjoint.loops.statements import (
    Accumulator,
    Assign,
    Buffer,
    Kernel,
    Loop,
    Mapping,
    Merge,
    Statement,
    Store,
    TeamMemory,
    Update,
)
from adjoint.loops.verify import KernelError, verify

F32 = torch.float32
HERE = Counter("i")
X = Load("x", HERE, F32)
ONE = constant(1, F32)


def made(*body: Statement) -> Kernel:
    buffers = (Buffer("x", F32), Buffer("out", F32, written=True))
    return Kernel("k", buffers, ("n",), body)


def over_i(*body: Statement, mapping: Mapping = Mapping.SERIAL) -> Loop:
    return Loop("i", integer(0), Extent("n"), body, mapping)


def stored(value: Expression) -> Loop:
    return over_i(Store("out", HERE, value))


def test_a_well_formed_kernel_is_returned() -> None:
    kernel = made(
        Accumulator("sum", constant(0, F32)),
        over_i(Assign("a", X), Update("sum", "add", Name("a", F32))),
        Merge("out", integer(0), "add", Name("sum", F32)),
        # A name may be used again once its block has ended.
        over_i(Assign("a", X * 2), Store("out", HERE, Name("a", F32)), mapping=Mapping.PARALLEL),
    )
    assert verify(kernel) is kernel


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (
            over_i(Loop("j", integer(0), integer(2), (), Mapping.PARALLEL)),
            "the parallel loop over j is not at the top",
        ),
        (over_i(over_i()), "i counts two loops, one within the other"),
        (over_i(Assign("a", X), Assign("a", X)), "a is assigned twice"),
        (over_i(Assign("a", X), Accumulator("a", X)), "a is assigned twice"),
        (over_i(Assign("a", X), Update("a", "add", X)), "a is updated, but is no accumulator"),
        (over_i(Update("a", "add", X)), "a is updated, but is no accumulator"),
        (over_i(Accumulator("a", X), Update("a", "neg", X)), "neg does not combine two values"),
        (over_i(Merge("out", HERE, "exp", X)), "exp does not combine two values"),
        (over_i(Store("x", HERE, ONE)), "a value of type torch.float32 is stored in x"),
        (over_i(Store("y", HERE, ONE)), "a value of type torch.float32 is stored in y"),
        (over_i(Store("out", HERE, HERE)), "a value of type torch.int64 is stored in out"),
        (over_i(Merge("x", HERE, "add", X)), "a value of type torch.float32 is stored in x"),
        (Store("out", HERE, ONE), "i is used before it is defined"),
        (stored(Name("a", F32)), "a is used before it is defined"),
        (Store("out", Extent("m"), ONE), "m is no extent of the kernel"),
        (stored(Load("y", HERE, F32)), "a value of type torch.float32 is read from y"),
        (over_i(Assign("a", Load("x", HERE, torch.int64))), "torch.int64 is read from x"),
        (
            over_i(Assign("a", Guarded(X > 0, X, integer(0)))),
            "torch.float32 or torch.int64",
        ),
        (
            over_i(Assign("a", Guarded(X, X, X))),
            "a guard of type torch.float32",
        ),
        (
            stored(Apply("add", (X, HERE), F32)),
            "add of arguments of types torch.float32, torch.int64",
        ),
        (stored(Apply("add", (X,), F32)), "add of 2 arguments expected, 1 given"),
        (stored(Apply("lt", (X, X), F32)), "lt gives torch.bool, not torch.float32"),
        (stored(Apply("nothing", (X, X), F32)), "there is no operator nothing"),
        (over_i(Merge("out", HERE, "nothing", X)), "there is no operator nothing"),
        (Loop("i", ONE, integer(3), ()), "the loop over i is bounded by a torch.float32"),
        (over_i(Store("out", ONE, X)), "an offset of type torch.float32"),
        (stored(Load("x", ONE, F32)), "an offset of type torch.float32"),
        (
            over_i(Accumulator("a", integer(0)), Update("a", "add", X)),
            "a of type torch.int64 is updated by a torch.float32",
        ),
        (
            over_i(Assign("a", integer(0)), Store("out", HERE, Name("a", F32))),
            "a of type torch.int64 is used as torch.float32",
        ),
        (
            over_i(Assign("a", Constant(0, torch.complex64))),
            "torch.complex64 is no type of kernels",
        ),
        (
            over_i(Accumulator("a", X, (("j", 2),))),
            "a is not one for each turn of loops around it",
        ),
    ],
)
def test_refused(statement: Statement, why: str) -> None:
    with pytest.raises(KernelError, match=re.escape(why)) as refusal:
        verify(made(statement))
    assert str(refusal.value).startswith("kernel k: ")


TILE = TeamMemory("tile", F32, 4)
J = Counter("j")
READ = Store("out", J, Load("tile", J, F32))


def shared_out(*body: Statement, mapping: Mapping = Mapping.VECTOR) -> Loop:
    return Loop("j", integer(0), integer(4), body, mapping)


def in_teams(*body: Statement) -> Loop:
    return over_i(*body, mapping=Mapping.PARALLEL)


def test_memory_of_a_team() -> None:
    kernel = made(in_teams(TILE, shared_out(Store("tile", J, ONE)), shared_out(READ)))
    assert verify(kernel) is kernel


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (in_teams(TeamMemory("x", F32, 4)), "x is no new memory"),
        (in_teams(TILE, TILE), "tile is no new memory"),
        (in_teams(TeamMemory("tile", F32, 0)), "tile is no new memory"),
        (in_teams(shared_out(TILE)), "tile does not stand in the parallel loop itself"),
        (over_i(TILE), "tile does not stand in the parallel loop itself"),
        (
            in_teams(TILE, shared_out(Store("tile", J, J))),
            "a value of type torch.int64 is stored in tile",
        ),
        (in_teams(TILE, shared_out(READ)), "tile is read before anything is stored in it"),
        (
            in_teams(TILE, shared_out(Store("tile", J, ONE), mapping=Mapping.SERIAL)),
            "tile is stored in by no loop that the team shares out",
        ),
        (
            in_teams(TILE, shared_out(Store("tile", J, ONE), READ)),
            "tile is stored in when it may be read",
        ),
        (
            in_teams(TILE, *(shared_out(Store("tile", J, ONE)),) * 2),
            "tile is stored in when it may be read",
        ),
        (
            in_teams(TILE, shared_out(Merge("tile", J, "add", ONE))),
            "tile is stored in when it may be read",
        ),
    ],
)
def test_refused_memory_of_a_team(statement: Statement, why: str) -> None:
    with pytest.raises(KernelError, match=re.escape(why)):
        verify(made(statement))


def test_memory_of_a_team_is_gone_with_it() -> None:
    stores = in_teams(TILE, shared_out(Store("tile", J, ONE)))
    with pytest.raises(KernelError, match="is read from tile"):
        verify(made(stores, shared_out(READ)))


def test_a_name_outside_a_parallel_loop_is_not_used_in_it() -> None:
    """Each part of a kernel is a function of its own."""
    body = over_i(Store("out", HERE, Name("a", F32)), mapping=Mapping.PARALLEL)
    with pytest.raises(KernelError, match="a is used before it is defined"):
        verify(made(Assign("a", ONE), body))


def test_an_accumulator_outside_a_parallel_loop_is_not_updated_in_it() -> None:
    update = over_i(Update("sum", "add", X), mapping=Mapping.PARALLEL)
    with pytest.raises(KernelError, match="sum is updated, but is no accumulator here"):
        verify(made(Accumulator("sum", constant(0, F32)), update))
