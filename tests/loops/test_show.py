from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from adjoint.errors import SourceLine
from adjoint.loops.expressions import Cast, Counter, Extent, Guarded, Load, Name, apply, constant
from adjoint.loops.expressions import integer as number
from adjoint.loops.operators import OPERATORS
from adjoint.loops.plan import Argument, Launch, LibraryCall, Matrix, Plan, Product, RowTiles
from adjoint.loops.show import INFIX, identity, short, show, show_expression, show_plan
from adjoint.loops.statements import (
    Accumulator,
    Assign,
    Buffer,
    Kernel,
    Loop,
    Mapping,
    Merge,
    Store,
    TeamMemory,
    Update,
)

F32, F64 = torch.float32, torch.float64
HERE, J, ROWS, COLUMNS = Counter("i"), Counter("j"), Extent("s0"), Extent("s1")


def test_a_kernel_reads_as_a_program() -> None:
    x = Load("x", HERE * COLUMNS + J, F32)
    total = Name("total", F32)
    inner = Loop(
        "j",
        number(0),
        COLUMNS,
        (Update("total", "add", apply("tanh", x)), Update("most", "maximum", x)),
        Mapping.VECTOR,
    )
    outer = Loop(
        "i",
        number(0),
        ROWS,
        (
            Accumulator("total", constant(0, F32)),
            Accumulator("most", constant(0, F32)),
            inner,
            Assign("mean", total / 2),
            Store("out", HERE, Name("mean", F32)),
            Merge("bins", Load("place", HERE, torch.int64), "add", Cast(total, F64)),
            Merge("bins", number(1), "minimum", Cast(total, F64)),
        ),
        Mapping.PARALLEL,
    )
    buffers = (
        Buffer("x", F32),
        Buffer("place", torch.int64),
        Buffer("out", F32, written=True),
        Buffer("bins", F64, written=True),
    )
    line = SourceLine("/model.py", 3, "forward", "y = x.tanh().sum(1)")
    made = Kernel("tanh_sum", buffers, ("s0", "s1"), (outer,), (line,))
    assert (
        show(made)
        == f"""\
kernel tanh_sum(x: f32, place: i64, out: f32 written, bins: f64 written; s0, s1)
    # {line}
    parallel for i in range(s0):
        var total = 0.0
        var most = 0.0
        vector for j in range(s1):
            total += tanh(x[((i * s1) + j)])
            most = maximum(most, x[((i * s1) + j)])
        mean = (total / 2.0)
        out[i] = mean
        bins[place[i]] += f64(total)
        bins[1] = minimum(bins[1], f64(total))
"""
    )


def reversing(dtype: torch.dtype, **options: Any) -> Kernel:
    """Four elements at a time, from the last to the first."""
    memory = TeamMemory("tile", dtype, 4)
    read = Loop("j", number(0), number(4), (Store("tile", J, constant(1, F32)),), Mapping.VECTOR)
    outer = Loop("i", number(0), ROWS, (memory, read), Mapping.PARALLEL)
    return Kernel("k", (), ("s0",), (outer,), **options)


def test_memory_of_a_team_and_what_was_decided() -> None:
    assert show(reversing(F32, team=64, remarks=("read backwards",))) == (
        "kernel k(; s0) by teams of 64\n"
        "    # read backwards\n"
        "    parallel for i in range(s0):\n"
        "        team tile: f32[4]\n"
        "        vector for j in range(4):\n"
        "            tile[j] = 1.0\n"
    )


def test_kernels_that_differ_in_memory_are_not_identical() -> None:
    assert identity(reversing(F32)) != identity(reversing(F64))
    assert identity(reversing(F32)) == identity(reversing(F32, remarks=("read backwards",)))


def test_a_loop_that_does_not_begin_at_zero() -> None:
    body = (Loop("i", number(1), number(4), (Store("out", HERE, constant(1, F32)),)),)
    made = Kernel("k", (Buffer("out", F32, written=True),), (), body)
    assert (
        show(made)
        == "kernel k(out: f32 written)\n    for i in range(1, 4):\n        out[i] = 1.0\n"
    )


def test_a_guard() -> None:
    x = Load("x", HERE, F32)
    assert show_expression(Guarded(HERE < 3, x, constant(0, F32))) == "(x[i] if (i < 3) else 0.0)"


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (torch.float16, "f16"),
        (torch.bfloat16, "bf16"),
        (torch.float64, "f64"),
        (torch.uint8, "u8"),
        (torch.int64, "i64"),
        (torch.bool, "bool"),
    ],
)
def test_types_are_short(dtype: torch.dtype, text: str) -> None:
    assert short(dtype) == text


def test_a_plan_shows_what_runs_row_by_row_under_its_region() -> None:
    kernel = Kernel("k", (Buffer("out", F32, True),), (), (Store("out", ROWS, constant(1, F32)),))
    launch = Launch(kernel, (0,), (), 4)
    rows, part = Matrix(0, 0, (8, 1)), Matrix(1, 0, (1, 5))
    of_rows = Product(rows, part, 2, (100, 5, 8), False, F32)
    over_rows = Product(part, rows, 3, (5, 8, 100), True, F32)
    tiles = RowTiles(100, 800, (launch,), (of_rows, launch, over_rows), {0: 8})
    call = LibraryCall(torch.sort, (Argument(0),), {}, 1)
    plan = Plan((), (), (), (launch, call, tiles), ())
    shown = "kernel k(out: f32 written)\n    out[s0] = 1.0\n"
    under = "    kernel k(out: f32 written)\n        out[s0] = 1.0\n"
    assert show_plan(plan) == (
        f"{shown}"
        "call sort\n"
        "for some of 100 rows at a time:\n"
        f"{under}"
        "    product [100, 8] x [8, 5]\n"
        f"{under}"
        "    product [5, 100] x [100, 8] summed\n"
    )


def test_kernels_with_constants_of_other_types_are_not_identical() -> None:
    def made(dtype: torch.dtype) -> Kernel:
        product = constant(16384, dtype) * constant(4, dtype)
        store = Store("out", HERE, Cast(product, torch.int64))
        return Kernel("k", (Buffer("out", torch.int64, True),), (), (store,))

    short, long = made(torch.int16), made(torch.int32)
    assert show(short) == show(long)
    assert identity(short) != identity(long)
    assert identity(short) == identity(
        replace(made(torch.int16), name="other", lines=(SourceLine("a.py", 1, "f", "x"),))
    )


def test_each_operator_has_a_spelling_of_its_own() -> None:
    assert len(set(INFIX.values())) == len(INFIX)
    assert not set(INFIX.values()) & OPERATORS.keys()
