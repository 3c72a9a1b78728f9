"""What the builder writes."""

import struct

import pytest

from adjoint.emit.math.builder import F32, F64, Builder, Value, constant


def made(real: object = F32) -> tuple[Builder, Value]:
    builder = Builder(F32 if real is F32 else F64)
    return builder, Value("%x", builder.real.type, builder)


def test_operators_append_instructions() -> None:
    b, x = made()
    y = 1.0 - x * x
    assert b.lines == [
        "%v0 = fmul float %x, %x",
        "%v1 = fsub float 0x3FF0000000000000, %v0",
    ]
    assert (y.text, y.type) == ("%v1", "float")


def test_constants_are_exact_in_their_type() -> None:
    assert constant(0.1, "float") == "0x3FB99999A0000000"
    assert constant(0.1, "double") == "0x3FB999999999999A"
    assert constant(-3, "i64") == "-3"


def test_types_do_not_mix() -> None:
    b, x = made()
    with pytest.raises(AssertionError, match="i32 given where float is needed"):
        x + b.bits(x)
    with pytest.raises(AssertionError, match="and needs integers, not float"):
        x & 1


@pytest.mark.parametrize("degree", range(1, 9))
def test_a_polynomial_has_one_fma_for_each_power(degree: int) -> None:
    b, x = made(F64)
    b.polynomial(x, [1.0] * (degree + 1))
    assert sum("llvm.fma" in line for line in b.lines) == degree
    assert len(b.lines) <= degree + 3


def test_the_nearest_integer_is_in_the_low_bits() -> None:
    for real, code in ((F32, "<f"), (F64, "<d")):
        for n in (-151, -1, 0, 1, 300):
            bits = int.from_bytes(struct.pack(code, real.magic + n), "little")
            assert (bits - n) % 2**10 == 0
