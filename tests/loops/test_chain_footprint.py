from __future__ import annotations

from dataclasses import replace

from adjoint.loops.chain_footprint import ChainFootprint, Held, Keeping
from adjoint.loops.footprint import Block, Footprint
from adjoint.loops.plan import SlotKind


def block(slot: int, kind: SlotKind, count: int, first: int, last: int) -> Block:
    return Block(slot, kind, count, first, last)


FORWARD = Footprint(
    2,
    (
        block(0, SlotKind.INPUT, 50, -1, 0),
        block(1, SlotKind.TEMPORARY, 10, 0, 1),
        Block(2, SlotKind.OUTPUT, 100, 0, 2, is_pooled=True),
        Block(3, SlotKind.OUTPUT, 1, 1, 2, is_pooled=True),
    ),
    (0,),
    (3, 2),
    10,
)


BACKWARD = Footprint(
    3,
    (
        block(0, SlotKind.INPUT, 100, -1, 0),
        block(1, SlotKind.INPUT, 1, -1, 0),
        block(2, SlotKind.RESULT, 40, 1, 1),
        block(3, SlotKind.OUTPUT, 50, 2, 3),
    ),
    (0, 1),
    (3,),
    30,
)


def pair_of(keeping: Keeping) -> ChainFootprint:
    programs = (
        replace(
            each,
            shares_memory=keeping is Keeping.SHARED,
            gives_back=keeping is Keeping.NOTHING,
        )
        for each in (FORWARD, BACKWARD)
    )
    return ChainFootprint(tuple(programs), ((None,), (Held(0, 2), None)))


def test_memory_that_programs_share() -> None:
    pair = pair_of(Keeping.SHARED)
    assert pair.reserved == 30
    assert pair.profile() == [130, 131, 131, 30 + 1 + 40, 30 + 1 + 50]
    assert pair.peak == 131
    assert pair.between == 101


def test_memory_of_each_program() -> None:
    pair = pair_of(Keeping.OWN)
    assert pair.reserved == 40
    assert pair.profile() == [141, 141, 141, 40 + 101 + 40, 40 + 101 + 50]
    assert pair.peak == 191


def test_memory_that_is_given_back() -> None:
    pair = pair_of(Keeping.NOTHING)
    assert pair.reserved == 30
    assert pair.profile() == [110, 111, 131, 30 + 1 + 40, 30 + 1 + 50]


def test_the_peak_of_one_program() -> None:
    assert FORWARD.peak == 111
    assert BACKWARD.peak == 80
