from __future__ import annotations

import torch

from adjoint.emit.arithmetic import Callees
from adjoint.emit.body import Body
from adjoint.emit.random import PHILOX
from adjoint.loops.expressions import Load, apply, integer
from adjoint.philox import halves
from tests.kernels import at, call, compiled, pointwise
from tests.test_philox import KNOWN, signed

KEYS = ("key", "high", "low", "half")
READS = dict.fromkeys(KEYS, torch.int64)
DRAWN = apply("philox", *(at(name, torch.int64) for name in KEYS))


def test_code_gives_what_is_meant_bit_for_bit() -> None:
    given = torch.Generator().manual_seed(5)
    least, most = -(1 << 63), (1 << 63) - 1
    count = 1000
    columns = {
        name: torch.randint(least, most, (count,), generator=given, dtype=torch.int64)
        for name in KEYS
    }
    columns["half"] %= 2
    for place, (key, high, low, _) in enumerate(KNOWN):
        for name, number in zip(KEYS, (key, high, low), strict=False):
            columns[name][place] = signed(number)
    buffers = {**columns, "out": torch.empty(count, dtype=torch.int64)}
    made = pointwise(DRAWN, READS)
    call(compiled([made])[0], made, buffers, {"n": count})
    for place in range(count):
        key, high, low, half = (int(columns[name][place]) for name in KEYS)
        assert buffers["out"][place] == signed(halves(key, high, low)[half])


def test_it_is_defined_once_where_it_is_called() -> None:
    callees = Callees()
    body = Body(callees)
    assert PHILOX not in callees.defined()
    x = Load("x", integer(0), torch.int64)
    body.value(apply("philox", x, x, x, integer(0)) + apply("philox", x, x, x, integer(1)))
    assert callees.defined().count(PHILOX) == 1
    assert sum("call i64 @philox" in line for line in body.lines) == 2
