"""Makes `adjoint/emit/math/coefficients.py`: minimax polynomials by Remez's exchange, in mpmath.

python tools/coefficients.py > adjoint/emit/math/coefficients.py
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from mpmath import mp, mpf

mp.dps = 60
Function = Callable[[mpf], mpf]


@dataclass(frozen=True)
class Wanted:
    """A polynomial of the given degree near f on [low, high]; weight * error is levelled."""

    name: str
    f: Function
    weight: Function
    low: mpf
    high: mpf
    degree: dict[str, int]
    meaning: str


def remez(wanted: Wanted, degree: int) -> tuple[list[mpf], mpf]:
    count = degree + 2
    size = 24 * count
    middle, half = (wanted.low + wanted.high) / 2, (wanted.high - wanted.low) / 2
    grid = [middle - half * mp.cos(mp.pi * (2 * i + 1) / (2 * size)) for i in range(size)]
    values = [wanted.f(x) for x in grid]
    weights = [wanted.weight(x) for x in grid]
    # In t of [-1, 1] the system is well conditioned.
    at = [(x - middle) / half for x in grid]
    chosen = [round((size - 1) * (1 - mp.cos(mp.pi * i / (count - 1))) / 2) for i in range(count)]
    for _ in range(40):
        rows = mp.matrix(count, count)
        right = mp.matrix(count, 1)
        for r, i in enumerate(chosen):
            for k in range(degree + 1):
                rows[r, k] = at[i] ** k
            rows[r, degree + 1] = (-1) ** r / weights[i]
            right[r] = values[i]
        solved = mp.lu_solve(rows, right)
        p = [solved[k] for k in range(degree + 1)]
        errors = [
            w * (v - mp.polyval(p[::-1], t)) for w, v, t in zip(weights, values, at, strict=True)
        ]
        peaks = list(alternating_peaks(errors))
        while len(peaks) > count:
            peaks.pop(0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1)
        if len(peaks) < count or peaks == chosen:
            break
        chosen = peaks
    worst = max(abs(e) for e in errors)
    return shifted(p, middle, half), worst


def alternating_peaks(errors: list[mpf]) -> Iterator[int]:
    """The largest error of each run of one sign."""
    best = 0
    for i, error in enumerate(errors):
        if error * errors[best] < 0:
            yield best
            best = i
        elif abs(error) > abs(errors[best]):
            best = i
    yield best


def shifted(p: list[mpf], middle: mpf, half: mpf) -> list[mpf]:
    """The coefficients in x of p((x - middle) / half)."""
    result = [mpf(0)]
    for c in reversed(p):
        product = [mpf(0)] * (len(result) + 1)
        for k, r in enumerate(result):
            product[k + 1] += r / half
            product[k] -= r * middle / half
        product[0] += c
        result = product
    return result[: len(p)]


def root(f: Function) -> Function:
    return lambda z: f(mp.sqrt(z))


def catalogue() -> Iterator[Wanted]:
    ln2 = mp.log(2)
    half = ln2 / 2 + mpf("1e-3")
    tiny = mpf("1e-12")
    yield Wanted(
        "EXP",
        lambda r: (mp.expm1(r) - r) / r**2,
        lambda r: r**2 / mp.exp(r),
        -half,
        half,
        {"f32": 4, "wide": 5, "f64": 9},
        "exp(r) = 1 + r + r**2 p(r) for |r| <= ln(2) / 2",
    )
    yield Wanted(
        "EXPM1",
        lambda r: (mp.expm1(r) - r) / r**2,
        lambda r: abs(r**2 / mp.expm1(r)),
        -half,
        half,
        {"f32": 5, "f64": 10},
        "the same with the error relative to exp(r) - 1",
    )
    yield Wanted(
        "LOG",
        lambda f: (mp.log1p(f) - f) / f**2,
        lambda f: abs(f**2 / mp.log1p(f)),
        mp.sqrt(mpf(1) / 2) - 1 - mpf("1e-6"),
        mp.sqrt(2) - 1 + mpf("1e-6"),
        {"f32": 8, "wide": 11, "f64": 19},
        "log(1 + f) = f + f**2 p(f) for 1 + f in [sqrt(1/2), sqrt(2)]",
    )
    quarter = (mp.pi / 4 + mpf("1e-3")) ** 2
    yield Wanted(
        "SIN",
        root(lambda x: (mp.sin(x) - x) / x**3),
        root(lambda x: x**3 / mp.sin(x)),
        tiny,
        quarter,
        {"f32": 2, "wide": 3, "f64": 5},
        "sin(x) = x + x**3 p(x**2) for |x| <= pi / 4",
    )
    yield Wanted(
        "COS",
        root(lambda x: (mp.cos(x) - 1 + x**2 / 2) / x**4),
        root(lambda x: x**4 / mp.cos(x)),
        tiny,
        quarter,
        {"f32": 2, "wide": 2, "f64": 5},
        "cos(x) = 1 - x**2 / 2 + x**4 p(x**2) for |x| <= pi / 4",
    )


def inverse_functions() -> Iterator[Wanted]:
    tiny = mpf("1e-12")
    yield Wanted(
        "ATAN",
        root(lambda x: (mp.atan(x) - x) / x**3),
        root(lambda x: x**3 / mp.atan(x)),
        tiny,
        mpf(1),
        {"wide": 8, "f64": 19},
        "atan(x) = x + x**3 p(x**2) for |x| <= 1",
    )
    yield Wanted(
        "ASIN",
        root(lambda x: (mp.asin(x) - x) / x**3),
        root(lambda x: x**3 / mp.asin(x)),
        tiny,
        mpf(1) / 4,
        {"f32": 4, "wide": 4, "f64": 11},
        "asin(x) = x + x**3 p(x**2) for |x| <= 1/2",
    )
    yield Wanted(
        "SINH",
        root(lambda x: (mp.sinh(x) - x) / x**3),
        root(lambda x: x**3 / mp.sinh(x)),
        tiny,
        mpf(1),
        {"wide": 3, "f64": 6},
        "sinh(x) = x + x**3 p(x**2) for |x| <= 1",
    )
    yield Wanted(
        "ATANH_TAIL",
        root(lambda x: (mp.atanh(x) / x - 1 - x**2 / 3) / x**4),
        root(lambda x: x**4),
        tiny,
        mpf("0.0295"),
        {"f64": 6},
        "atanh(x) = x + x**3 / 3 + x**5 p(x**2) for x**2 <= 0.0295",
    )


# exp(x**2) erfc(x) (x + ERFC_CENTRE) is a smooth function of 1 / (x + ERFC_CENTRE).
ERFC_CENTRE = mpf(2)
ERFC_MIDDLE = mpf("0.25")


def scaled_erfc(x: mpf) -> mpf:
    return mp.exp(x**2) * mp.erfc(x)


def error_functions() -> Iterator[Wanted]:
    tiny = mpf("1e-12")
    yield Wanted(
        "ERF",
        root(lambda x: mp.erf(x) / x - 1),
        root(lambda x: x / mp.erf(x)),
        tiny,
        mpf(1),
        {"f32": 5, "f64": 11},
        "erf(x) = x + x p(x**2) for |x| <= 1",
    )
    for name, high, degree in (("f32", 4, 8), ("f64", 6, 21)):
        yield Wanted(
            f"ERF_TAIL_{name.upper()}",
            lambda x: -mp.log(mp.erfc(x)),
            lambda x: mp.erfc(x),
            mpf(1),
            mpf(high),
            {name: degree},
            f"erf(x) = 1 - exp(-p(x)) for 1 <= x <= {high}",
        )

    def of_inverse(v: mpf) -> mpf:
        x = 1 / (v + ERFC_MIDDLE) - ERFC_CENTRE
        return scaled_erfc(x) * (x + ERFC_CENTRE)

    for name, low, high, degree in (("wide", "0", "10.2", 12), ("f64", "0.59", "27.4", 22)):
        yield Wanted(
            f"ERFC_{name.upper()}",
            of_inverse,
            lambda v: 1 / of_inverse(v),
            1 / (mpf(high) + ERFC_CENTRE) - ERFC_MIDDLE,
            1 / (mpf(low) + ERFC_CENTRE) - ERFC_MIDDLE,
            {name: degree},
            f"erfc(x) = exp(-x**2) u p(u - 0.25) with u = 1 / (x + 2) for x >= {low}",
        )


# erfinv(x) / x is a smooth function of w = -log(1 - x**2), and for large w of its root.
ERFINV_MIDDLE = mpf("1.25")
ERFINV_TAIL_MIDDLE = {"f32": mpf(3), "f64": mpf(4)}


def erfinv_ratio(w: mpf) -> mpf:
    """erfinv(x) / x: the zero of log(erfc(y)) - log(1 - x), by Newton's method."""
    x = mp.sqrt(-mp.expm1(-w))
    if w < 1:
        return mp.erfinv(x) / x
    goal = -w - mp.log1p(x)
    y = mp.sqrt(-goal)
    while True:
        tail = mp.erfc(y)
        step = (mp.log(tail) - goal) * tail * mp.exp(y**2) * mp.sqrt(mp.pi) / 2
        y += step
        if abs(step) < mp.eps**0.75:
            return y / x


