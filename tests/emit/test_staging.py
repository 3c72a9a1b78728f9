from __future__ import annotations

import pytest

from adjoint.emit.staging import product_nest
from adjoint.loops.show import show_expression
from adjoint.loops.statements import Loop
from tests.emit.test_products import code, kernel


def test_the_loops_of_a_product_are_matched() -> None:
    (rows,) = kernel("computed after").body
    assert isinstance(rows, Loop)
    nest = product_nest(rows)
    left, right = show_expression(nest.left), show_expression(nest.right)
    for counters, matrix, other in (
        ((rows.counter,), left, right),
        ([loop.counter for loop in nest.columns], right, left),
    ):
        assert all(counter in matrix and counter not in other for counter in counters)
    assert all(loop.counter in left and loop.counter in right for loop in nest.inner)
    assert len(nest.epilogue) > 1


@pytest.mark.parametrize("name", ["plain", "transposed", "computed after"])
def test_quads_are_loaded_as_vectors(name: str) -> None:
    text = code(name)
    assert "ld.global.nc.v4" in text
    assert "ld.global.nc.f32" not in text


def test_loads_are_in_flight_while_the_previous_step_is_multiplied() -> None:
    loop = code("plain").split("bar.sync")[1]
    assert loop.index("ld.global.nc.v4") < loop.index("fma.rn.f32") < loop.index("st.shared")
