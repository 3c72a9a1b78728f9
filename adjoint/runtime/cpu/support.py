"""Runtime library functions that LLVM's code generation may call, as LLVM IR of ours.

Where the CPU cannot convert half-precision numbers, for example, LLVM calls `__truncsfhf2`, which
is part of a compiler's runtime library and need not exist in this process.  Each of these functions
is written here in instructions that every CPU has.  Functions of the C library, which every process
has, are listed by name.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

C_FUNCTIONS = frozenset(
    # LLVM calls `bzero` on macOS, where zeros are written.
    ["memcpy", "memmove", "memset", "memcmp", "bzero"]
    + [
        name + suffix
        for name in ("fma", "floor", "ceil", "trunc", "rint", "nearbyint", "round", "roundeven")
        for suffix in ("", "f")
    ]
)


def c_function(name: str) -> int | None:
    """The address of a function of the C library, if this process has it."""
    found = getattr(ctypes.CDLL(None), name, None)
    return ctypes.cast(found, ctypes.c_void_p).value if found is not None else None


def _narrowing(name: str, source: str, result: str, fraction: int, bias: int) -> str:
    """Round to a narrower format, to nearest with ties to even, in one rounding.

    With its exponent rebased, a double has the bits of the result followed by those to round off.
    Subnormal results are rounded by an addition: the sum with a power of two whose last bit is the
    smallest subnormal is a multiple of that subnormal.
    """
    drop = 52 - fraction
    infinity = (2 * bias + 1) << fraction
    magic = 1023 + 52 + 1 - bias - fraction  # exponent field of the power of two that rounds
    widened = "  %wide = fpext float %x to double\n" if source == "float" else ""
    return f"""\
define {result} @{name}({source} %x) #0 {{
{widened}  %bits = bitcast double {"%wide" if widened else "%x"} to i64
  %high = lshr i64 %bits, 48
  %sign = and i64 %high, 32768
  %size = and i64 %bits, {(1 << 63) - 1}
  %moved = sub i64 %size, {(1023 - bias) << 52}
  %shown = lshr i64 %moved, {drop}
  %odd = and i64 %shown, 1
  %up = add i64 %odd, {(1 << (drop - 1)) - 1}
  %sum = add i64 %moved, %up
  %normal = lshr i64 %sum, {drop}
  %positive = bitcast i64 %size to double
  %power = bitcast i64 {magic << 52} to double
  %added = fadd double %positive, %power
  %last = bitcast double %added to i64
  %small = sub i64 %last, {magic << 52}
  %is.small = icmp ult i64 %size, {(1024 - bias) << 52}
  %finite = select i1 %is.small, i64 %small, i64 %normal
  %is.large = icmp uge i64 %size, {(1024 + bias) << 52}
  %near = select i1 %is.large, i64 {infinity}, i64 %finite
  %payload = lshr i64 %size, {drop}
  %kept = and i64 %payload, {(1 << fraction) - 1}
  %nan = or i64 %kept, {infinity | 1 << (fraction - 1)}
  %is.nan = icmp ugt i64 %size, {2047 << 52}
  %number = select i1 %is.nan, i64 %nan, i64 %near
  %signed = or i64 %number, %sign
  %narrow = trunc i64 %signed to i16
  %made = bitcast i16 %narrow to {result}
  ret {result} %made
}}
"""


def _widening(name: str, source: str, result: str, fraction: int, bias: int) -> str:
    """Convert to a wider format, exactly; a NaN becomes quiet, as with hardware instructions."""
    infinity = (2 * bias + 1) << fraction
    lift = 52 - fraction
    narrowed = "  %narrow = fptrunc double %made to float\n" if result == "float" else ""
    return f"""\
