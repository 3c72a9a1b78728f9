from __future__ import annotations

import sympy
import torch

from adjoint.loops.expressions import Counter, Extent, Load
from adjoint.loops.plan import Scratch
from adjoint.loops.show import show, show_expression
from adjoint.loops.statements import Buffer, Store
from adjoint.lower.index import Axis, linear, of_axis, unravelled
from adjoint.lower.operands import CHUNKS, Operands

ROWS = sympy.Symbol("s0", integer=True, positive=True)
PART, OTHER = Scratch("part", torch.float32, 8), Scratch("other", torch.float64, 8)


def test_each_buffer_and_each_size_has_one_name() -> None:
    made = Operands(8)
    assert [made.operand(each) for each in (PART, OTHER, PART)] == ["b0", "b1", "b0"]
    sizes = (ROWS * 2, ROWS + 1, 2 * ROWS, sympy.Integer(3))
    assert [show_expression(made.size(each)) for each in sizes] == ["e0", "e1", "e0", "3"]


def test_an_index_in_terms_of_counters() -> None:
    made = Operands(8)
    row, element = Axis("i", 5), Axis("k", ROWS * 4)
    made.counters = {row: Counter("r"), element: Counter("k")}
    assert show_expression(made.expression(of_axis(row) * 4 + 2)) == "((r * 4) + 2)"
    place = linear(unravelled(of_axis(element), (ROWS, 4)), (8, 1))
    assert show_expression(made.expression(place)) == "(((k // 4) * 8) + (k % 4))"
    assert made.accesses == []
    made.position(of_axis(row))
    assert made.accesses == [of_axis(row)]


def test_a_kernel_takes_what_its_statements_use() -> None:
    made = Operands(ROWS)
    names = [made.operand(each) for each in (PART, OTHER)]
    made.size(ROWS + 1)
    made.size(ROWS)
    both = made.nest(
        "both", (Store(names[0], Extent("e1"), Load("b1", Extent("t"), torch.float64)),)
    )
    assert both.operands == (PART, OTHER)
    assert both.extents == (ROWS,)
    assert both.kernel.extents == (CHUNKS, "e1")
    assert both.kernel.buffers == (Buffer("b0", torch.float32, True), Buffer("b1", torch.float64))
    one = made.nest("one", (Store("b1", Extent("t"), made.size(3)),), ("t",))
    assert one.operands == (OTHER,)
    assert show(one.kernel) == "kernel one(b1: f64 written; chunks, t)\n    b1[t] = 3\n"
    assert (one.work, one.items) == (ROWS, ())