def inverse_error_function() -> Iterator[Wanted]:
    def of_offset(v: mpf) -> mpf:
        return erfinv_ratio(v + ERFINV_MIDDLE)

    yield Wanted(
        "ERFINV",
        lambda v: of_offset(v) - 1,
        lambda v: 1 / of_offset(v),
        mpf("1e-12") - ERFINV_MIDDLE,
        mpf("6.51") - ERFINV_MIDDLE,
        {"f32": 10, "f64": 23},
        "erfinv(x) = x + x p(w - 1.25) with w = -log(1 - x**2) <= 6.5",
    )
    for name, high, degree in (("f32", "15.95", 7), ("f64", "36.05", 27)):
        middle = ERFINV_TAIL_MIDDLE[name]

        def of_root(v: mpf, middle: mpf = middle) -> mpf:
            return erfinv_ratio((v + middle) ** 2)

        yield Wanted(
            f"ERFINV_TAIL_{name.upper()}",
            lambda v, of_root=of_root: of_root(v) - 2,
            lambda v, of_root=of_root: 1 / of_root(v),
            mp.sqrt(mpf("6.49")) - middle,
            mp.sqrt(mpf(high)) - middle,
            {name: degree},
            f"erfinv(x) = 2 x + x p(sqrt(w) - {middle}) for 6.5 <= w <= {high}",
        )


