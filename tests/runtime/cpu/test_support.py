"""What code generation calls, against numpy and Python's integers."""

from __future__ import annotations

import ctypes
import math
import random
from collections.abc import Iterator

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
import pytest
import torch

from adjoint.runtime.cpu.engine import compile_object, load
from adjoint.runtime.cpu.objects import symbols_of
from adjoint.runtime.cpu.support import C_FUNCTIONS, SUPPORT, c_function
from adjoint.target import Machine

BITS = {"half": "i16", "bfloat": "i16", "float": "i32", "double": "i64"}
MODES = {"hf": "half", "bf": "bfloat", "sf": "float", "df": "double"}
NUMPY = {"i16": np.uint16, "i32": np.uint32, "i64": np.uint64}


def over_arrays(name: str, source: str, result: str) -> str:
    """A loop that calls a function for each element of an array, of which it sees the bits."""
    here, there = BITS[source], BITS[result]
    declared = SUPPORT[name].replace(f"@{name}(", "@called(")
    return f"""{declared}
define void @each(ptr %from, ptr %to, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %from.at = getelementptr {here}, ptr %from, i64 %i
  %bits = load {here}, ptr %from.at
  %x = bitcast {here} %bits to {source}
  %y = call {result} @called({source} %x)
  %made = bitcast {result} %y to {there}
  %to.at = getelementptr {there}, ptr %to, i64 %i
  store {there} %made, ptr %to.at
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %end
end:
  ret void
}}
"""