define {result} @{name}({source} %x) #0 {{
  %given = bitcast {source} %x to i16
  %bits = zext i16 %given to i64
  %sign.bit = and i64 %bits, 32768
  %sign = shl i64 %sign.bit, 48
  %size = and i64 %bits, 32767
  %left = shl i64 %size, {lift}
  %normal = add i64 %left, {(1023 - bias) << 52}
  %whole = sitofp i64 %size to double
  %unit = bitcast i64 {(1024 - bias - fraction) << 52} to double
  %product = fmul double %whole, %unit
  %small = bitcast double %product to i64
  %is.small = icmp ult i64 %size, {1 << fraction}
  %finite = select i1 %is.small, i64 %small, i64 %normal
  %is.nan = icmp ugt i64 %size, {infinity}
  %quiet = select i1 %is.nan, i64 {1 << 51}, i64 0
  %special = or i64 %left, {2047 << 52}
  %other = or i64 %special, %quiet
  %is.special = icmp uge i64 %size, {infinity}
  %number = select i1 %is.special, i64 %other, i64 %finite
  %signed = or i64 %number, %sign
  %made = bitcast i64 %signed to double
{narrowed}  ret {result} {"%narrow" if narrowed else "%made"}
}}
"""


_MODES = {"half": "hf", "bfloat": "bf", "float": "sf", "double": "df"}
_FORMATS = {"half": (10, 15), "bfloat": (7, 127)}

# The remainder of x / y, by long division: x is shifted left bit by bit until both have the same
# exponent.
_REST = """\
define internal double @rest(double %x, double %y) #0 {
entry:
  %x.bits = bitcast double %x to i64
  %y.bits = bitcast double %y to i64
  %sign = and i64 %x.bits, -9223372036854775808
  %x.size = and i64 %x.bits, 9223372036854775807
  %y.size = and i64 %y.bits, 9223372036854775807
  %by.zero = icmp eq i64 %y.size, 0
  %by.nan = icmp ugt i64 %y.size, 9218868437227405312
  %of.none = icmp uge i64 %x.size, 9218868437227405312
  %some = or i1 %by.zero, %by.nan
  %none = or i1 %some, %of.none
  br i1 %none, label %undefined, label %compare
undefined:
  %product = fmul double %x, %y
  %nan = fdiv double %product, %product
  ret double %nan
compare:
  %less = icmp ult i64 %x.size, %y.size
  br i1 %less, label %same, label %divide
same:
  ret double %x
divide:
  %x.field = lshr i64 %x.size, 52
  %y.field = lshr i64 %y.size, 52
  %x.subnormal = icmp eq i64 %x.field, 0
  %y.subnormal = icmp eq i64 %y.field, 0
  %x.exponent = select i1 %x.subnormal, i64 1, i64 %x.field
  %y.exponent = select i1 %y.subnormal, i64 1, i64 %y.field
  %x.low = and i64 %x.size, 4503599627370495
  %y.low = and i64 %y.size, 4503599627370495
  %x.high = select i1 %x.subnormal, i64 0, i64 4503599627370496
  %y.high = select i1 %y.subnormal, i64 0, i64 4503599627370496
  %x.fraction = or i64 %x.low, %x.high
  %y.fraction = or i64 %y.low, %y.high
  %shifts = sub i64 %x.exponent, %y.exponent
  %first = urem i64 %x.fraction, %y.fraction
  br label %test
test:
  %rest = phi i64 [ %first, %divide ], [ %next, %shift ]
  %left = phi i64 [ %shifts, %divide ], [ %fewer, %shift ]
  %more = icmp ne i64 %left, 0
  br i1 %more, label %shift, label %end
shift:
  %twice = shl i64 %rest, 1
  %fits = icmp uge i64 %twice, %y.fraction
  %taken = sub i64 %twice, %y.fraction
  %next = select i1 %fits, i64 %taken, i64 %twice
  %fewer = sub i64 %left, 1
  br label %test
end:
  %is.normal = icmp ugt i64 %y.exponent, 52
  %field = sub i64 %y.exponent, 52
  %normal.unit = shl i64 %field, 52
  %place = sub i64 %y.exponent, 1
  %place.safe = select i1 %is.normal, i64 0, i64 %place
  %small.unit = shl i64 1, %place.safe
  %unit.bits = select i1 %is.normal, i64 %normal.unit, i64 %small.unit
  %unit = bitcast i64 %unit.bits to double
  %whole = sitofp i64 %rest to double
  %size = fmul double %whole, %unit
  %size.bits = bitcast double %size to i64
  %signed = or i64 %size.bits, %sign
  %made = bitcast i64 %signed to double
  ret double %made
}
"""

_FMOD = """\
define double @fmod(double %x, double %y) #0 {
  %made = call double @rest(double %x, double %y)
  ret double %made
}
"""

_FMODF = """\
define float @fmodf(float %x, float %y) #0 {
  %x.wide = fpext float %x to double
  %y.wide = fpext float %y to double
  %wide = call double @rest(double %x.wide, double %y.wide)
  %made = fptrunc double %wide to float
  ret float %made
}
"""

# Quotient and remainder by long division.  If a bit is shifted out of the remainder, it is larger
# than any divisor.
_DIVISION = """\
define internal { i128, i128 } @divided(i128 %x, i128 %y) #0 {
entry:
  br label %step
