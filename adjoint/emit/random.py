"""The counter-based generator Philox as LLVM IR: `philox` of `loops/operators.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from adjoint.philox import KEY_STEPS, MULTIPLIERS, ROUNDS


def _product(n: int, word: int, multiplier: int) -> Iterator[str]:
    """The 64-bit product of a word: its high half, and its low half as a word of round n + 1."""
    yield f"%w{word}.{n} = zext i32 %c{word}.{n} to i64"
    yield f"%p{word}.{n} = mul i64 %w{word}.{n}, {multiplier}"
    yield f"%s{word}.{n} = lshr i64 %p{word}.{n}, 32"
    yield f"%high{word}.{n} = trunc i64 %s{word}.{n} to i32"
    yield f"%c{3 - word}.{n + 1} = trunc i64 %p{word}.{n} to i32"


def _product_on_gpu(n: int, word: int, multiplier: int) -> Iterator[str]:
    """The same in 32 bits: after a 64-bit product LLVM would compute the whole round in 64 bits."""
    factors = f"i32 %c{word}.{n}, i32 {multiplier}"
    yield f"%high{word}.{n} = call i32 @llvm.nvvm.mulhi.ui({factors})"
    yield f"%c{3 - word}.{n + 1} = mul i32 %c{word}.{n}, {multiplier}"


def _rounds(product: Callable[[int, int, int], Iterator[str]]) -> Iterator[str]:
    """All rounds: the counter is in %c0.0 to %c3.0, the result in %c0.ROUNDS to %c3.ROUNDS."""
    for n in range(ROUNDS):
        for word, multiplier in zip((0, 2), MULTIPLIERS, strict=True):
            yield from product(n, word, multiplier)
        for word, other in ((0, 2), (2, 0)):
            key = word // 2
            yield f"%x{word}.{n} = xor i32 %high{other}.{n}, %c{word + 1}.{n}"
            yield f"%c{word}.{n + 1} = xor i32 %x{word}.{n}, %k{key}.{n}"
            yield f"%k{key}.{n + 1} = add i32 %k{key}.{n}, {KEY_STEPS[key]}"


def _split(whole: str, first: str, second: str) -> Iterator[str]:
    yield f"{first} = trunc i64 {whole} to i32"
    yield f"{whole}.shifted = lshr i64 {whole}, 32"
    yield f"{second} = trunc i64 {whole}.shifted to i32"


def _joined(first: str, second: str, whole: str) -> Iterator[str]:
    yield f"{whole}.first = zext i32 {first} to i64"
    yield f"{whole}.second = zext i32 {second} to i64"
    yield f"{whole}.shifted = shl i64 {whole}.second, 32"
    yield f"{whole} = or i64 {whole}.first, {whole}.shifted"


def _philox(product: Callable[[int, int, int], Iterator[str]]) -> Iterator[str]:
    yield "define internal i64 @philox(i64 %key, i64 %high, i64 %low, i64 %half)"
    yield "    alwaysinline nounwind memory(none) {"
    yield from _split("%key", "%k0.0", "%k1.0")
    yield from _split("%low", "%c0.0", "%c1.0")
    yield from _split("%high", "%c2.0", "%c3.0")
    yield from _rounds(product)
    yield from _joined(f"%c0.{ROUNDS}", f"%c1.{ROUNDS}", "%h0")
    yield from _joined(f"%c2.{ROUNDS}", f"%c3.{ROUNDS}", "%h1")
    yield "%other = icmp ne i64 %half, 0"
    yield "%r = select i1 %other, i64 %h1, i64 %h0"
    yield "ret i64 %r"
    yield "}\n"


PHILOX = "\n".join(_philox(_product))

PHILOX_ON_GPU = "\n".join(["declare i32 @llvm.nvvm.mulhi.ui(i32, i32)", *_philox(_product_on_gpu)])