def constants() -> Iterator[tuple[str, mpf, int | None]]:
    """Name, value, and to how many bits less than the type's the first part is cut, if at all."""
    yield "LN2", mp.log(2), 11
    yield "LOG2_E", 1 / mp.log(2), None
    yield "LOG10_E", 1 / mp.log(10), None
    yield "LOG10_2", mp.log(2) / mp.log(10), None
    yield "PI_2", mp.pi / 2, None
    yield "THIRD", mpf(1) / 3, None


def parts(number: mpf, precision: str, cut: int | None) -> tuple[float, float]:
    if cut is None:
        high = rounded(number, precision)
    else:
        mantissa, exponent = mp.frexp(number)
        bits = (24 if precision == "f32" else 53) - cut
        high = float(mp.ldexp(mp.floor(mp.ldexp(mantissa, bits)), exponent - bits))
    return high, rounded(number - high, precision)


def rounded(number: mpf, precision: str) -> float:
    if precision == "f32":
        (single,) = struct.unpack("<f", struct.pack("<f", float(number)))
        return float(single)
    return float(number)


def main() -> None:
    print('"""Minimax polynomials, lowest power first. Made by tools/coefficients.py."""\n')
    print("from collections.abc import Mapping\n")
    print("# Constants in two parts.")
    for name, number, cut in constants():
        print(f"{name}: Mapping[str, tuple[float, float]] = {{")
        for precision in ("f32", "wide", "f64"):
            print(f'    "{precision}": {parts(number, precision, cut)!r},')
        print("}")
    print("# pi / 2 in three parts.")
    print("PI_2_PARTS: Mapping[str, tuple[float, float, float]] = {")
    for precision in ("f32", "f64"):
        first, second = parts(mp.pi / 2, precision, None)
        third = rounded(mp.pi / 2 - first - second, precision)
        print(f'    "{precision}": {(first, second, third)!r},')
    print("}")
    print("# 2 / pi to 1280 bits after the point.")
    with mp.workdps(400):
        digits = f"{int(mp.floor(mp.ldexp(2 / mp.pi, 1280))):X}"
    print("TWO_OVER_PI = int(")
    for start in range(0, len(digits), 80):
        print(f'    "{digits[start : start + 80]}"')
    print("    , 16)")
    kinds = (catalogue(), inverse_functions(), error_functions(), inverse_error_function())
    for wanted in chain(*kinds):
        print(f"# {wanted.meaning}.")
        print(f"{wanted.name}: Mapping[str, tuple[float, ...]] = {{")
        for precision, degree in wanted.degree.items():
            p, worst = remez(wanted, degree)
            print(f"    # error 2**{float(mp.log(worst, 2)):.1f}")
            print(f'    "{precision}": (')
            for c in p:
                print(f"        {rounded(c, precision)!r},")
            print("    ),")
        print("}")


if __name__ == "__main__":
    main()
