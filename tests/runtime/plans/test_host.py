from __future__ import annotations

import torch

from adjoint.loops.plan import SlotKind
from adjoint.runtime.plans.hostcode import execute
from adjoint.strides import span_of
from tests.lowering import program_of


def test_sizes_of_slots_and_their_layout() -> None:
    x = torch.rand(6, 5)
    program = program_of(lambda x: [(x.exp().t().sort(1).values.sin() @ x).sort(1)[0]], [x])
    host = program.host
    words = list(host.code.words)
    execute(host.code.instructions[: host.sizes_end], words)
    inner = [slot for slot in program.plan.slots if slot.kind is SlotKind.TEMPORARY]
    assert inner
    for slot in inner:
        assert slot.shape is not None
        assert slot.dtype is not None
        assert tuple(words[each.index] for each in host.shapes[slot.number]) == slot.shape
        size = words[host.bytes_of(slot).index]
        shape, strides = tuple(map(int, slot.shape)), tuple(map(int, slot.strides))
        assert size == span_of(shape, strides) * slot.dtype.itemsize
        assert words[host.offsets[slot.number].index] + size <= words[host.total.index]


def test_a_program_of_any_sizes_has_one_host() -> None:
    """Sizes that were never seen before compile nothing and keep nothing."""
    compiled = torch.compile(
        lambda x: (x.sin() @ x.t()).softmax(-1) + x.sum(), backend="adjoint", dynamic=True
    )
    for rows in (3, 1, 17, 0, 4, 2, 300, 5):
        x = torch.rand(rows, 6, dtype=torch.float64)
        expected = (x.sin() @ x.t()).softmax(-1) + x.sum()
        torch.testing.assert_close(compiled(x), expected)