step:
  %bit = phi i128 [ 127, %entry ], [ %bit.next, %step ]
  %rest = phi i128 [ 0, %entry ], [ %rest.next, %step ]
  %quotient = phi i128 [ 0, %entry ], [ %quotient.next, %step ]
  %out = icmp slt i128 %rest, 0
  %twice = shl i128 %rest, 1
  %shifted = lshr i128 %x, %bit
  %low = and i128 %shifted, 1
  %with = or i128 %twice, %low
  %enough = icmp uge i128 %with, %y
  %fits = or i1 %out, %enough
  %less = sub i128 %with, %y
  %rest.next = select i1 %fits, i128 %less, i128 %with
  %digit = zext i1 %fits to i128
  %left = shl i128 %quotient, 1
  %quotient.next = or i128 %left, %digit
  %bit.next = sub i128 %bit, 1
  %done = icmp eq i128 %bit, 0
  br i1 %done, label %end, label %step
end:
  %one = insertvalue { i128, i128 } undef, i128 %quotient.next, 0
  %both = insertvalue { i128, i128 } %one, i128 %rest.next, 1
  ret { i128, i128 } %both
}
"""


_SIZES = """\
  %x.sign = ashr i128 %x, 127
  %y.sign = ashr i128 %y, 127
  %x.turned = xor i128 %x, %x.sign
  %y.turned = xor i128 %y, %y.sign
  %x.size = sub i128 %x.turned, %x.sign
  %y.size = sub i128 %y.turned, %y.sign
  %both.signs = xor i128 %x.sign, %y.sign
"""


def _division(name: str, part: int, signed: bool) -> str:
    """Part 0 is the quotient; part 1 the remainder, which has the sign of the dividend."""
    sign = "%x.sign" if part else "%both.signs"
    x, y = ("%x.size", "%y.size") if signed else ("%x", "%y")
    turned = f"  %turned = xor i128 %size, {sign}\n  %made = sub i128 %turned, {sign}\n"
    return f"""\
define i128 @{name}(i128 %x, i128 %y) #0 {{
{_SIZES if signed else ""}  %both = call {{ i128, i128 }} @divided(i128 {x}, i128 {y})
  %size = extractvalue {{ i128, i128 }} %both, {part}
{turned if signed else ""}  ret i128 {"%made" if signed else "%size"}
}}
"""


def _texts() -> Mapping[str, str]:
    texts = {"fmod": _REST + _FMOD, "fmodf": _REST + _FMODF}
    for part, name in enumerate(("div", "mod")):
        texts[f"__{name}ti3"] = _DIVISION + _division(f"__{name}ti3", part, signed=True)
        texts[f"__u{name}ti3"] = _DIVISION + _division(f"__u{name}ti3", part, signed=False)
    for narrow, (fraction, bias) in _FORMATS.items():
        for wide in ("float", "double"):
            down, up = f"{_MODES[wide]}{_MODES[narrow]}", f"{_MODES[narrow]}{_MODES[wide]}"
            texts[f"__trunc{down}2"] = _narrowing(f"__trunc{down}2", wide, narrow, fraction, bias)
            texts[f"__extend{up}2"] = _widening(f"__extend{up}2", narrow, wide, fraction, bias)
    # LLVM recognizes some of these by name, and must not compile one into a call of itself.
    return {name: f"{text}{_ATTRIBUTES}" for name, text in texts.items()}


_ATTRIBUTES = 'attributes #0 = { nounwind "no-builtins" }\n'

# Name -> LLVM text that defines it.
SUPPORT = _texts()