def converted(name: str, bits: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """The bits of each number, converted by the function `name`."""
    source, result = MODES[name.removesuffix("2")[-4:-2]], MODES[name.removesuffix("2")[-2:]]
    (function,) = load(over_arrays(name, source, result), ["each"])
    made = np.zeros(len(bits), NUMPY[BITS[result]])
    word = ctypes.c_int64
    each = ctypes.CFUNCTYPE(None, word, word, word)(function.address)
    each(bits.ctypes.data, made.ctypes.data, len(bits))
    return made


def is_nan(bits: npt.NDArray[np.generic], kind: str) -> npt.NDArray[np.bool_]:
    infinity = {"half": 0x7C00, "bfloat": 0x7F80, "float": 0x7F800000, "double": 0x7FF << 52}[kind]
    size = bits & bits.dtype.type((1 << (8 * bits.itemsize - 1)) - 1)
    return np.asarray(size > bits.dtype.type(infinity))


ALL = np.arange(1 << 16, dtype=np.uint16)


@pytest.mark.parametrize("wide", ["sf", "df"])
@pytest.mark.parametrize("narrow", ["hf", "bf"])
def test_every_narrow_number_is_widened_exactly(narrow: str, wide: str) -> None:
    made = converted(f"__extend{narrow}{wide}2", ALL)
    if narrow == "hf":
        known = ALL.view(np.float16).astype(np.float32)
    else:
        known = (ALL.astype(np.uint32) << 16).view(np.float32)
    values = made.view(np.float32 if wide == "sf" else np.float64)
    nan = np.isnan(known)
    assert np.array_equal(np.isnan(values), nan)
    assert np.array_equal(values[~nan], known[~nan].astype(values.dtype))
    assert np.array_equal(np.signbit(values), np.signbit(known))


def midpoints(narrow: str) -> npt.NDArray[np.float64]:
    """Every narrow number, every middle between two of them, and what is just beside.

    As doubles, in which all of these are exact.
    """
    bits = np.arange(0x7C01 if narrow == "hf" else 0x7F81, dtype=np.uint16)
    values = (
        bits.view(np.float16).astype(np.float64)
        if narrow == "hf"
        else (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    )
    # Where the next would be, if there were no infinity.
    values[-1] = 2.0 * values[-2] - values[-3]
    middles = (values[1:] + values[:-1]) / 2
    exact = np.concatenate([values[:-1], middles])
    beside = [np.nextafter(exact, np.inf), np.nextafter(exact, -np.inf)]
    nearly = [exact * (1 + 2.0**-30), exact * (1 - 2.0**-30)]
    single = [np.nextafter(exact.astype(np.float32), np.float32(to)) for to in (np.inf, -np.inf)]
    made = np.concatenate([exact, *beside, *nearly, *(s.astype(np.float64) for s in single)])
    special = [np.inf, np.nan, 1e300, 65519.99, 65520.0, 65520.01, 5e-324, 2.0**-1022, 2.0**-25]
    made = np.concatenate([made, special, np.random.default_rng(0).standard_normal(1 << 16)])
    return np.concatenate([made, -made])


def rounded_once(values: npt.NDArray[np.float64], narrow: str) -> npt.NDArray[np.uint16]:
    """By the definition: of the two neighbours the nearer, or the even one."""
    fraction, least = (10, -14) if narrow == "hf" else (7, -126)
    most = 65504.0 if narrow == "hf" else float(np.float32(3.3895313892515355e38))
    size = np.abs(values)
    finite = np.where(np.isfinite(size), size, 0.0)
    _, exponent = np.frexp(finite)
    unit = np.exp2(np.maximum(exponent - 1, least) - fraction)
    # Exact: unit is a power of two. `rint` takes ties to even.
    near = np.rint(finite / unit) * unit
    near = np.where((near > most) | np.isinf(size), np.inf, near)
    near = np.copysign(np.where(np.isnan(values), np.nan, near), values)
    if narrow == "hf":
        return near.astype(np.float16).view(np.uint16)
    return (near.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("wide", ["sf", "df"])
@pytest.mark.parametrize("narrow", ["hf", "bf"])
def test_numbers_are_rounded_once_to_the_nearest_and_ties_to_even(narrow: str, wide: str) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        values = midpoints(narrow)
        if wide == "sf":
            values = values.astype(np.float32).astype(np.float64)
            bits: npt.NDArray[np.generic] = values.astype(np.float32).view(np.uint32)
        else:
            bits = values.view(np.uint64)
        known = rounded_once(values, narrow)
    made = converted(f"__trunc{wide}{narrow}2", bits)
    kind = MODES[narrow]
    nan = np.isnan(values)
    assert np.array_equal(is_nan(made, kind), nan)
    assert np.array_equal(made[~nan], known[~nan])
    assert np.array_equal(made.view(np.int16) < 0, known.view(np.int16) < 0)


@pytest.mark.slow
@pytest.mark.parametrize("narrow", ["hf", "bf"])
def test_every_float_is_rounded_as_torch_rounds_it(narrow: str) -> None:
    dtype = torch.float16 if narrow == "hf" else torch.bfloat16
    for start in range(0, 1 << 32, 1 << 26):
        bits = np.arange(start, start + (1 << 26), dtype=np.uint64).astype(np.uint32)
        known = torch.from_numpy(bits.view(np.float32)).to(dtype).view(torch.int16).numpy()
        made = converted(f"__truncsf{narrow}2", bits)
        nan = np.isnan(bits.view(np.float32))
        assert np.array_equal(is_nan(made, MODES[narrow]), nan)
        assert np.array_equal(made[~nan], known.view(np.uint16)[~nan])


def remainders() -> Iterator[tuple[float, float]]:
    known = [0.0, 1.0, 1.5, 3.0, 0.1, 5e-324, 2.5e-310, 2.0**-1022, 1e-300, 1e300, 1.7e308]
    known += [2.0**52 + 1, math.inf, math.nan, 7.25, 1e22]
    yield from ((x, y) for a in known for b in known for x in (a, -a) for y in (b, -b))
    chosen = random.Random(0)
    for _ in range(2000):
        sizes = [math.ldexp(chosen.random() + 0.5, chosen.randint(-1074, 1023)) for _ in range(2)]
        yield sizes[0], sizes[1]


@pytest.mark.parametrize(("name", "kind"), [("fmod", ctypes.c_double), ("fmodf", ctypes.c_float)])
def test_the_rest_of_a_division_is_exact(name: str, kind: type) -> None:
    (function,) = load(SUPPORT[name], [name])
    ours = ctypes.CFUNCTYPE(kind, kind, kind)(function.address)
    for x, y in remainders():
        x, y = (kind(v).value for v in (x, y))
        invalid = math.isnan(x) or math.isnan(y) or math.isinf(x) or y == 0
        known = math.nan if invalid else math.fmod(x, y)
        made = ours(x, y)
        if math.isnan(known):
            assert math.isnan(made)
        else:
            assert (made, math.copysign(1, made)) == (known, math.copysign(1, known)), (x, y)


def by_memory(name: str) -> str:
    return f"""{SUPPORT[name]}
define void @both(ptr %x.at, ptr %y.at, ptr %to) {{
  %x = load i128, ptr %x.at, align 8
  %y = load i128, ptr %y.at, align 8
  %z = call i128 @{name}(i128 %x, i128 %y)
  store i128 %z, ptr %to, align 8
  ret void
}}
"""


@pytest.mark.parametrize("name", ["__divti3", "__modti3", "__udivti3", "__umodti3"])
def test_division_of_128_bits(name: str) -> None:
    (function,) = load(by_memory(name), ["both"])
    word = ctypes.c_int64
    ours = ctypes.CFUNCTYPE(None, word, word, word)(function.address)
    signed = not name.startswith("__u")
    chosen = random.Random(0)
    known = [0, 1, 2, 3, 7, (1 << 64) - 1, 1 << 64, (1 << 127) - 1, 1 << 127, (1 << 128) - 1]
    pairs = [(x, y) for x in known for y in known if y]
    pairs += [(chosen.getrandbits(128), chosen.getrandbits(s) + 1) for s in range(1, 127)]
    for x, y in pairs:
        a, b = ((v - (1 << 128) if signed and v >> 127 else v) for v in (x, y))
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        right = quotient if "div" in name else a - quotient * b
        given = [np.frombuffer(v.to_bytes(16, "little"), np.uint64) for v in (x, y)]
        made = np.zeros(2, np.uint64)
        ours(*(each.ctypes.data for each in (*given, made)))
        assert int.from_bytes(made.tobytes(), "little") == right % (1 << 128), (a, b)


@pytest.mark.parametrize(
    ("triple", "cpu"),
    [
        ("x86_64-unknown-linux-gnu", "x86-64"),
        ("x86_64-unknown-linux-gnu", "sapphirerapids"),
        ("aarch64-unknown-linux-gnu", "generic"),
        ("arm64-apple-macosx", "apple-m1"),
    ],
)
def test_what_is_called_calls_nothing_itself(triple: str, cpu: str) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    for name, text in SUPPORT.items():
        symbols = symbols_of(compile_object(text, Machine(triple, cpu)))
        assert symbols.defined == {name}
        assert not symbols.undefined, name


def test_the_c_library_is_there() -> None:
    assert all(c_function(name) for name in C_FUNCTIONS)
    assert c_function("adjoint.no.such") is None
